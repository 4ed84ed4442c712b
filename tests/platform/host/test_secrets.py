from __future__ import annotations

import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from berth.host.errors import HostError
from berth.host.secrets import GATEWAY_NAME, ensure_secrets, read_secret
from berth_gateway.contract import usage_key


def test_secrets_are_made_once_and_private(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    ensure_secrets(folder)
    before = {path.name: path.read_text() for path in folder.iterdir()}
    ensure_secrets(folder)
    assert {path.name: path.read_text() for path in folder.iterdir()} == before
    assert len(set(before.values())) == len(before) == 9
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_keys_belong_together(tmp_path: Path) -> None:
    ensure_secrets(tmp_path / "s")
    private = load_pem_private_key((tmp_path / "s" / "snapshot_signing_key.pem").read_bytes(), None)
    public = load_pem_public_key((tmp_path / "s" / "snapshot_public_key.pem").read_bytes())
    assert isinstance(private, Ed25519PrivateKey)
    assert isinstance(public, Ed25519PublicKey)
    public.verify(private.sign(b"snapshot"), b"snapshot")
    master = bytes.fromhex(read_secret(tmp_path / "s", "usage_master_key"))
    assert bytes.fromhex(read_secret(tmp_path / "s", "usage_key_local")) == usage_key(master, GATEWAY_NAME)


@pytest.mark.threat("A11")
def test_secret_that_others_may_read_stops_the_start(tmp_path: Path) -> None:
    ensure_secrets(tmp_path / "s")
    (tmp_path / "s" / "master_key").chmod(0o644)
    with pytest.raises(HostError, match="chmod 600"):
        ensure_secrets(tmp_path / "s")


@pytest.mark.threat("A11")
@pytest.mark.parametrize("name", ["master_key", "usage_master_key", "valkey_password"])
@pytest.mark.parametrize("rest", ["", "\n", "abc\n"])
def test_a_secret_that_was_cut_stops_the_start(tmp_path: Path, name: str, rest: str) -> None:
    ensure_secrets(tmp_path / "s")
    (tmp_path / "s" / name).write_text(rest)
    with pytest.raises(HostError, match="Restore it from your backup"):
        ensure_secrets(tmp_path / "s")
