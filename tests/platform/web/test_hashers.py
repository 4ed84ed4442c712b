"""Hashing passwords does not take the machine's memory."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.contrib.auth.hashers import Argon2PasswordHasher, get_hasher

from berth.web.hashers import AT_ONCE


@pytest.mark.threat("A3")
def test_few_passwords_are_hashed_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    lock, moment = threading.Lock(), threading.Event()
    running, most = 0, 0

    def slow(self: Argon2PasswordHasher, password: str, encoded: str) -> bool:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        moment.wait(0.02)
        with lock:
            running -= 1
        return False

    monkeypatch.setattr(Argon2PasswordHasher, "verify", slow)
    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(lambda _: get_hasher("argon2").verify("x", "y"), range(12))) == [False] * 12
    assert most == AT_ONCE


def test_the_hashes_are_djangos_own() -> None:
    made = Argon2PasswordHasher().encode("correct horse", "a" * 22)
    assert get_hasher("argon2").verify("correct horse", made) and not get_hasher("argon2").verify("wrong", made)
