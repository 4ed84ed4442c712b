"""The live stream, through a real ASGI server, a real database and a real Valkey."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import redis
import uvicorn
from django.db import connections, transaction

from berth.asgi import application
from berth.host.child import free_port
from berth.orgs import events as view
from berth.orgs.models import Member, User
from berth.web import events
from berth.web.events import publish_event, stream_of
from tests import make

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, valkey: redis.Redis) -> Iterator[str]:
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", 0)  # the server's threads keep none
    monkeypatch.setattr(view, "POLL", 0.2)
    monkeypatch.setattr(view, "PAUSE", 0.05)
    port = free_port()
    running = uvicorn.Server(
        uvicorn.Config(
            application, host="127.0.0.1", port=port, log_config=None, lifespan="off", timeout_graceful_shutdown=1
        )
    )
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    while not running.started:
        assert thread.is_alive()
        threading.Event().wait(0.02)
    yield f"http://127.0.0.1:{port}"
    running.should_exit = True
    thread.join(20)


def cookies(user: User) -> dict[str, str]:
    return {"berth_session": make.client(user).cookies["berth_session"].value}


class Stream:
    """An EventSource, more or less."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.aiter_lines()

    async def next(self) -> dict[str, Any] | None:
        """The next event; None when the server has ended the stream."""
        frame: dict[str, Any] = {}
        async for line in self._lines:
            if line.startswith(":"):
                continue
            if not line and frame:
                frame["data"] = json.loads(frame["data"])
                return frame
            if line:
                name, _, value = line.partition(": ")
                frame[name] = value
        return None

    async def wait_for(self, name: str) -> dict[str, Any]:
        while (frame := await asyncio.wait_for(self.next(), 30)) is not None:
            if frame["event"] == name:
                return frame
        raise AssertionError(f"the stream ended before {name}")


def listen(server: str, user: User, slug: str, act: Any, query: str = "", **headers: str) -> Any:
    """Runs `act(stream)` against an open stream."""

    async def run() -> Any:
        address = f"{server}/api/v1/orgs/{slug}/events{query}"
        async with (
            httpx.AsyncClient(cookies=cookies_of, timeout=30) as client,
            client.stream("GET", address, headers=headers) as response,
        ):
            assert response.status_code == 200, await response.aread()
            assert response.headers["content-type"].startswith("text/event-stream")
            return await act(Stream(response))

    cookies_of = cookies(user)
    return asyncio.run(run())


def test_an_event_arrives_and_the_stream_resumes_after_it(server: str) -> None:
    ann = make.member(make.org())

    async def first(stream: Stream) -> str:
        assert (await stream.next() or {})["event"] == "heartbeat"
        await asyncio.to_thread(publish_event, ann.org_id, "deployments", "support", 7, {"state": "ready"})
        frame = await stream.wait_for("deployments")
        said = frame["data"]
        assert (said["topic"], said["resource"], said["version"], said["data"]) == (
            "deployments",
            "support",
            7,
            {"state": "ready"},
        )
        assert said["id"] == frame["id"] and said["at"].endswith("Z") and "owner" not in said
        return str(frame["id"])

    last = listen(server, ann.user, ann.org.slug, first)
    publish_event(ann.org_id, "deployments", "support", 8, {})

    async def second(stream: Stream) -> None:
        assert (await stream.wait_for("deployments"))["data"]["version"] == 8

    listen(server, ann.user, ann.org.slug, second, **{"Last-Event-ID": last})


def test_what_is_too_old_is_answered_by_reset(server: str, valkey: redis.Redis) -> None:
    ann = make.member(make.org())
    for number in range(3):
        publish_event(ann.org_id, "deployments", "support", number, {})
    ids = [entry[0].decode() for entry in valkey.xrange(stream_of(ann.org_id))]
    valkey.xtrim(stream_of(ann.org_id), maxlen=1, approximate=False)

    async def first_name(stream: Stream) -> str:
        return str((await stream.next() or {})["event"])

    def name_after(last: str) -> Any:
        return listen(server, ann.user, ann.org.slug, first_name, **{"Last-Event-ID": last})

    assert name_after(ids[0]) == "reset"
    assert name_after(ids[2]) == "heartbeat"
    assert name_after("99999999999999-0") == "reset"
    valkey.delete(stream_of(ann.org_id))
    assert name_after(ids[2]) == "reset"


