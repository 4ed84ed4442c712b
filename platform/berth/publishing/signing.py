"""The signature that makes a snapshot ours: whoever can write to Valkey still cannot tell gateways whom to let in (threat K5)."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from berth_gateway.contract import SignedSnapshot

KEY_FILE = "snapshot_signing_key.pem"


def sign(payload: bytes) -> SignedSnapshot:
    """Ed25519 with the key in SECRETS_DIR. ImproperlyConfigured when there is none."""
    return SignedSnapshot(payload=payload, signature=_key(settings.SECRETS_DIR / KEY_FILE).sign(payload))


def _key(path: Path) -> Ed25519PrivateKey:
    if not path.is_file():
        raise ImproperlyConfigured(
            f"The key that signs snapshots is missing at {path}. It is made on the first start; restore it from your "
            "backup, or start Berth once to make a new one and restart the gateways."
        )
    key = load_pem_private_key(path.read_bytes(), password=None)
    if not isinstance(key, Ed25519PrivateKey):
        raise ImproperlyConfigured(f"{path} must hold an Ed25519 key.")
    return key
