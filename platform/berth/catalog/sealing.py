"""Secrets of organisations at rest: sealed with a key that the database alone does not hold, and bound to their row."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from typing import Final
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from django.conf import settings

_NONCE: Final = 12


class SealBroken(Exception):
    """It cannot be opened: the platform's secret key has changed, or the row was tampered with."""


def seal(content: dict[str, str], *, org_id: UUID, row_id: UUID) -> bytes:
    nonce = os.urandom(_NONCE)
    return nonce + AESGCM(_key()).encrypt(nonce, json.dumps(content).encode(), _bound(org_id, row_id))


def unseal(sealed: bytes, *, org_id: UUID, row_id: UUID) -> dict[str, str]:
    """Raises SealBroken."""
    try:
        plain = AESGCM(_key()).decrypt(sealed[:_NONCE], sealed[_NONCE:], _bound(org_id, row_id))
    except (InvalidTag, ValueError):
        raise SealBroken from None
    opened: dict[str, str] = json.loads(plain)
    return opened


def _key() -> bytes:
    return hmac.new(settings.SECRET_KEY.encode(), b"berth catalog credentials", hashlib.sha256).digest()


def _bound(org_id: UUID, row_id: UUID) -> bytes:
    return org_id.bytes + row_id.bytes
