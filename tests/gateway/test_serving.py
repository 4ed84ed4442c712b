"""The whole gateway over real sockets: surface, browsers, streams, pressure, publishing."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

from berth.host.valkey import Valkey
from berth_gateway.contract import Outcome, SignedSnapshot
from tests.gateway.harness import (
    HEAD,
    PATIENCE,
    Engine,
    GatewayProcess,
    Ingester,
    Seen,
    Talk,
    World,
    chat,
    chat_chunk,
    chat_events,
    event,
    get,
    post,
    raw_post,
    request,
    store,
    talk,
    timings,
    wait_for,
)  # fmt: skip

CHAT = "/v1/chat/completions"


def piece(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


# --- the surface


def test_models_are_listed_and_found_by_both_spellings(gateway: GatewayProcess, world: World) -> None:
    wanted = {"id": "acme/model", "object": "model", "created": 1_700_000_000, "owned_by": "acme"}
    assert get(gateway.port, "/v1/models", world.token).json == {"object": "list", "data": [wanted]}
    assert get(gateway.port, "/v1/models/", world.token).json["data"] == [wanted]
    for path in ("/v1/models/acme/model", "/v1/models/acme%2Fmodel", "/v1/models/acme%2fmodel?x=1"):
        assert get(gateway.port, path, world.token).json == wanted
    assert get(gateway.port, "/v1/models/acme%252Fmodel", world.token).status == 404
    head = request(gateway.port, "HEAD", "/v1/models", None, world.token)
    assert (head.status, head.body) == (200, b"")
    assert int(head.headers["content-length"]) == len(get(gateway.port, "/v1/models", world.token).body)


NOT_SERVED = [
    "/", "/v1", "/v1/", "/slots", "/props", "/tokenize", "/detokenize", "/sleep", "/wake_up", "/docs", "/openapi.json", "/health",
    "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/stream", "/v1/batches", "/v1/files", "/v1/fine_tuning/jobs", "/invocations",
    "/pause", "/update_weights", "/collective_rpc", "/api/create", "/api/push", "/api/generate", "/completion", "/infill",
    "/lora-adapters", "/v1/chat/completions/input_tokens", "/v1/chat/completions/../../slots", "/v1/%63ompletions",
    "/v1/chat%2Fcompletions", "/V1/chat/completions", "/v1/completions;x", "/v1//completions", "/version", "/ping",
]  # fmt: skip


@pytest.mark.threat("E1")
def test_whatever_is_not_listed_is_404(gateway: GatewayProcess, world: World, engine: Engine) -> None:
    for path in NOT_SERVED:
        for method in ("GET", "POST"):
            answer = request(gateway.port, method, path, json.dumps(chat()).encode(), world.token)
            assert (answer.status, answer.code) == (404, "unknown_url"), path
            assert answer.headers["x-request-id"].startswith("req_")
    assert engine.seen == []


def test_usual_mistakes_in_the_base_url_get_a_hint(gateway: GatewayProcess) -> None:
    for path, hint in (
        ("/v1/v1/chat/completions", "twice"),
        ("/chat/completions", "/v1 is missing"),
        ("/models", "/v1 is missing"),
        ("//v1/models", "two slashes"),
    ):
        answer = get(gateway.port, path)
        assert answer.status == 404
        assert hint in answer.error["message"]


def test_wrong_methods_say_which_are_right(gateway: GatewayProcess, world: World) -> None:
    for method, path, allow in (
        ("GET", CHAT, "POST"),
        ("DELETE", "/v1/models/acme/model", "GET, HEAD"),
        ("PUT", "/healthz", "GET, HEAD"),
    ):
        answer = request(gateway.port, method, path, None, world.token)
        assert (answer.status, answer.code, answer.headers["allow"]) == (405, "method_not_allowed", allow)


def test_queries_slashes_and_absolute_urls_lead_to_the_same_place(gateway: GatewayProcess, world: World) -> None:
    for path in (CHAT + "?beta=true", CHAT + "/", f"http://anything{CHAT}"):
        assert post(gateway.port, path, chat(), world.token).status == 200


# --- browsers


def test_browsers_of_a_listed_origin_may_call_and_read_errors(gateway: GatewayProcess, world: World) -> None:
    origin = "https://app.example"
    flight = {
        "Origin": origin,
        "Access_Control_Request_Method": "POST",
        "Access_Control_Request_Headers": "authorization",
    }
    answer = request(gateway.port, "OPTIONS", CHAT, None, None, **flight)
    assert (answer.status, answer.body) == (204, b"")
    assert answer.headers["access-control-allow-origin"] == origin
    assert "authorization" in answer.headers["access-control-allow-headers"]
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert answer.headers["access-control-max-age"] == "600"
    assert "access-control-allow-credentials" not in answer.headers
    for got in (
        post(gateway.port, CHAT, chat(), world.token, Origin=origin),
        post(gateway.port, CHAT, chat(stream=True), world.token, Origin=origin),
        post(gateway.port, CHAT, chat(n=5), world.token, Origin=origin),
        post(gateway.port, CHAT, chat(), "wrong-key-wrong-key", Origin=origin),
        get(gateway.port, "/nowhere", Origin=origin),
    ):
        assert got.headers["access-control-allow-origin"] == origin
        assert "x-request-id" in got.headers["access-control-expose-headers"]
        assert got.headers["vary"] == "Origin"


@pytest.mark.threat("G7")
def test_other_origins_are_not_echoed(gateway: GatewayProcess, world: World) -> None:
    own = "https://rival.example"
    for origin in ("https://evil.example", "null", "https://app.example.evil", "HTTPS://APP.EXAMPLE", own):
        answer = post(gateway.port, CHAT, chat(), world.token, Origin=origin)
        assert answer.status == 200
        assert "access-control-allow-origin" not in answer.headers, "another organisation's list does not count either"
        if origin != own:
            flight = request(
                gateway.port, "OPTIONS", CHAT, None, None, Origin=origin, Access_Control_Request_Method="POST"
            )
            assert flight.status == 405
            assert "access-control-allow-origin" not in flight.headers


# --- streams over real sockets


def test_pieces_arrive_as_they_are_produced(gateway: GatewayProcess, world: World, engine: Engine) -> None:
    steps = [threading.Event() for _ in range(6)]

    def stepwise(seen: Seen, talk_: Talk) -> None:
        events = chat_events(["a", "b", "c"])
        talk_.send(HEAD + piece(events[0]))
        for step, data in zip(steps, events[1:], strict=True):
            step.wait(PATIENCE)
            talk_.send(piece(data))
        talk_.send(b"0\r\n\r\n")

    engine.script = stepwise
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=PATIENCE) as sock:
        sock.sendall(raw_post(CHAT, json.dumps(chat(stream=True)).encode(), world.token))
        got = b""
        for step, mark in zip(steps, [b'"a"', b'"b"', b'"c"', b'"stop"', b"", b"[DONE]"], strict=True):
            step.set()
            while mark not in got:
                got += sock.recv(65536)


def test_a_client_that_leaves_stops_the_engine_at_once(
    gateway: GatewayProcess, world: World, engine: Engine, valkey: redis.Redis
) -> None:
    stopped = threading.Event()

    def endless(seen: Seen, talk_: Talk) -> None:
        talk_.send(HEAD)
        try:
            for n in range(1, 100_000):
                talk_.send(piece(event(chat_chunk({"content": "x"}, **timings(9, n)))))
                time.sleep(0.001)
        except OSError:
            stopped.set()
            raise

    engine.script = endless
    for stream in (True, False):
        stopped.clear()
        with socket.create_connection(("127.0.0.1", gateway.port), timeout=PATIENCE) as sock:
            sock.sendall(raw_post(CHAT, json.dumps(chat(stream=stream)).encode(), world.token))
            if stream:
                sock.recv(1000)
            else:
                time.sleep(0.1)
        assert stopped.wait(PATIENCE)
    events = Ingester(valkey).until(2)
    assert [e.outcome for e in events] == [Outcome.CLIENT_CLOSED] * 2
    assert all(e.completion_tokens > 0 and e.prompt_tokens == 9 and e.status == 499 for e in events)


def test_a_slow_reader_costs_no_memory(gateway: GatewayProcess, world: World, engine: Engine) -> None:
    sent = 0
    block = piece(event(chat_chunk({"content": "y" * 4000}, **timings(9, 1))))

    def flood(seen: Seen, talk_: Talk) -> None:
        nonlocal sent
        talk_.send(HEAD)
        talk_.sock.settimeout(1.0)
        try:
            while sent < 200_000_000:
                talk_.send(block)
                sent += len(block)
        except TimeoutError:
            talk_.close()

    engine.script = flood
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=PATIENCE) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        sock.sendall(raw_post(CHAT, json.dumps(chat(stream=True)).encode(), world.token))
        sock.recv(100)
        wait_for(lambda: _settled(lambda: sent), "the engine to be stopped")
        assert sent < 60_000_000
        assert get(gateway.port, "/v1/models", world.token).status == 200, "others are served meanwhile"


def _settled(read: Any) -> bool:
    before = read()
    time.sleep(0.7)
    return bool(before) and read() == before


def test_http_1_0_and_connection_close(gateway: GatewayProcess, world: World) -> None:
    for stream, version in ((True, "1.0"), (False, "1.0"), (True, "1.1"), (False, "1.1")):
        more = "" if version == "1.0" else "Connection: close\r\n"
        data = raw_post(CHAT, json.dumps(chat(stream=stream)).encode(), world.token, more, version)
        got = talk(gateway.port, data)
        assert got.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"connection: close\r\n" in got
        assert b"w4 " in got
        assert (b"transfer-encoding" in got) == (stream and version == "1.1")


def test_the_body_of_a_bad_key_is_not_read(gateway: GatewayProcess) -> None:
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=PATIENCE) as sock:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer wrong-key-wrong\r\n"
        sock.sendall(head + b"Content-Length: 30000000\r\n\r\n")
        assert sock.recv(65536).startswith(b"HTTP/1.1 401")


@pytest.mark.threat("G1")
def test_garbage_never_kills_the_gateway(gateway: GatewayProcess, world: World, engine: Engine) -> None:
    chance = random.Random(7)
    good = raw_post(CHAT, json.dumps(chat()).encode(), world.token)
    for _ in range(150):
        data = bytearray(good)
        for _ in range(chance.randint(1, 6)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        with socket.create_connection(("127.0.0.1", gateway.port), timeout=PATIENCE) as sock:
            sock.sendall(bytes(data))
            sock.shutdown(socket.SHUT_WR)
            sock.recv(100)
    assert post(gateway.port, CHAT, chat(), world.token).status == 200
    assert all(
        set(seen.json) <= {"model", "messages", "stream", "stream_options", "max_tokens", "timings_per_token"}
        for seen in engine.seen
    )


# --- publishing


@pytest.mark.threat("K4")
def test_a_revoked_key_stops_and_stays_dead_under_load_and_over_a_restart(
    gateway: GatewayProcess, world: World, valkey: redis.Redis
) -> None:
    old = world.signed()
    stop = threading.Event()
    seen: list[tuple[float, int]] = []

    def load() -> None:
        while not stop.is_set():
            seen.append((time.monotonic(), get(gateway.port, "/v1/models", world.token).status))

    workers = [threading.Thread(target=load) for _ in range(3)]
    for worker in workers:
        worker.start()
    wait_for(lambda: len(seen) > 50, "load")
    world.keys.pop(0)
    world.next().publish(valkey)
    wait_for(lambda: seen[-1][1] == 401, "the revocation")
    for _ in range(5):  # late and doubled messages
        store(valkey, world.epoch, 1, old)
        valkey.publish("berth:snapshot:version", 1)
        world.publish(valkey)
        store(valkey, world.epoch, 1, old)
        time.sleep(0.05)
    count = len(seen)
    wait_for(lambda: len(seen) > count + 50, "more load")
    stop.set()
    for worker in workers:
        worker.join()
    statuses = [status for _, status in seen]
    assert set(statuses[statuses.index(401) :]) == {401}
    gateway.kill()
    gateway.environ["REDIS_URL"] = "redis://127.0.0.1:1/0"
    gateway.start()
    assert get(gateway.port, "/v1/models", world.token).status == 401
    assert get(gateway.port, "/v1/models", world.other_token).status == 200


@pytest.mark.threat("K5")
def test_whoever_can_write_to_valkey_cannot_let_himself_in(
    gateway: GatewayProcess, world: World, valkey: redis.Redis
) -> None:
    attacker = World(epoch=world.epoch, version=2)
    attacker.route("rival/model", 9)
    altered = msgspec.msgpack.decode(world.signed(), type=SignedSnapshot)
    altered = SignedSnapshot(altered.payload.replace(b"acme/model", b"acme/modem"), altered.signature)
    for version, packed in ((2, attacker.signed()), (3, msgspec.msgpack.encode(altered)), (4, b"junk")):
        store(valkey, world.epoch, version, packed)
        wait_for(lambda wanted=version - 1: _refused_snapshots(gateway) >= wanted, "the refusal")
        assert get(gateway.port, "/v1/models", attacker.token).json["data"][0]["id"] == "acme/model"
    assert get(gateway.port, "/readyz").status == 200
    world.next().version = 9
    world.publish(valkey)
    wait_for(lambda: "snapshot_version 9" in get(gateway.port, "/metrics").body.decode(), "the good one")


def _refused_snapshots(gateway: GatewayProcess) -> int:
    lines = [
        x
        for x in get(gateway.port, "/metrics").body.decode().splitlines()
        if x.startswith("berth_gateway_snapshots_total")
    ]
    return sum(int(line.split()[-1]) for line in lines if "bad_signature" in line or "unreadable" in line)


def test_without_valkey_it_starts_from_its_copy_and_serves(gateway: GatewayProcess, world: World) -> None:
    gateway.kill()
    gateway.environ["REDIS_URL"] = "redis://127.0.0.1:1/0"
    gateway.start()
    assert post(gateway.port, CHAT, chat(), world.token).status == 200
    gateway.kill()
    gateway.environ["BERTH_SNAPSHOT_MAX_AGE_SECONDS"] = "0.5"
    time.sleep(0.6)
    gateway.start("/healthz")
    answer = post(gateway.port, CHAT, chat(), world.token)
    assert (answer.status, answer.code) == (503, "service_unavailable")


def test_without_any_snapshot_nobody_is_told_that_their_key_is_bad(
    tmp_path: Path, valkey_server: Valkey, valkey: redis.Redis
) -> None:
    world = World()
    gateway = GatewayProcess(tmp_path, world, valkey_server.url).start("/healthz")
    try:
        assert get(gateway.port, "/v1/models", world.token).status == 503
        world.publish(valkey)
        wait_for(lambda: get(gateway.port, "/v1/models", world.token).status == 200, "the first snapshot")
    finally:
        gateway.kill()


def test_new_replicas_and_states_take_effect(
    gateway: GatewayProcess, world: World, engine: Engine, valkey: redis.Redis
) -> None:
    second = Engine()
    world.routes.clear()
    world.route("acme/model", second.port)
    world.next().publish(valkey)
    wait_for(lambda: "snapshot_version 2" in get(gateway.port, "/metrics").body.decode(), "the new version")
    before = len(engine.seen)
    assert post(gateway.port, CHAT, chat(), world.token).status == 200
    assert (len(engine.seen) - before, len(second.seen)) == (0, 1)
    second.stop()
