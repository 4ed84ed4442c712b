"""Live events for the dashboard: written to one Valkey stream an organisation, read by `GET /orgs/{org}/events`.

    publish_event(org.pk, "deployments", "support-v2", version=7, data={"state": "ready"})

An event says that something changed; the tables remain the truth. Losing one costs a refetch, so a Valkey that is away never
stops the change itself.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

import redis
import redis.asyncio
from django.conf import settings
from django.db import transaction
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

log = logging.getLogger(__name__)

KEPT = 2000  # events of an organisation, about; older ones are answered by `reset`
START = "0-0"


@dataclass(frozen=True)
class Event:
    """`version` rises with each change of a resource: a page drops what is not newer than what it shows. `owner` limits who sees
    it: None is everyone who may read the topic, else this user and who may read everyone's."""

    id: str
    topic: str
    resource: str
    version: int
    at: str
    data: dict[str, Any]
    owner: str | None = None

    def public(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "topic": self.topic,
            "resource": self.resource,
            "version": self.version,
            "at": self.at,
            "data": self.data,
        }


def stream_of(org_id: UUID | str) -> str:
    return f"berth:events:{org_id}"


def publish_event(
    org_id: UUID | str,
    topic: str,
    resource: str,
    version: int | None,
    data: Mapping[str, Any],
    *,
    owner_id: UUID | str | None = None,
) -> None:
    """Appends an event once the running transaction, if any, has committed. Never raises because of Valkey.

    `topic` is one of `berth.orgs.events.TOPICS`; `resource` is what the address of the thing ends with (a name or an id); `data`
    holds ids, states and numbers, never text that a user wrote into a prompt and never a secret. `version` None: milliseconds of
    now, for what has no number of its own.
    """
    now = datetime.now(UTC)
    fields = {
        "topic": topic,
        "resource": resource,
        "version": str(int(now.timestamp() * 1000) if version is None else version),
        "at": now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "data": json.dumps(dict(data), default=str),
        "owner": "" if owner_id is None else str(owner_id),
    }
    transaction.on_commit(functools.partial(_append, stream_of(org_id), fields))


@functools.cache
def _client() -> redis.Redis:
    # One more try finds a server that was restarted; waiting for one that is away would make its callers wait.
    retry = Retry(NoBackoff(), 1)
    return redis.Redis.from_url(settings.REDIS_URL, socket_connect_timeout=1, socket_timeout=1, protocol=2, retry=retry)


def _append(stream: str, fields: dict[str, str]) -> None:
    try:
        _client().xadd(stream, cast("dict[Any, Any]", fields), maxlen=KEPT, approximate=True)
    except (RedisError, OSError) as error:
        log.warning("event_lost", extra={"topic": fields["topic"], "reason": type(error).__name__})


def open_reader() -> redis.asyncio.Redis:
    """A connection for one reader; close it with `aclose()`."""
    retry = AsyncRetry(NoBackoff(), 0)  # the reader has a loop of its own
    return redis.asyncio.Redis.from_url(
        settings.REDIS_URL, socket_connect_timeout=1, socket_timeout=20, protocol=2, retry=retry
    )


async def newest(client: redis.asyncio.Redis, stream: str) -> str:
    """The id after which everything is new."""
    try:
        info = await client.xinfo_stream(stream)
    except ResponseError:  # no event was ever written
        return START
    return _text(info["last-generated-id"])


async def resumable(client: redis.asyncio.Redis, stream: str, last_id: str) -> bool:
    """Whether every event after `last_id` is still there."""
    try:
        info = await client.xinfo_stream(stream)
    except ResponseError:
        return last_id == START
    if _order(last_id) > _order(_text(info["last-generated-id"])):
        return False  # Valkey came back without its data
    first = info["first-entry"]
    if info["entries-added"] == info["length"]:
        return True
    return first is not None and _order(_text(first[0])) <= _order(last_id)


async def read(client: redis.asyncio.Redis, stream: str, after: str, wait: float) -> list[Event]:
    """Events after that id; an empty list when none came within `wait` seconds."""
    answer: Any = await client.xread({stream: after}, count=100, block=max(1, int(wait * 1000)))
    if not answer:
        return []
    [(_, entries)] = answer
    return [_event(entry_id, fields) for entry_id, fields in entries]


def valid_id(text: str) -> bool:
    left, dash, right = text.partition("-")
    return len(text) <= 41 and bool(dash) and left.isdecimal() and right.isdecimal() and text.isascii()


def _event(entry_id: bytes, raw: dict[bytes, bytes]) -> Event:
    fields = {_text(name): _text(value) for name, value in raw.items()}
    return Event(
        id=_text(entry_id),
        topic=fields["topic"],
        resource=fields["resource"],
        version=int(fields["version"]),
        at=fields["at"],
        data=json.loads(fields["data"]),
        owner=fields["owner"] or None,
    )


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _order(entry_id: str) -> tuple[int, int]:
    left, _, right = entry_id.partition("-")
    return int(left), int(right)
