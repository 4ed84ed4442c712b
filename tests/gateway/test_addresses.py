"""Keys that may be used from certain networks only, and what a proxy's word is worth."""

from __future__ import annotations

import json
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth_gateway.addresses import admits, client_address, read_address
from berth_gateway.client import Client
from berth_gateway.config import Config, ConfigError
from berth_gateway.snapshot_file import SnapshotFileError, parse
from tests.gateway.core import Core, Wire, answers, whole_answer
from tests.gateway.harness import Answer, World, raw_post

PROXIES = (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))
BODY = json.dumps({"model": "acme/model", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}).encode()


@pytest.mark.threat("G11")
@pytest.mark.parametrize(
    ("peer", "forwarded", "found"),
    [
        ("198.51.100.7", [], "198.51.100.7"),
        ("198.51.100.7", [b"203.0.113.9"], "198.51.100.7"),  # no proxy of ours says so
        ("10.0.0.1", [b"203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", [b"192.0.2.1, 203.0.113.9"], "203.0.113.9"),  # what stands further left anybody may have written
        ("10.0.0.1", [b"192.0.2.1", b"203.0.113.9, 10.0.0.2"], "203.0.113.9"),
        ("10.0.0.1", [b"10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", [b"203.0.113.9, nonsense"], None),
        ("10.0.0.1", [b"203.0.113.9:4711"], "203.0.113.9"),
        ("fd00::1", [b"[2001:db8::5]:443"], "2001:db8::5"),
        ("::ffff:10.0.0.1", [b"::ffff:203.0.113.9"], "203.0.113.9"),
        ("fe80::1%eth0", [], "fe80::1"),
        (None, [b"203.0.113.9"], None),
    ],
)
def test_the_last_address_that_is_no_proxy_of_ours_counts(
    peer: str | None, forwarded: list[bytes], found: str | None
) -> None:
    address = client_address(peer, forwarded, PROXIES)
    assert (None if address is None else str(address)) == found


@pytest.mark.threat("G11")
@given(st.lists(st.binary(max_size=80), max_size=4))
def test_from_outside_no_header_moves_the_address(forwarded: list[bytes]) -> None:
    for proxies in ((), PROXIES):
        assert str(client_address("198.51.100.7", forwarded, proxies)) == "198.51.100.7"
    client_address("10.0.0.1", forwarded, PROXIES)  # never raises


def test_networks_of_both_families() -> None:
    allowed = ("203.0.113.0/24", "2001:db8::/32", "192.0.2.7/32")
    for inside in ("203.0.113.255", "2001:db8:ffff::1", "192.0.2.7", "::ffff:203.0.113.1"):
        assert admits(allowed, read_address(inside))
    for outside in ("203.0.114.0", "2001:db9::1", "192.0.2.8"):
        assert not admits(allowed, read_address(outside))
    assert admits((), None)
    assert not admits(allowed, None)
    assert not admits(("what is this",), read_address("203.0.113.1"))  # unreadable: nobody, never everybody


@pytest.fixture
def world() -> World:
    made = World()
    made.route("acme/model", 7001)
    made.keys[0] = msgspec.structs.replace(made.keys[0], networks=("203.0.113.0/24", "2001:db8::/32"))
    return made


def asked(core: Core, peer: str | None, *, path: str = "/v1/chat/completions", more: str = "") -> tuple[Client, Wire]:
    client, wire = Client(core.gateway, peer=peer), Wire()
    client.opened(wire)
    client.received(raw_post(path, BODY, core.world.token, more))
    return client, wire


def refused(core: Core, peer: str | None, **how: Any) -> Answer:
    (answer,) = answers(asked(core, peer, **how)[1].out)
    assert core.dialled == [] and core.events == []
    return answer


@pytest.mark.threat("G11")
def test_elsewhere_a_key_is_403_and_a_forged_header_does_not_help(tmp_path: Path, world: World) -> None:
    core = Core(tmp_path, world)
    for peer, more in (("198.51.100.7", ""), ("198.51.100.7", "X-Forwarded-For: 203.0.113.5\r\n"), (None, "")):
        answer = refused(core, peer, more=more)
        assert (answer.status, answer.code, answer.error["type"]) == (403, "ip_not_authorized", "invalid_request_error")
        assert answer.headers["x-should-retry"] == "false"
    anthropic = refused(core, "198.51.100.7", path="/v1/messages")
    assert (anthropic.status, anthropic.error["type"]) == (403, "permission_error")
    listed, wire = Client(core.gateway, peer="198.51.100.7"), Wire()
    listed.opened(wire)
    listed.received(f"GET /v1/models HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {world.token}\r\n\r\n".encode())
    assert answers(wire.out)[0].status == 403
    assert not any(b"198.51.100.7" in line for line in core.log.written)
    core.close()


def test_from_its_networks_it_may_call_and_others_from_anywhere(tmp_path: Path, world: World) -> None:
    core = Core(tmp_path, world)
    for peer in ("203.0.113.5", "2001:db8::9", "::ffff:203.0.113.6"):
        _, wire = asked(core, peer)
        core.engine.send(whole_answer(["a"]))
        assert answers(wire.out)[0].status == 200
    client, wire = Client(core.gateway, peer="198.51.100.7"), Wire()
    client.opened(wire)
    client.received(raw_post("/v1/chat/completions", BODY, world.other_token))
    assert answers(wire.out)[0].code == "model_not_found"
    core.close()


@pytest.mark.threat("G11")
def test_behind_a_trusted_proxy_its_word_counts(tmp_path: Path, world: World) -> None:
    core = Core(tmp_path, world, BERTH_GATEWAY_TRUSTED_PROXIES="10.0.0.0/8, fd00::/8")
    assert refused(core, "10.0.0.1").code == "ip_not_authorized"
    assert refused(core, "10.0.0.1", more="X-Forwarded-For: 203.0.113.5, 198.51.100.7\r\n").code == "ip_not_authorized"
    _, wire = asked(core, "10.0.0.1", more="X-Forwarded-For: 198.51.100.7, 203.0.113.5\r\n")
    core.engine.send(whole_answer(["a"]))
    assert answers(wire.out)[0].status == 200
    core.close()


def test_a_narrower_list_holds_for_a_connection_that_stands(tmp_path: Path, world: World) -> None:
    core = Core(tmp_path, world)
    client, wire = asked(core, "203.0.113.5")
    core.engine.send(whole_answer(["a"]))
    world.keys[0] = msgspec.structs.replace(world.keys[0], networks=("192.0.2.0/24",))
    core.gateway.offer_snapshot(world.next().signed())
    client.received(raw_post("/v1/chat/completions", BODY, world.token))
    assert [answer.status for answer in answers(wire.out)] == [200, 403]
    core.close()


def test_wrong_settings_and_files_are_sentences() -> None:
    given_ = {
        "BERTH_GATEWAY_DIR": "/x",
        "REDIS_URL": "redis://h/0",
        "BERTH_SNAPSHOT_PUBLIC_KEY_FILE": "-",
        "BERTH_USAGE_KEY_FILE": "-",
    }
    with pytest.raises(ConfigError, match="BERTH_GATEWAY_TRUSTED_PROXIES must be networks"):
        Config.from_environ({**given_, "BERTH_GATEWAY_TRUSTED_PROXIES": "10.0.0.1/8"})
    file = {
        "organizations": [{"id": "o"}],
        "models": [],
        "keys": [{"id": "k", "organization": "o", "sha256": "0" * 64}],
    }
    file["keys"][0]["networks"] = ["203.0.113.0/24"]  # type: ignore[index]
    view = parse(json.dumps(file).encode(), version=1, issued_at=1)
    key = view.keys.get(b"\0" * 32)
    assert key is not None and key.networks == ("203.0.113.0/24",)
    file["keys"][0]["networks"] = ["somewhere"]  # type: ignore[index]
    with pytest.raises(SnapshotFileError, match="network"):
        parse(json.dumps(file).encode(), version=1, issued_at=1)
