"""Inference records in the gateway: only where the snapshot says so, sealed before they leave, and never in a request's way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
import redis
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from berth.host.valkey import Valkey
from berth_gateway import recording
from berth_gateway.contract import (
    MOST_RECORDS,
    RECORD_STREAM,
    RecordContent,
    Recording,
    SealedRecord,
    record_mac,
    usage_key,
)
from berth_gateway.recording import Captured, sealed
from tests.gateway.boxes import opened
from tests.gateway.core import Core, answers, whole_answer
from tests.gateway.harness import (
    HEAD,
    MASTER,
    NAME,
    Engine,
    GatewayProcess,
    Ingester,
    World,
    chat_events,
    get,
    plain,
    post,
)
from tests.runtime.agents import eventually

PROMPT, ANSWER = "BC-PROMPTCANARY7Q2", "BC-ANSWERCANARYX9Z"


class Sealed:
    """A world whose first organisation has its requests kept."""

    def __init__(self, *ports: int, **wish: Any) -> None:
        self.private = X25519PrivateKey.generate()
        self.wish = Recording(str(uuid4()), self.private.public_key().public_bytes_raw(), **wish)
        self.world = World()
        self.world.route("acme/model", *(ports or (7001,)))
        self.world.orgs[0] = msgspec.structs.replace(self.world.orgs[0], recording=self.wish)


def core_of(folder: Path, kept: Sealed) -> Core:
    made = Core(folder, kept.world)
    made.gateway.records.ships = True
    return made


@pytest.fixture
def kept() -> Sealed:
    return Sealed()


@pytest.fixture
def core(tmp_path: Path, kept: Sealed) -> Iterator[Core]:
    made = core_of(tmp_path, kept)
    yield made
    made.close()


def body(**fields: Any) -> bytes:
    return json.dumps(
        {"model": "acme/model", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 9, **fields}
    ).encode()


def captured(core: Core) -> list[RecordContent]:
    return [each.content for each in core.gateway.records.take(100)]


def dropped(core: Core) -> dict[str, float]:
    counter = core.gateway.telemetry.records
    return {reason: n for reason in ("rate", "memory") if (n := counter.value(reason))}


def test_nothing_is_kept_unless_the_organisation_says_so(tmp_path: Path, kept: Sealed) -> None:
    world = kept.world
    off = {
        "organisation": lambda: world.orgs.__setitem__(0, msgspec.structs.replace(world.orgs[0], recording=None)),
        "key": lambda: world.keys.__setitem__(0, msgspec.structs.replace(world.keys[0], recorded=False)),
        "deployment": lambda: world.routes.__setitem__(0, msgspec.structs.replace(world.routes[0], recorded=False)),
    }
    orgs, keys, routes = list(world.orgs), list(world.keys), list(world.routes)
    for which, turn_off in off.items():
        world.orgs, world.keys, world.routes = list(orgs), list(keys), list(routes)
        turn_off()
        (folder := tmp_path / which).mkdir()
        core = core_of(folder, kept)
        core.ask(body())
        core.engine.send(whole_answer([ANSWER]))
        assert (core.gateway.records.open, captured(core), core.gateway.records.held) == ({}, [], 0)
        core.close()


@pytest.mark.parametrize("stream", [False, True])
def test_request_and_answer_are_what_the_client_sent_and_got(core: Core, stream: bool) -> None:
    _, wire = core.ask(body(stream=stream))
    core.engine.send(whole_answer([ANSWER, " and more"]))
    (answer,) = answers(wire.out)
    (content,) = captured(core)
    assert content.request == body(stream=stream)
    assert content.response == answer.body and ANSWER.encode() in content.response
    assert (content.request_cut, content.response_cut, content.endpoint) == (False, False, "chat/completions")
    assert core.gateway.records.held == 0 and core.gateway.records.open == {}


def test_every_ending_is_kept_and_what_was_never_accepted_is_not(core: Core) -> None:
    core.ask(body())
    core.engine.send(plain(400, b'{"error":{"code":400,"message":"x","type":"invalid_request_error"}}'))
    client, _ = core.ask(body(stream=True))
    core.engine.send(HEAD + b"".join(b"%x\r\n%b\r\n" % (len(e), e) for e in chat_events(["a", "b", "c"])[:3]))
    client.lost()
    core.ask(body(n=2))
    core.gateway.cut_all()
    core.refuse_connections = True
    core.gateway.router.keep_only([])
    core.ask(body())
    kept = captured(core)
    assert [b'"error"' in each.response for each in kept] == [True, False, True]
    assert b'"a"' in kept[1].response and b"[DONE]" not in kept[1].response
    assert core.gateway.records.open == {} and core.gateway.records.held == 0


def test_what_is_long_is_cut_and_said_to_be(tmp_path: Path) -> None:
    kept = Sealed(most_bytes=300)
    core = core_of(tmp_path, kept)
    core.ask(body(stream=True, user="u" * 500))
    core.engine.send(whole_answer([f"word{n} " for n in range(50)]))
    (content,) = captured(core)
    assert (len(content.request), len(content.response)) == (300, 300)
    assert content.request_cut and content.response_cut
    core.close()


def test_a_rate_and_a_bound_on_memory_drop_records_and_never_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Sealed(per_minute=2)
    core = core_of(tmp_path, kept)

    def serve() -> None:
        _, wire = core.ask(body())
        core.engine.send(whole_answer([ANSWER]))
        assert answers(wire.out)[0].status == 200

    for _ in range(3):
        serve()
    assert (len(captured(core)), dropped(core)) == (2, {"rate": 1})
    core.pass_time(61)
    monkeypatch.setattr(recording, "MOST_BYTES", 200)
    serve()
    assert (captured(core), dropped(core)) == ([], {"rate": 1, "memory": 1})
    assert core.gateway.records.held == 0 and len(core.events) == 4
    core.close()


def test_a_box_opens_for_its_key_and_its_event_only(core: Core, kept: Sealed) -> None:
    core.ask(body())
    core.engine.send(whole_answer([ANSWER]))
    (found,) = core.gateway.records.take(1)
    record = sealed(found, "g", b"k" * 32)
    assert opened(record, kept.private) == found.content
    assert record.mac == record_mac(b"k" * 32, record)
    assert PROMPT.encode() not in record.box and ANSWER.encode() not in record.box
    with pytest.raises(InvalidTag):
        opened(record, X25519PrivateKey.generate())
    for wrong in (
        {"event_id": str(uuid4())},
        {"org_id": str(uuid4())},
        {"box": record.box[:-1] + bytes([record.box[-1] ^ 1])},
    ):
        altered = msgspec.structs.replace(record, **wrong)
        assert altered.mac != record_mac(b"k" * 32, altered)
        with pytest.raises(InvalidTag):
            opened(altered, kept.private)
    again = sealed(found, "g", b"k" * 32)
    assert again.box != record.box  # a key of its own each time


def test_a_key_that_is_none_seals_nothing(core: Core, kept: Sealed) -> None:
    core.ask(body())
    core.engine.send(whole_answer([ANSWER]))
    (found,) = core.gateway.records.take(1)
    broken = Captured(found.facts, msgspec.structs.replace(found.wish, public_key=b"\0" * 32), found.content)
    with pytest.raises(ValueError):
        sealed(broken, "g", b"k" * 32)


# --- the process


def records_in(valkey: redis.Redis) -> list[SealedRecord]:
    entries: Any = valkey.xrange(RECORD_STREAM)
    return [msgspec.msgpack.decode(fields[b"record"], type=SealedRecord) for _, fields in entries]


@pytest.mark.parametrize("on", [True, False])
def test_only_sealed_bytes_leave_the_process(
    on: bool, tmp_path: Path, engine: Engine, valkey: redis.Redis, valkey_server: Valkey
) -> None:
    """The canaries are searched in everything the gateway writes: its folder, its log, all of Valkey, its metrics."""
    kept = Sealed(engine.port)
    if not on:
        kept.world.orgs[0] = msgspec.structs.replace(kept.world.orgs[0], recording=None)
    kept.world.publish(valkey)
    engine.script = lambda seen, talk: talk.send(whole_answer([ANSWER]))
    process = GatewayProcess(tmp_path, kept.world, valkey_server.url).start()
    try:
        for stream in (False, True):
            answer = post(process.port, "/v1/chat/completions", json.loads(body(stream=stream)), kept.world.token)
            assert ANSWER.encode() in answer.body
        events = Ingester(valkey).until(2)
        if on:
            eventually(lambda: len(records_in(valkey)) == 2, "two records")
    finally:
        process.kill()
    process.check_log()
    found = records_in(valkey)
    if on:
        key = usage_key(MASTER, NAME)
        assert all(record.mac == record_mac(key, record) for record in found)
        assert {record.event_id for record in found} == {event.event_id for event in events}
        assert all(PROMPT.encode() in opened(record, kept.private).request for record in found)
        assert all(ANSWER.encode() in opened(record, kept.private).response for record in found)
    else:
        assert found == []
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    dumped = b"".join(bytes(valkey.dump(name) or b"") for name in valkey.scan_iter())  # type: ignore[arg-type]
    streams: Any = valkey.xrange(RECORD_STREAM)
    assert len(written) > 1000 and len(dumped) > 100
    for canary in (PROMPT, ANSWER):
        for sink in (written, dumped, repr(streams).encode()):
            assert canary.encode() not in sink and canary[3:15].encode() not in sink


def test_a_full_stream_drops_and_counts(
    tmp_path: Path, engine: Engine, valkey: redis.Redis, valkey_server: Valkey
) -> None:
    kept = Sealed(engine.port)
    kept.world.publish(valkey)
    with valkey.pipeline() as pipe:
        for _ in range(MOST_RECORDS):
            pipe.xadd(RECORD_STREAM, {b"record": b"x"})
        pipe.execute()
    process = GatewayProcess(tmp_path, kept.world, valkey_server.url).start()
    try:
        answer = post(process.port, "/v1/chat/completions", json.loads(body()), kept.world.token)
        assert answer.status == 200
        eventually(lambda: 'berth_gateway_records_total{outcome="full"} 1' in metrics(process), "a drop to be counted")
    finally:
        process.kill()
    assert valkey.xlen(RECORD_STREAM) == MOST_RECORDS


def metrics(process: GatewayProcess) -> str:
    return get(process.port, "/metrics").body.decode()
