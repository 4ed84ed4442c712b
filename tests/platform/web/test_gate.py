"""What a crowd and large bodies may take, through a real ASGI server and a real database."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest
import redis
import uvicorn
from django.conf import settings
from django.db import connection

from berth.asgi import application
from berth.host.child import free_port
from berth.orgs import events
from berth.web.gate import AT_ONCE
from tests import make

CROWD = 120  # more than PostgreSQL has connections
MOST = 2 * 1024 * 1024


@pytest.fixture
def server(valkey: redis.Redis) -> Iterator[str]:
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


def connections_now() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'berth'")
        return int(cursor.fetchone()[0])


@pytest.mark.threat("A3")
@pytest.mark.django_db(transaction=True)
def test_a_crowd_of_strangers_is_answered_and_keeps_no_connection(server: str) -> None:
    async def crowd() -> Counter[int]:
        bounds = httpx.Limits(max_connections=CROWD)
        guess = {"Cookie": f"berth_session={'a' * 32}"}
        async with httpx.AsyncClient(base_url=server, headers=guess, timeout=60, limits=bounds) as client:
            answers = await asyncio.gather(*(client.get("/api/v1/me") for _ in range(CROWD)))
        return Counter(answer.status_code for answer in answers)

    before = connections_now()
    assert asyncio.run(crowd()) == {401: CROWD}
    assert connections_now() <= before + AT_ONCE


@pytest.mark.threat("G2")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("path", ["/api/v1/invitations/accept", "/api/v1/auth/browser/v1/auth/login", "/", "/assets/x"])
def test_a_large_body_is_refused_whoever_sends_it(server: str, path: str) -> None:
    def in_chunks() -> Iterator[bytes]:
        for _ in range(MOST // 65536 + 1):
            yield b" " * 65536

    sent = {"Content-Type": "application/json"}
    for body in (b" " * (MOST + 1), in_chunks()):
        answer = httpx.post(server + path, content=body, headers=sent, timeout=60)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["params"]) == (413, "body_too_large", {"most": MOST})
        assert error["request_id"] == answer.headers["x-request-id"]
    assert httpx.post(server + path, content=b" " * MOST, headers=sent, timeout=60).status_code in {400, 403, 405, 404}


@pytest.mark.threat("G2")
@pytest.mark.django_db(transaction=True)
def test_only_parts_of_uploads_may_be_larger(server: str) -> None:
    part = "/api/v1/orgs/acme/imports/01234567-89ab-7def-8123-456789abcdef/files/model.gguf/parts/0"
    sent = {"Content-Type": "application/octet-stream"}
    large = settings.UPLOAD_PART_BYTES
    assert large > MOST
    assert httpx.put(server + part, content=b" " * large, headers=sent, timeout=60).status_code in {401, 403}
    answer = httpx.put(server + part, content=b" " * (large + 1), headers=sent, timeout=60)
    assert (answer.status_code, answer.json()["error"]["params"]) == (413, {"most": large})
    for path in (f"{part}/x", part.replace("/parts/0", ""), part.replace("imports", "models")):
        assert httpx.put(server + path, content=b" " * (MOST + 1), headers=sent, timeout=60).status_code == 413


@pytest.mark.django_db(transaction=True)
def test_streams_hold_no_place_and_one_person_has_so_many(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MOST_STREAMS", AT_ONCE + 2)
    ann = make.member(make.org())
    address = f"{server}/api/v1/orgs/{ann.org.slug}/events"

    session = {"berth_session": make.client(ann.user).cookies["berth_session"].value}

    async def open_many() -> tuple[list[int], int]:
        async with httpx.AsyncClient(cookies=session, timeout=30, limits=httpx.Limits(max_connections=99)) as client:
            streams, running = [], []
            for _ in range(AT_ONCE + 3):
                stream = await client.send(client.build_request("GET", address), stream=True)
                streams.append(stream)
                if stream.status_code == 200:
                    running.append(stream.aiter_raw())  # kept: one that is let go closes its stream
                    await anext(running[-1])
            other = (await client.get(f"{server}/api/v1/me")).status_code
            for stream in streams:
                await stream.aclose()
        return [stream.status_code for stream in streams], other

    statuses, other = asyncio.run(open_many())
    assert statuses == [200] * (AT_ONCE + 2) + [429]
    assert other == 200
