"""Every accepted request is one usage event, whoever is killed when."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from berth.host.child import free_port
from berth.host.valkey import Valkey
from berth_gateway.contract import USAGE_POSITION_KEY, USAGE_STREAM, Outcome
from tests.gateway.harness import (
    HEAD,
    NAME,
    PATIENCE,
    Engine,
    GatewayProcess,
    Ingester,
    Seen,
    Talk,
    World,
    chat,
    chat_events,
    get,
    post,
    raw_post,
    wait_for,
)  # fmt: skip

CHAT = "/v1/chat/completions"


@pytest.fixture
def own_valkey(tmp_path: Path) -> Iterator[Valkey]:
    """A server of this test's own, to be killed."""
    server = Valkey(tmp_path / "valkey", free_port(), "a-password")
    server.start(tmp_path / "valkey.log")
    yield server
    server.stop()


@pytest.fixture
def stage(tmp_path: Path, engine: Engine, own_valkey: Valkey) -> Iterator[tuple[GatewayProcess, World, redis.Redis]]:
    """A gateway on that Valkey, and an engine that takes its time for each token."""
    world = World()
    world.route("acme/model", engine.port)
    valkey = redis.Redis.from_url(own_valkey.url)
    world.publish(valkey)
    engine.script = paced
    process = GatewayProcess(tmp_path, world, own_valkey.url).start()
    yield process, world, valkey
    process.kill()
    process.check_log()
    valkey.close()


def paced(seen: Seen, talk: Talk) -> None:
    talk.send(HEAD)
    for data in chat_events([f"w{n}" for n in range(seen.json["max_tokens"])]):
        talk.send(b"%x\r\n%b\r\n" % (len(data), data))
        time.sleep(0.003)
    talk.send(b"0\r\n\r\n")


class Load:
    """Clients that call, read and leave at random. `finished` are request ids that were answered to the last byte."""

    def __init__(self, port: int, token: str, workers: int = 6, leaving: float = 0.3) -> None:
        self._port, self._token, self._leaving = port, token, leaving
        self.finished: list[str] = []
        self.tokens: dict[str, int] = {}
        self.stop = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(n,)) for n in range(workers)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join(PATIENCE)

    def _work(self, number: int) -> None:
        chance = random.Random(number)
        while not self.stop.is_set():
            stream, tokens = chance.random() < 0.6, chance.randint(1, 12)
            body = json.dumps(chat(stream=stream, max_tokens=tokens)).encode()
            leave = chance.randint(1, 1200) if chance.random() < self._leaving else None
            try:
                got = self._call(raw_post(CHAT, body, self._token, "Connection: close\r\n"), leave)
            except OSError:
                time.sleep(0.02)
                continue
            head = got.partition(b"\r\n\r\n")[0]
            whole = got.endswith(b"0\r\n\r\n") if stream else b'"usage"' in got
            if whole and b" 200 " in head and b'"error"' not in got and leave is None:
                (request_id,) = [
                    line[14:].decode() for line in head.split(b"\r\n") if line.startswith(b"x-request-id: ")
                ]
                self.tokens[request_id] = tokens
                self.finished.append(request_id)

    def _call(self, data: bytes, leave: int | None) -> bytes:
        with socket.create_connection(("127.0.0.1", self._port), timeout=5) as sock:
            sock.sendall(data)
            got = b""
            while (leave is None or len(got) < leave) and (part := sock.recv(4096)):
                got += part
            return got


def check(load: Load, engine: Engine, events: list[Any]) -> None:
    """One event for each request that the engine saw, and the right figures for each that was answered."""
    by_id = {"req_" + e.event_id.replace("-", ""): e for e in events}
    asked = Counter(seen.header("x-request-id") for seen in engine.seen)
    assert set(asked) <= set(by_id)
    assert set(load.finished) <= set(by_id)
    for request_id in load.finished:
        event = by_id[request_id]
        assert (event.outcome, event.status, event.completion_tokens) == (Outcome.OK, 200, load.tokens[request_id])
    for event in by_id.values():
        assert event.outcome in (Outcome.OK, Outcome.CLIENT_CLOSED, Outcome.INTERRUPTED, Outcome.UPSTREAM_ERROR)
        assert event.completion_tokens <= 12
        assert event.prompt_tokens in (0, 11)
        assert (event.completion_tokens == 0) == (event.prompt_tokens == 0)


def accepted(gateway: GatewayProcess) -> int:
    text = get(gateway.port, "/metrics").body.decode()
    return sum(int(line.split()[-1]) for line in text.splitlines() if line.startswith("berth_gateway_requests_total"))


@pytest.mark.threat("B4")
def test_random_leavers_make_one_event_each(stage: tuple[GatewayProcess, World, redis.Redis], engine: Engine) -> None:
    gateway, world, valkey = stage
    load = Load(gateway.port, world.token, leaving=0.5)
    wait_for(lambda: len(engine.seen) > 150, "load")
    load.end()
    wait_for(lambda: "in_flight 0" in get(gateway.port, "/metrics").body.decode(), "the last to end")
    count = accepted(gateway)
    ingester = Ingester(valkey)
    events = ingester.until(count)
    ingester.run()
    assert len(ingester.events) == count == len({seen.header("x-request-id") for seen in engine.seen})
    check(load, engine, events)
    assert {e.outcome for e in events} == {Outcome.OK, Outcome.CLIENT_CLOSED}


