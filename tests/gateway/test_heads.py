"""A new connection's first head may be one that other connections sent: that saves reading it, and must save no judgement."""

from __future__ import annotations

import json
from ipaddress import ip_network
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth_gateway.client import Client
from berth_gateway.head import RequestHead, read_request
from berth_gateway.heads import MOST, SECONDS, Heads
from berth_gateway.repeat import Known
from tests.gateway.core import Core, Wire, answers, unpacked, whole_answer
from tests.gateway.harness import World, raw_post

BODY = json.dumps(
    {"model": "acme/model", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "stream": True}
).encode()
LONGER = json.dumps(
    {"model": "acme/model", "messages": [{"role": "user", "content": "hi" * 500}], "max_tokens": 3, "stream": True}
).encode()


def a_core(folder: Path) -> Core:
    world = World()
    world.route("acme/model", 7001, engine="vllm")
    core = Core(folder, world)
    core.gateway.gate.alone = True
    core.gateway.limits_changed()
    core.gateway.fast.look()
    return core


def call(core: Core, data: bytes, *, admin: bool = False, peer: str | None = None) -> tuple[Client, Wire]:
    client, wire = Client(core.gateway, admin=admin, peer=peer), Wire()
    client.opened(wire)
    client.received(data)
    return client, wire


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The bytes in which a head was read."""
    found: list[bytes] = []

    def watch(data: bytes, known: int = 0) -> RequestHead | None:
        found.append(data)
        return read_request(data, known)

    monkeypatch.setattr("berth_gateway.incoming.read_request", watch)
    return found


def post(core: Core, body: bytes = BODY, token: str | None = None) -> bytes:
    return raw_post("/v1/chat/completions", body, token or core.world.token)


def test_the_next_connection_need_not_have_its_head_read(tmp_path: Path, read: list[bytes]) -> None:
    core = a_core(tmp_path)
    _, wire = call(core, post(core))
    core.engine.send(whole_answer(["a"]))
    _, other = call(core, post(core))
    call(core, post(core, LONGER))  # the number of bytes is another
    assert len(read) == 1
    asked = core.asked
    assert json.loads(asked[0].body) == json.loads(asked[1].body)
    assert json.loads(asked[2].body)["messages"][0]["content"] == "hi" * 500
    for engine in core.dialled[-2:]:
        engine.send(whole_answer(["a"]))
    got, again = answers(wire.out)[0], answers(other.out)[0]
    assert (got.status, again.status) == (200, 200)
    assert got.body.count(b"data: ") == again.body.count(b"data: ")
    assert len(core.events) >= 2
    core.close()


@pytest.mark.threat("K4")
def test_a_key_that_was_revoked_is_not_taken_for_known(tmp_path: Path) -> None:
    core = a_core(tmp_path)
    call(core, post(core))
    core.world.keys = core.world.keys[1:]
    core.gateway.offer_snapshot(core.world.next().signed())
    _, wire = call(core, post(core))
    assert answers(wire.out)[0].status == 401
    core.close()


@pytest.mark.threat("K4")
def test_a_key_that_has_expired_is_not_taken_for_known(tmp_path: Path, read: list[bytes]) -> None:
    core = a_core(tmp_path)
    key = core.world.keys[0]
    core.world.keys[0] = msgspec.structs.replace(key, expires_at=int(core.gateway.wall()) + 10)
    core.gateway.offer_snapshot(core.world.next().signed())
    call(core, post(core))
    call(core, post(core))
    assert len(read) == 1
    core.clock += 20
    _, wire = call(core, post(core))
    assert answers(wire.out)[0].status == 401
    core.close()


@pytest.mark.threat("G11")
def test_a_key_for_some_addresses_is_judged_for_each_connection(tmp_path: Path) -> None:
    core = a_core(tmp_path)
    networks = (str(ip_network("192.0.2.0/24")),)
    core.world.keys[0] = msgspec.structs.replace(core.world.keys[0], networks=networks)
    core.gateway.offer_snapshot(core.world.next().signed())
    _, allowed = call(core, post(core), peer="192.0.2.1")
    _, refused = call(core, post(core), peer="198.51.100.1")
    core.engine.send(whole_answer(["a"]))
    assert answers(allowed.out)[0].status == 200
    assert answers(refused.out)[0].status == 403
    core.close()


def test_a_key_is_given_addresses_while_its_head_is_known(tmp_path: Path) -> None:
    core = a_core(tmp_path)
    call(core, post(core), peer="192.0.2.1")
    other, wire = call(core, post(core), peer="198.51.100.1")
    core.world.keys[0] = msgspec.structs.replace(core.world.keys[0], networks=("192.0.2.0/24",))
    core.gateway.offer_snapshot(core.world.next().signed())
    for engine in core.dialled:
        engine.send(whole_answer(["a"]))
    call(core, post(core), peer="192.0.2.1")
    other.received(post(core))
    assert [each.status for each in answers(wire.out)] == [200, 403]
    core.close()


def test_the_port_for_metrics_serves_nothing_else(tmp_path: Path) -> None:
    core = a_core(tmp_path)
    call(core, post(core))
    _, wire = call(core, post(core), admin=True)
    assert answers(wire.out)[0].status == 404
    core.close()


@pytest.mark.threat("G1")
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_changed_head_is_taken_for_the_known_one(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    core = a_core(tmp_path_factory.mktemp("heads"))
    try:
        call(core, post(core))
        known = post(core)
        end = known.index(b"\r\n\r\n") + 4
        at = data.draw(st.integers(0, end - 1))
        extra = data.draw(
            st.sampled_from([b"", b"x", b"\r\n", b" ", b"Content-Length: 5\r\n", b"\r\nContent-Length: 5\r\n"])
        )
        gone = data.draw(st.integers(0, 3))
        head = known[:at] + extra + known[min(at + gone, end) : end]
        found = core.gateway.fast.heads.find(head + known[end:], core.gateway.store.view, core.gateway.wall())
        again = None if found is None else found.again(head + known[end:])
        if again is not None:
            assert again == read_request(head + known[end:])
    finally:
        core.close()


def test_a_line_within_a_body_is_not_taken_for_the_heads(tmp_path: Path) -> None:
    core = a_core(tmp_path)
    call(core, post(core))
    known = post(core)
    head, _, _ = known.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length")]
    _, wire = call(core, b"\r\n".join(lines) + b"\r\n\r\n" + known)
    assert answers(wire.out)[0].status == 400  # a request without a body, and behind it one that is well-formed
    core.close()


def test_few_are_kept_and_not_for_long(tmp_path: Path) -> None:
    core = a_core(tmp_path)
    client, _ = call(core, post(core))
    known = client._known
    assert known is not None
    heads = Heads()
    for n in range(MOST + 10):
        form = type(known.form)(known.form.before + b"%d" % n, known.form.behind)
        heads.keep(Known(form, known.head, known.place, known.caller, known.view))
    assert len(heads._known) == MOST
    heads.tidy(SECONDS)
    assert not heads._known
    core.close()


def test_the_first_of_a_burst_does_not_wait_for_the_last(tmp_path: Path) -> None:
    """Groups are put on record and sent on while others still come, and each request is on record before it is sent."""
    core = a_core(tmp_path)
    waiting: list[object] = []
    for _ in range(40):
        call(core, post(core))
    for engine in core.dialled:
        engine.send(whole_answer(["a"]))
    core.gateway.fast.soon = waiting.append
    spool, records = core.gateway.spool, []
    write = spool.write

    def watch(data: bytes, settled: int = 0) -> None:
        records.extend(event.event_id for _, event in unpacked(data))
        write(data, settled)

    spool.write = watch  # type: ignore[method-assign]
    asked = len(core.asked)
    for n in range(1, 41):
        call(core, post(core))
        sent = len(core.asked) - asked
        assert n - sent < 17
        assert sent <= len(records)
    assert len(core.asked) - asked >= 32
    core.gateway.fast.flush()
    assert len(core.asked) - asked == 40
    core.close()
