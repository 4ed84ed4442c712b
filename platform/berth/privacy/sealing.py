"""Key pairs, and how a sealed box is opened. The gateway closes boxes (`berth_gateway.sealing`); docs/privacy.md says their form."""

from __future__ import annotations

import hashlib
import hmac
import os
from uuid import UUID

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from berth_gateway.contract import BOX_INFO, BOX_VERSION, RECORD_FORMAT, RecordContent, box_context

MASTER_KEY = "master_key"
_HEAD = 1 + 16 + 32
_NONCE = 12


class CannotOpen(Exception):
    """Not a box of this key for this event, or one that was altered."""


def new_pair(key_id: UUID) -> tuple[bytes, bytes]:
    """The public key, and the private one sealed for the table."""
    private = X25519PrivateKey.generate()
    nonce = os.urandom(_NONCE)
    wrapped = nonce + AESGCM(_wrapping_key()).encrypt(nonce, private.private_bytes_raw(), key_id.bytes)
    return private.public_key().public_bytes_raw(), wrapped


def open_box(box: bytes, *, key_id: UUID, private_sealed: bytes, event_id: UUID, org_id: UUID) -> RecordContent:
    """Raises CannotOpen."""
    try:
        raw = AESGCM(_wrapping_key()).decrypt(private_sealed[:_NONCE], private_sealed[_NONCE:], key_id.bytes)
        private = X25519PrivateKey.from_private_bytes(raw)
        head, sealed = box[:_HEAD], box[_HEAD:]
        if len(head) != _HEAD or head[0] != BOX_VERSION or head[1:17] != key_id.bytes:
            raise CannotOpen
        shared = private.exchange(X25519PublicKey.from_public_bytes(head[17:]))
        salt = head[17:] + private.public_key().public_bytes_raw()
        made = HKDF(SHA256(), 44, salt=salt, info=BOX_INFO).derive(shared)
        plain = AESGCM(made[:32]).decrypt(made[32:], sealed, head + box_context(str(event_id), str(org_id)))
        content = msgspec.msgpack.decode(plain, type=RecordContent)
    except (InvalidTag, ValueError, msgspec.MsgspecError):
        raise CannotOpen from None
    if content.format != RECORD_FORMAT:
        raise CannotOpen
    return content


def _wrapping_key() -> bytes:
    path = settings.SECRETS_DIR / MASTER_KEY
    if not path.is_file():
        raise ImproperlyConfigured(
            f"The master key is missing at {path}. It is made on the first start; restore it from your backup."
        )
    return hmac.new(bytes.fromhex(path.read_text().strip()), b"berth sealing keys v1", hashlib.sha256).digest()