def test_a_killed_gateway_loses_and_doubles_nothing(
    stage: tuple[GatewayProcess, World, redis.Redis], engine: Engine
) -> None:
    gateway, world, valkey = stage
    ingester = Ingester(valkey)
    load = Load(gateway.port, world.token)
    for n in range(1, 5):
        wait_for(lambda n=n: len(engine.seen) > 40 * n, "load")
        gateway.kill()
        ingester.run()
        gateway.start()
    wait_for(lambda: len(engine.seen) > 200, "load")
    load.end()
    wait_for(lambda: "in_flight 0" in get(gateway.port, "/metrics").body.decode(), "the last to end")
    assert gateway.stop() == 0
    gateway.start()
    asked = {seen.header("x-request-id") for seen in engine.seen}
    events = ingester.until(len(asked))
    wait_for(lambda: _all_acknowledged(gateway, ingester), "everything to be acknowledged")
    check(load, engine, list(ingester.events.values()))
    # A request accepted just before the kill may not have reached the engine: it is an event without tokens all the same.
    extra = [e for e in ingester.events.values() if "req_" + e.event_id.replace("-", "") not in asked]
    assert all(e.completion_tokens == 0 for e in extra)
    assert any(e.outcome is Outcome.INTERRUPTED for e in events)


def _all_acknowledged(gateway: GatewayProcess, ingester: Ingester) -> bool:
    ingester.run()
    return "spool_pending 0\n" in get(gateway.port, "/metrics").body.decode()


def test_a_killed_valkey_stops_nobody_and_loses_nothing(
    stage: tuple[GatewayProcess, World, redis.Redis], engine: Engine, own_valkey: Valkey
) -> None:
    gateway, world, valkey = stage
    ingester = Ingester(valkey)
    load = Load(gateway.port, world.token)
    wait_for(lambda: len(engine.seen) > 40, "load")
    ingester.run()
    assert own_valkey.process is not None
    own_valkey.process.kill()
    own_valkey.process.wait()
    before = len(load.finished)
    wait_for(lambda: len(load.finished) > before + 40, "requests served without Valkey")
    own_valkey.start(gateway.folder / "valkey.log")
    wait_for(lambda: len(engine.seen) > 180, "load")
    load.end()
    wait_for(lambda: "in_flight 0" in get(gateway.port, "/metrics").body.decode(), "the last to end")
    count = accepted(gateway)
    ingester.until(count)
    wait_for(lambda: _all_acknowledged(gateway, ingester), "everything to be acknowledged")
    assert len(ingester.events) == count
    check(load, engine, list(ingester.events.values()))


def test_what_valkey_lost_is_sent_again(stage: tuple[GatewayProcess, World, redis.Redis]) -> None:
    gateway, world, valkey = stage
    for _ in range(3):
        assert post(gateway.port, CHAT, chat(max_tokens=2), world.token).status == 200
    wait_for(lambda: valkey.xlen(USAGE_STREAM), "the batch")
    valkey.delete(USAGE_STREAM)
    ingester = Ingester(valkey)
    assert len(ingester.until(3)) == 3
    valkey.flushall()
    world.publish(valkey)
    ingester.run()
    assert ingester.position == 3
    assert int(valkey.hget(USAGE_POSITION_KEY, NAME) or 0) == 3
    assert post(gateway.port, CHAT, chat(max_tokens=2), world.token).status == 200
    assert len(ingester.until(4)) == 4
    assert ingester.position == 4


def test_an_ingester_that_went_back_is_caught_up(stage: tuple[GatewayProcess, World, redis.Redis]) -> None:
    """PostgreSQL restored from a backup, or new: what the spool still has is sent from where it says."""
    gateway, world, valkey = stage
    first = Ingester(valkey)
    for _ in range(2):
        post(gateway.port, CHAT, chat(max_tokens=1), world.token)
    first.until(2)
    post(gateway.port, CHAT, chat(max_tokens=1), world.token)
    first.until(3)
    fresh = Ingester(valkey)
    assert len(fresh.until(3)) == 3
    assert fresh.position == 3


def test_batches_are_bounded_and_tell_their_positions(
    stage: tuple[GatewayProcess, World, redis.Redis], engine: Engine
) -> None:
    import msgspec

    from berth_gateway.contract import UsageBatch

    gateway, world, valkey = stage
    engine.script = lambda seen, talk: talk.send(
        HEAD + b"".join(b"%x\r\n%b\r\n" % (len(e), e) for e in chat_events(["a"])) + b"0\r\n\r\n"
    )
    threads = [
        threading.Thread(target=lambda: [post(gateway.port, CHAT, chat(), world.token) for _ in range(60)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    batches: list[UsageBatch] = []

    def whole() -> bool:
        batches[:] = [msgspec.msgpack.decode(f[b"batch"], type=UsageBatch) for _, f in valkey.xrange(USAGE_STREAM)]
        return bool(batches) and batches[-1].end == 240

    wait_for(whole, "240 events")
    assert [b.start for b in batches] == [0, *(b.end for b in batches[:-1])]
