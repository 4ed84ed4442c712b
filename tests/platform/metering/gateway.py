"""A gateway as the ingester sees it: signed batches in the stream."""

from __future__ import annotations

from typing import Any

import msgspec
import redis
from django.conf import settings

from berth.deployments.models import Deployment
from berth.keys.models import ApiKey
from berth.orgs.tenancy import new_id
from berth_gateway.contract import (
    USAGE_FORMAT,
    USAGE_STREAM,
    CountedBy,
    Outcome,
    UsageBatch,
    UsageEvent,
    usage_key,
    usage_mac,
)
from tests import make

NAME = "gw-1"


def key_of(name: str = NAME) -> bytes:
    return usage_key(bytes.fromhex((settings.SECRETS_DIR / "usage_master_key").read_text().strip()), name)


def event(deployment: Deployment, key: ApiKey, **fields: Any) -> UsageEvent:
    values: dict[str, Any] = {
        "format": USAGE_FORMAT,
        "event_id": str(new_id()),
        "gateway": NAME,
        "org_id": str(deployment.org_id),
        "key_id": str(key.pk),
        "deployment_id": str(deployment.pk),
        "revision": 1,
        "endpoint": "chat/completions",
        "stream": True,
        "accepted_at": make.NOON.timestamp(),
        "duration_ms": 80.5,
        "outcome": Outcome.OK,
        "status": 200,
        "counted_by": CountedBy.ENGINE,
        "prompt_tokens": 10,
        "completion_tokens": 4,
        "first_token_ms": 12.0,
    }
    return UsageEvent(**values | fields)


def batch(events: list[Any], start: int = 0, end: int | None = None, *, gateway: str = NAME, **fields: Any) -> bytes:
    payload = msgspec.msgpack.encode(events)
    stop = start + len(events) if end is None else end
    values: dict[str, Any] = {
        "format": USAGE_FORMAT,
        "gateway": gateway,
        "start": start,
        "end": stop,
        "payload": payload,
        "mac": usage_mac(key_of(gateway), gateway, start, stop, payload),
    }
    return msgspec.msgpack.encode(UsageBatch(**values | fields))


def send(valkey: redis.Redis, *batches: bytes) -> None:
    for raw in batches:
        valkey.xadd(USAGE_STREAM, {"batch": raw})
