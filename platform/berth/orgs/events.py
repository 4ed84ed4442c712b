"""`GET /orgs/{org}/events`: the dashboard's live stream (server-sent events), for as long as its session and membership last.

Each event is `event: <topic>` with `data: {id, topic, resource, version, at, data}`. A `heartbeat` comes at once and then every 15
seconds; its id moves on too, so `Last-Event-ID` resumes without a gap. When what came after that id is no longer kept, the first
event is `reset`: fetch the page again. An event is sent only to whom the matrix lets read its topic, judged when it is sent.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeGuard, cast
from uuid import UUID

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib import auth
from django.db import connection
from django.http import HttpRequest, HttpResponseBase, JsonResponse, StreamingHttpResponse
from redis.exceptions import RedisError

from berth.orgs.models import Member
from berth.orgs.permissions import Action, allows
from berth.web.errors import AWAY, ApiError, NotFound, body
from berth.web.events import Event, newest, open_reader, read, resumable, stream_of, valid_id

HEARTBEAT = 15.0  # seconds
POLL = 5.0  # seconds between looks at session and membership when nothing happens
PAUSE = 1.0  # seconds before a service that is away is asked again
MOST_STREAMS = 20  # of one user, of each process
LOOKS_AT_ONCE = 8  # an event wakes every stream of its organisation; the database is asked by few of them at a time

TOPICS: dict[str, Action] = {
    "org": Action.ORG_READ,
    "members": Action.MEMBERS_READ,
    "keys": Action.KEYS_READ_ALL,
    "models": Action.MODELS_READ,
    "deployments": Action.DEPLOYMENTS_READ,
    "usage": Action.USAGE_READ,
    "statements": Action.BILLING_READ,
}
OWN: dict[str, Action] = {"keys": Action.KEYS_READ_OWN}  # enough for events whose owner one is


_open: Counter[UUID] = Counter()  # streams by user; read and written by the event loop's thread alone
_looks = threading.BoundedSemaphore(LOOKS_AT_ONCE)


@dataclass(frozen=True)
class Viewer:
    session_key: str
    user_id: UUID
    org_id: UUID


Show = Callable[[UUID], dict[str, Any]]


@dataclass(frozen=True)
class Focus:
    """A stream about one thing: only its events, and beside them `status`, what `show(org id)` says of it, whenever that has changed.
    `show` reads the database; it raises NotFound when the thing is gone, which ends the stream."""

    topic: str
    resource: str
    show: Show


async def org_events(request: HttpRequest, org: str) -> HttpResponseBase:
    return await stream_events(request, org)


async def stream_events(request: HttpRequest, org: str, focus: Focus | None = None) -> HttpResponseBase:
    """Everything of an organisation that its viewer may see and asked for, or only what is in focus."""
    try:
        if request.method != "GET":
            raise ApiError("method_not_allowed", "This address only streams events: use GET.", status=405)
        topics = _topics(request.GET.get("topics", "")) if focus is None else frozenset({focus.topic})
        last_id = request.headers.get("Last-Event-ID")
        if last_id is not None and not valid_id(last_id):
            raise ApiError("invalid", "Last-Event-ID is not an id of this stream. Leave it out.", field="Last-Event-ID")
        viewer = await sync_to_async(_viewer)(request, org)
        if focus is not None:
            await sync_to_async(_shown)(viewer, focus)  # NotFound has a status of its own only now
        if _open[viewer.user_id] >= MOST_STREAMS:
            message = f"You have {MOST_STREAMS} live pages open already. Close one, then reload this one."
            raise ApiError("too_many_streams", message, status=429, params={"most": MOST_STREAMS})
    except ApiError as error:
        content = body(request, error.code, error.message, field=error.field, params=error.params)
        return JsonResponse(content, status=error.status)
    return StreamingHttpResponse(
        _stream(viewer, topics, last_id, focus),
        content_type="text/event-stream; charset=utf-8",
        headers={"X-Accel-Buffering": "no"},
    )


org_events.actions = {"GET": Action.ORG_READ}  # type: ignore[attr-defined]  # as on every view of an organisation


def _topics(text: str) -> frozenset[str]:
    wanted = frozenset(filter(None, text.split(","))) or frozenset(TOPICS)
    if not wanted <= TOPICS.keys():
        raise ApiError("invalid", f"Topics are: {', '.join(TOPICS)}.", field="topics")
    return wanted


def _viewer(request: HttpRequest, slug: str) -> Viewer:
    try:
        return _find_viewer(request, slug)
    finally:
        _let_go()


def _find_viewer(request: HttpRequest, slug: str) -> Viewer:
    user = request.user
    if not user.is_authenticated or request.session.session_key is None:
        raise ApiError(
            "signed_out", "You are not signed in, or your session has ended. Sign in and try again.", status=401
        )
    membership = Member.objects.across_orgs("which organisation is being asked for?").filter(user=user, org__slug=slug)
    member = membership.first()
    if member is None:
        raise NotFound("organisation")
    return Viewer(request.session.session_key, user.pk, member.org_id)


def _role_now(viewer: Viewer) -> str | None:
    with _looks:
        return _look_up(viewer)


def _look_up(viewer: Viewer) -> str | None:
    """The viewer's role, or None when the session or the membership has ended."""
    try:
        probe = HttpRequest()
        probe.session = import_module(settings.SESSION_ENGINE).SessionStore(viewer.session_key)
        if auth.get_user(probe).pk != viewer.user_id:
            return None
        return (
            Member.objects.for_org(viewer.org_id).filter(user_id=viewer.user_id).values_list("role", flat=True).first()
        )
    finally:
        _let_go()


