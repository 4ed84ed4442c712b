"""The secrets of an installation: one file each, readable by their owner alone, made on the first start."""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from berth.host.errors import HostError
from berth_gateway.contract import usage_key

GATEWAY_NAME = "local"
SHORTEST = 32  # characters; what is made here is longer

# Names of files, not secrets themselves.
DJANGO_SECRET_KEY = "django_secret_key"
MASTER_KEY = "master_key"  # hex of 32 bytes; other keys are derived from it
DATABASE_PASSWORD = "database_password"
VALKEY_PASSWORD = "valkey_password"
VALKEY_GATEWAY_PASSWORD = "valkey_gateway_password"
SNAPSHOT_SIGNING_KEY = "snapshot_signing_key.pem"  # Ed25519, PKCS 8
SNAPSHOT_PUBLIC_KEY = "snapshot_public_key.pem"
USAGE_MASTER_KEY = "usage_master_key"  # hex of 32 bytes
USAGE_KEY = "usage_key_" + GATEWAY_NAME  # hex of 32 bytes, derived: all that the gateway is given


def ensure_secrets(folder: Path) -> None:
    """Makes what is missing and refuses to run with secrets that others may read."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    makers: dict[str, Callable[[], str]] = {
        DJANGO_SECRET_KEY: lambda: secrets.token_urlsafe(48),
        MASTER_KEY: lambda: secrets.token_hex(32),
        DATABASE_PASSWORD: lambda: secrets.token_urlsafe(32),
        VALKEY_PASSWORD: lambda: secrets.token_urlsafe(32),
        VALKEY_GATEWAY_PASSWORD: lambda: secrets.token_urlsafe(32),
        SNAPSHOT_SIGNING_KEY: _signing_key,
        SNAPSHOT_PUBLIC_KEY: lambda: _public_key(folder / SNAPSHOT_SIGNING_KEY),
        USAGE_MASTER_KEY: lambda: secrets.token_hex(32),
        USAGE_KEY: lambda: usage_key(bytes.fromhex(read_secret(folder, USAGE_MASTER_KEY)), GATEWAY_NAME).hex(),
    }
    for name, make in makers.items():
        path = folder / name
        if not path.exists():
            write_private(path, make() + "\n")
        elif stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise HostError(f"The secret {path} can be read by others. Run `chmod 600 {path}` and start again.")
        elif len(read_secret(folder, name)) < SHORTEST:
            raise HostError(f"The secret {path} is empty or cut short. Restore it from your backup and start again.")


def read_secret(folder: Path, name: str) -> str:
    return (folder / name).read_text().strip()


def write_private(path: Path, text: str) -> None:
    """Writes a file of mode 0600, whole or not at all."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _signing_key() -> str:
    key = Ed25519PrivateKey.generate()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode().strip()


def _public_key(private: Path) -> str:
    key = load_pem_private_key(private.read_bytes(), password=None)
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode().strip()
