"""Passwords: argon2, few at a time."""

from __future__ import annotations

import threading

from django.contrib.auth.hashers import Argon2PasswordHasher

AT_ONCE = 2  # each takes 100 MB and a core: strangers who try to sign in together must not take the machine's memory
_places = threading.BoundedSemaphore(AT_ONCE)


class Argon2Hasher(Argon2PasswordHasher):
    """Django's, with the same hashes. Who comes when others are being hashed waits."""

    def encode(self, password: str, salt: str) -> str:
        with _places:
            return super().encode(password, salt)

    def verify(self, password: str, encoded: str) -> bool:
        with _places:
            return super().verify(password, encoded)
