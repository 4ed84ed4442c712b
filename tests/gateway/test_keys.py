"""Who may call what: keys, snapshots, and what a gateway believes of either."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from berth_gateway.contract import OrgInfo, RouteState, SignedSnapshot
from berth_gateway.snapshot import SnapshotStore, Verdict, load_public_key
from tests.gateway.core import Core, answers, whole_answer
from tests.gateway.harness import Answer, World, chat, raw_post


def ask(core: Core, *lines: bytes, path: bytes = b"/v1/models", method: bytes = b"GET") -> Answer:
    client, wire = core.client()
    client.received(
        method + b" " + path + b" HTTP/1.1\r\nHost: a\r\n" + b"".join(line + b"\r\n" for line in lines) + b"\r\n"
    )
    found = answers(wire.out)
    client.lost()
    return found[0]


def bearer(token: str) -> bytes:
    return b"Authorization: Bearer " + token.encode()


# --- keys


def test_a_key_is_taken_from_either_header_and_any_case(core: Core) -> None:
    token = core.world.token.encode()
    for line in (
        b"Authorization: Bearer " + token,
        b"authorization: bearer " + token,
        b"AUTHORIZATION: BEARER  " + token,
        b"x-api-key: " + token,
    ):
        assert ask(core, line).status == 200
    assert ask(core, b"Authorization: Bearer " + token, b"x-api-key: " + token).status == 200


@pytest.mark.threat("K2")
@pytest.mark.parametrize(
    "lines",
    [
        (),
        (b"Authorization: Bearer",),
        (b"Authorization: Bearer ",),
        (b"Authorization: Basic dXNlcjpwYXNz",),
        (b"Authorization: Bearer ' OR '1'='1",),
        (b"Authorization: Bearer " + b"a" * 8000,),
        (b"Authorization: Bearer caf\xc3\xa9-caf\xe9-key",),
        (b"Authorization: Bearer bth_sk_" + b"a" * 42,),
        (b"Authorization: Bearer {{7*7}}${jndi:ldap://x}",),
        (b"Authorization: Bearer bth_sk_" + b"a" * 43, b"Authorization: Bearer bth_sk_" + b"a" * 43),
        (b"Authorization: Bearer bth_sk_" + b"a" * 43, b"x-api-key: bth_sk_" + b"b" * 43),
        (b"x-api-key: bth_sk_" + b"a" * 43, b"x-api-key: bth_sk_" + b"b" * 43),
        (b"Cookie: session=bth_sk_" + b"a" * 43,),
    ],
)  # fmt: skip
def test_every_bad_key_gets_the_same_answer(core: Core, lines: tuple[bytes, ...]) -> None:
    got, wanted = ask(core, *lines), ask(core, b"Authorization: Bearer unknown-key-unknown-key")
    assert got.status == 401
    assert got.body == wanted.body
    assert {**got.headers, "x-request-id": ""} == {**wanted.headers, "x-request-id": ""}
    assert got.headers["www-authenticate"] == "Bearer"
    core.log.flush()
    assert b"bth_sk_" not in b"".join(core.log.written)


@pytest.mark.threat("K2")
def test_a_key_in_the_url_is_400_and_not_logged(core: Core) -> None:
    for name in ("api_key", "api-key", "API_KEY", "access_token", "%61pi_key"):
        got = ask(core, path=f"/v1/models?x=1&{name}={core.world.token}".encode())
        assert (got.status, got.code) == (400, "key_in_url")
        assert core.world.token.encode() not in got.body
    core.log.flush()
    assert core.world.token.encode() not in b"".join(core.log.written)
    assert ask(core, bearer(core.world.token), path=b"/v1/models?beta=true").status == 200


def with_key(tmp_path: Path, **fields: Any) -> Core:
    world = World()
    world.route("acme/model", 7001)
    world.keys[0] = World.key(world.token, world.org, **fields)
    return Core(tmp_path, world)


def generate(core: Core, model: str = "acme/model", token: str | None = None) -> Answer:
    client, wire = core.client()
    client.received(raw_post("/v1/chat/completions", core.gateway.encode(chat(model)), token or core.world.token))
    if core.dialled and core.gateway.exchanges:
        core.engine.send(whole_answer(["x"]))
    return answers(wire.out)[0]


def test_expiry_scope_and_allow_list(tmp_path: Path) -> None:
    core = with_key(tmp_path / "a", expires_at=1_800_000_500)
    assert (generate(core).status, generate(core).code) == (401, "api_key_expired")
    core.close()
    core = with_key(tmp_path / "b", expires_at=1_800_009_000)
    assert generate(core).status == 200
    core.clock += 9000
    core.gateway.store.confirm(core.gateway.wall())
    assert generate(core).code == "api_key_expired"
    core.close()
    core = with_key(tmp_path / "c", scopes=("usage:read",))
    assert (generate(core).status, generate(core).code) == (403, "insufficient_permissions")
    core.close()
    core = with_key(tmp_path / "d", deployment_ids=())
    got = generate(core)
    assert (got.status, got.code, got.error["param"]) == (403, "model_not_allowed", "model")
    assert ask(core, bearer(core.world.token)).json["data"] == []
    core.close()


def test_a_suspended_organisation_may_not_call(tmp_path: Path) -> None:
    world = World()
    world.route("acme/model", 7001)
    world.orgs[0] = OrgInfo(world.org.org_id, "acme", suspended=True)
    core = Core(tmp_path, world)
    assert (generate(core).status, generate(core).code) == (403, "organization_suspended")
    core.close()


def test_foreign_models_are_as_unknown_as_absent_ones(core: Core) -> None:
    foreign = generate(core, token=core.world.other_token)
    absent = generate(core, model="acme/mode1", token=core.world.other_token)
    assert (foreign.status, foreign.code, foreign.error["param"]) == (404, "model_not_found", "model")
    assert foreign.body.replace(b"acme/model", b"M") == absent.body.replace(b"acme/mode1", b"M")
    assert ask(core, bearer(core.world.other_token)).json["data"] == []
    assert ask(core, bearer(core.world.other_token), path=b"/v1/models/acme/model").status == 404
    assert core.asked == []


@pytest.mark.parametrize(
    ("state", "status", "code", "headers"),
    [
        (RouteState.LOADING, 503, "model_loading", {"retry-after": "25", "x-should-retry": "true"}),
        (RouteState.PAUSED, 403, "deployment_paused", {"x-should-retry": "false"}),
        (RouteState.UNAVAILABLE, 503, "overloaded", {"retry-after": "2"}),
    ],
)
def test_a_model_that_is_not_ready_says_why(
    tmp_path: Path, state: RouteState, status: int, code: str, headers: dict[str, str]
) -> None:
    world = World()
    world.route("acme/model", 7001, state=state, ready_in_seconds=25, hold_seconds=0)
    core = Core(tmp_path, world)
    got = generate(core)
    assert (got.status, got.code) == (status, code)
    assert headers.items() <= got.headers.items()
    assert ask(core, bearer(world.token)).json["data"][0]["id"] == "acme/model", "it is listed all the same"
    assert core.events == []
    core.close()


def test_an_endpoint_a_model_does_not_serve_says_what_it_serves(tmp_path: Path) -> None:
    world = World()
    world.route("acme/model", 7001, endpoints=("completions",))
    core = Core(tmp_path, world)
    got = generate(core)
    assert (got.status, got.code) == (404, "unsupported_endpoint")
    assert "/v1/completions" in got.error["message"]
    core.close()


# --- snapshots


@pytest.mark.threat("K4")
def test_versions_only_rise_within_an_epoch_and_epochs_only_move_on(core: Core) -> None:
    world, gateway = core.world, core.gateway
    first = world.signed()
    revoked = world.keys.pop(0)
    second = world.next().signed()
    assert gateway.offer_snapshot(second) is Verdict.APPLIED
    for late in (first, second, first):
        assert gateway.offer_snapshot(late) in (Verdict.OLDER, Verdict.CURRENT)
        assert ask(core, bearer(world.token)).status == 401, "a revoked key stays dead"
    old_epoch = world.epoch
    world.epoch, world.version, world.issued_at = "new", 1, world.issued_at - 1
    world.keys.append(revoked)
    assert gateway.offer_snapshot(world.signed()) is Verdict.OLDER
    world.issued_at += 10
    assert gateway.offer_snapshot(world.signed()) is Verdict.APPLIED
    world.epoch, world.version, world.issued_at = old_epoch, 99, world.issued_at - 5
    assert gateway.offer_snapshot(world.signed()) is Verdict.OLDER


@pytest.mark.threat("K5")
def test_what_is_not_signed_by_the_control_plane_is_refused_and_counted(core: Core) -> None:
    world, gateway = core.world, core.gateway
    before = gateway.store.view
    good = msgspec.msgpack.decode(world.next().signed(), type=SignedSnapshot)
    altered = bytearray(good.payload)
    altered[-5] ^= 1
    stranger = World(signer=Ed25519PrivateKey.generate(), epoch=world.epoch, version=50, orgs=world.orgs)
    forged = [
        msgspec.msgpack.encode(SignedSnapshot(bytes(altered), good.signature)),
        msgspec.msgpack.encode(SignedSnapshot(good.payload, good.signature[:-1] + b"\x00")),
        msgspec.msgpack.encode(SignedSnapshot(good.payload, b"")),
        stranger.signed(),
        msgspec.msgpack.encode(world.snapshot()),
        b"",
        b"garbage",
    ]
    for packed in forged:
        assert gateway.offer_snapshot(packed) in (Verdict.BAD_SIGNATURE, Verdict.UNREADABLE)
        assert gateway.store.view is before
    counted = sum(gateway.telemetry.snapshots.value(v) for v in (Verdict.BAD_SIGNATURE, Verdict.UNREADABLE))
    assert counted == len(forged)
    core.log.flush()
    assert b"snapshot_refused" in b"".join(core.log.written)


def test_an_unknown_format_is_refused(core: Core) -> None:
    payload = msgspec.msgpack.encode(msgspec.structs.replace(core.world.next().snapshot(), format=2))
    packed = msgspec.msgpack.encode(SignedSnapshot(payload, core.world.signer.sign(payload)))
    assert core.gateway.offer_snapshot(packed) is Verdict.UNKNOWN_FORMAT


def stored(world: World, path: Path, max_age: float = 100.0) -> SnapshotStore:
    return SnapshotStore(world.signer.public_key(), path, max_age)


@pytest.mark.threat("K4")
def test_the_copy_on_disk_serves_a_restart_and_is_the_floor(tmp_path: Path) -> None:
    world, path, now = World(), tmp_path / "snapshot.bin", time.time()
    late = world.signed()
    assert stored(world, path).offer(world.next().signed(), now) is Verdict.APPLIED
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]
    again = stored(world, path)
    assert again.load(now + 50) is Verdict.APPLIED
    assert again.view is not None
    assert again.offer(late, now + 50) is Verdict.OLDER
    path.write_bytes(path.read_bytes()[:-1])
    assert stored(world, path).load(now) in (Verdict.UNREADABLE, Verdict.BAD_SIGNATURE)
    path.unlink()
    assert stored(world, path).load(now) is None


@pytest.mark.threat("K4")
def test_a_snapshot_nobody_confirms_grows_old_also_over_restarts(tmp_path: Path) -> None:
    world, path, now = World(), tmp_path / "snapshot.bin", time.time()
    store = stored(world, path)
    store.offer(world.signed(), now)
    assert store.usable(now + 99) is store.view
    assert store.usable(now + 101) is None
    os.utime(path, (now, now))
    again = stored(world, path)
    again.load(now + 90)
    assert again.usable(now + 99) is not None
    assert again.usable(now + 101) is None, "a restart does not make it young"
    again.confirm(now + 101)
    assert again.usable(now + 200) is not None
    os.utime(path, (now + 10**6, now + 10**6))
    forged = stored(world, path, 1e6)
    forged.load(now)
    assert forged.confirmed_at == world.issued_at, "a time from the future is not believed"


@pytest.mark.threat("K4")
def test_without_a_fresh_snapshot_the_answer_is_503_never_401(core: Core) -> None:
    core.clock += 90_000
    for token in (core.world.token, "no-such-key-no-such-key"):
        got = ask(core, bearer(token))
        assert (got.status, got.code, got.headers["retry-after"]) == (503, "service_unavailable", "1")
    assert ask(core, path=b"/readyz").status == 503
    assert ask(core, path=b"/healthz").status == 200


def test_the_public_key_may_be_pem_raw_or_hexadecimal() -> None:
    key = Ed25519PrivateKey.generate().public_key()
    raw = key.public_bytes_raw()
    pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    assert [load_public_key(data).public_bytes_raw() for data in (raw, pem, raw.hex().encode() + b"\n")] == [raw] * 3
    for bad in (b"", b"zz", raw[:-1]):
        with pytest.raises(ValueError):
            load_public_key(bad)
