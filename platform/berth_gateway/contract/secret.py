"""The form of an API key's secret."""

from __future__ import annotations

import zlib

KEY_PREFIX = "bth_sk_"
KEY_BODY_LENGTH = 43  # base62 characters: 256 random bits
KEY_LENGTH = len(KEY_PREFIX) + KEY_BODY_LENGTH + 6
_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def base62(number: int, length: int) -> str:
    """`number` in base 62, most significant first, padded with zeros to `length`. OverflowError when it does not fit."""
    digits = []
    for _ in range(length):
        number, digit = divmod(number, 62)
        digits.append(_BASE62[digit])
    if number:
        raise OverflowError("does not fit")
    return "".join(reversed(digits))


def key_checksum(body: str) -> str:
    """The last six characters of an API key: CRC-32 of prefix and body, so that a typo is found without a look-up."""
    return base62(zlib.crc32((KEY_PREFIX + body).encode("ascii")), 6)


def key_well_formed(secret: str) -> bool:
    """Whether this can be an API key at all. Says nothing about whether it exists."""
    if len(secret) != KEY_LENGTH or not secret.startswith(KEY_PREFIX) or not secret.isascii():
        return False
    body, checksum = secret[len(KEY_PREFIX) : -6], secret[-6:]
    return body.isalnum() and key_checksum(body) == checksum
