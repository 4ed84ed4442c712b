"""Sealed boxes: anybody can close one to a public key, only the private half opens it. The form is in docs/privacy.md. Pure."""

from __future__ import annotations

from uuid import UUID

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from berth_gateway.contract import BOX_INFO, BOX_VERSION


def seal(public_key: bytes, key_id: str, context: bytes, plain: bytes) -> bytes:
    """version (1) ‖ key id (16) ‖ ephemeral public key (32) ‖ AES-256-GCM ciphertext with its tag.

    Each box has a key pair of its own, so key and nonce are used once. ValueError for what is no public key.
    """
    ephemeral = X25519PrivateKey.generate()
    own = ephemeral.public_key().public_bytes_raw()
    shared = ephemeral.exchange(X25519PublicKey.from_public_bytes(public_key))
    made = HKDF(SHA256(), 44, salt=own + public_key, info=BOX_INFO).derive(shared)
    head = bytes([BOX_VERSION]) + UUID(key_id).bytes + own
    return head + AESGCM(made[:32]).encrypt(made[32:], plain, head + context)