def _let_go() -> None:
    """A stream lasts for hours; it holds no database connection meanwhile."""
    if not connection.in_atomic_block:
        connection.close()


def _may_see(event: Event, role: str, user_id: UUID) -> bool:
    action = TOPICS.get(event.topic)
    if action is None:
        return False
    own = OWN.get(event.topic)
    return allows(role, action) or (own is not None and event.owner == str(user_id) and allows(role, own))


def _shown(viewer: Viewer, focus: Focus) -> dict[str, Any]:
    try:
        return focus.show(viewer.org_id)
    finally:
        _let_go()


def _patience(focus: Focus | None, status: object) -> float:
    """Seconds to wait for events: the first status is sent at once."""
    return 0.0 if focus is not None and status is None else min(POLL, HEARTBEAT)


def _in_focus(focus: Focus | None, role: str | None) -> TypeGuard[Focus]:
    return focus is not None and role is not None and allows(role, TOPICS[focus.topic])


def _is_about(event: Event, topics: frozenset[str], focus: Focus | None) -> bool:
    return event.topic in topics and (focus is None or event.resource == focus.resource)


async def _stream(
    viewer: Viewer, topics: frozenset[str], last_id: str | None, focus: Focus | None = None
) -> AsyncIterator[bytes]:
    client = open_reader()
    clock = asyncio.get_running_loop()
    stream, position, checked, beat_at = stream_of(viewer.org_id), last_id, False, clock.time()
    status: dict[str, Any] | None = None
    _open[viewer.user_id] += 1
    try:
        while True:
            try:
                if not checked:
                    name = "heartbeat" if position is None or await resumable(client, stream, position) else "reset"
                    if position is None or name == "reset":
                        position = await newest(client, stream)
                    checked, beat_at = True, clock.time() + HEARTBEAT
                    yield _frame(position, name, {})
                events = await read(client, stream, cast(str, position), _patience(focus, status))
                role = await sync_to_async(_role_now)(viewer)
                now_shown = await sync_to_async(_shown)(viewer, focus) if _in_focus(focus, role) else status
            except NotFound:
                return
            except (RedisError, OSError, *AWAY):
                # Nothing is sent that could not be checked; what happened meanwhile is read when both answer again.
                checked = False if position is not None else checked
                yield b": waiting\n\n"
                await asyncio.sleep(PAUSE)
                continue
            if role is None:
                return
            for event in events:
                position = event.id
                if _is_about(event, topics, focus) and _may_see(event, role, viewer.user_id):
                    yield _frame(event.id, event.topic, event.public())
            if now_shown is not None and now_shown != status:
                status = now_shown
                yield _frame(cast(str, position), "status", status)
            if clock.time() >= beat_at:
                beat_at = clock.time() + HEARTBEAT
                yield _frame(cast(str, position), "heartbeat", {})
    finally:
        _open[viewer.user_id] -= 1
        if not _open[viewer.user_id]:
            del _open[viewer.user_id]
        await client.aclose()


def _frame(event_id: str, name: str, data: dict[str, Any]) -> bytes:
    return f"id: {event_id}\nevent: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()
