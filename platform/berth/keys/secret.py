"""The form of an API key: `bth_sk_` + 256 random bits in base 62 + a checksum. Only its SHA-256 is ever kept."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field

from berth_gateway.contract import KEY_BODY_LENGTH, KEY_PREFIX, base62, key_checksum


@dataclass(frozen=True)
class NewSecret:
    """`text` is for its owner's eyes, once; it is left out of the repr."""

    text: str = field(repr=False)
    digest: bytes = field(repr=False)
    hint: str  # the last four characters


def new_secret() -> NewSecret:
    body = base62(int.from_bytes(secrets.token_bytes(32)), KEY_BODY_LENGTH)
    text = f"{KEY_PREFIX}{body}{key_checksum(body)}"
    return NewSecret(text, digest_of(text), text[-4:])


def digest_of(text: str) -> bytes:
    """What is stored and looked up. A plain hash suits a value that cannot be guessed."""
    return hashlib.sha256(text.encode()).digest()