@pytest.mark.threat("A1")
def test_each_event_goes_only_to_whom_the_matrix_lets_read_it(server: str) -> None:
    org = make.org()
    owner, ann, bob, viewer = (make.member(org, role) for role in ("owner", "developer", "developer", "viewer"))
    outsider = make.member(make.org(), "owner")
    publish_event(org.pk, "keys", "k-ann", 1, {}, owner_id=ann.user_id)
    publish_event(org.pk, "statements", "2026-11", 1, {})
    publish_event(outsider.org_id, "deployments", "theirs", 1, {})
    publish_event(org.pk, "deployments", "end", 1, {})

    async def seen(stream: Stream) -> list[str]:
        got = []
        while (frame := await asyncio.wait_for(stream.next(), 30)) is not None:
            if "resource" in frame["data"]:
                got.append(frame["data"]["resource"])
            if got[-1:] == ["end"]:
                return got
        raise AssertionError("ended early")

    def by(member: Member, query: str = "") -> Any:
        return listen(server, member.user, org.slug, seen, query, **{"Last-Event-ID": "0-0"})

    assert by(owner) == ["k-ann", "2026-11", "end"]
    assert by(ann) == ["k-ann", "end"]
    assert by(bob) == by(viewer) == ["end"]
    assert by(owner, "?topics=deployments") == ["end"]


@pytest.mark.threat("A2")
@pytest.mark.parametrize("how", ["session", "membership", "password"])
def test_the_stream_ends_with_session_and_membership(server: str, how: str) -> None:
    ann = make.member(make.org())
    who = cookies(ann.user)

    def finish() -> None:
        if how == "membership":
            ann.delete()
        elif how == "password":
            ann.user.set_password("another long one")
            ann.user.save()
        else:
            client = make.client()
            client.cookies["berth_session"] = who["berth_session"]
            assert client.delete("/api/v1/auth/browser/v1/auth/session").status_code == 204

    async def run() -> None:
        address = f"{server}/api/v1/orgs/{ann.org.slug}/events"
        async with httpx.AsyncClient(cookies=who, timeout=30) as client, client.stream("GET", address) as response:
            stream = Stream(response)
            assert (await stream.next() or {})["event"] == "heartbeat"
            await asyncio.to_thread(finish)
            await asyncio.to_thread(publish_event, ann.org_id, "deployments", "late", 1, {})
            while (frame := await asyncio.wait_for(stream.next(), 30)) is not None:
                assert frame["event"] == "heartbeat"

    asyncio.run(run())


def test_strangers_and_nonsense_are_refused_in_the_one_shape(server: str) -> None:
    ann, outsider = make.member(make.org()), make.member(make.org())
    address = f"{server}/api/v1/orgs/{ann.org.slug}/events"

    def refused(user: User | None, query: str = "", **headers: str) -> tuple[int, str]:
        answer = httpx.get(address + query, cookies=cookies(user) if user else None, headers=headers)
        return answer.status_code, answer.json()["error"]["code"]

    assert refused(None) == (401, "signed_out")
    assert refused(outsider.user) == (404, "not_found")
    assert refused(ann.user, "?topics=deployments,secrets") == (400, "invalid")
    assert refused(ann.user, **{"Last-Event-ID": "x\\y"}) == (400, "invalid")
    assert httpx.post(address).status_code in {403, 405}


def test_heartbeats_come_without_events(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "HEARTBEAT", 0.1)
    ann = make.member(make.org())

    async def three(stream: Stream) -> list[str]:
        return [str((await stream.wait_for("heartbeat"))["id"]) for _ in range(3)]

    assert listen(server, ann.user, ann.org.slug, three) == ["0-0"] * 3


def test_publishing_without_valkey_harms_nobody_and_waits_for_the_commit(settings: Any, valkey: redis.Redis) -> None:
    org = make.org()
    with transaction.atomic():
        publish_event(org.pk, "org", org.slug, 1, {})
        assert valkey.xlen(stream_of(org.pk)) == 0
    assert valkey.xlen(stream_of(org.pk)) == 1
    events._client.cache_clear()
    settings.REDIS_URL = f"redis://127.0.0.1:{free_port()}/0"
    publish_event(org.pk, "org", org.slug, 2, {})
    events._client.cache_clear()
    assert valkey.xlen(stream_of(org.pk)) == 1


def test_a_stream_outlives_a_valkey_that_forgets(server: str, valkey: redis.Redis) -> None:
    ann = make.member(make.org())
    publish_event(ann.org_id, "deployments", "old", 1, {})

    async def through(stream: Stream) -> None:
        await stream.wait_for("heartbeat")
        await asyncio.to_thread(valkey.client_kill_filter, _type="normal", skipme=True)
        await asyncio.to_thread(publish_event, ann.org_id, "deployments", "new", 2, {})
        assert (await stream.wait_for("deployments"))["data"]["resource"] == "new"

    listen(server, ann.user, ann.org.slug, through)
