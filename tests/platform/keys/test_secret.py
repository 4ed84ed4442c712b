"""The form of a key."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.keys.secret import digest_of, new_secret
from berth_gateway.contract import KEY_LENGTH, KEY_PREFIX, base62, key_well_formed

ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def test_secrets_are_well_formed_distinct_and_not_in_their_repr() -> None:
    made = [new_secret() for _ in range(200)]
    assert len({s.text for s in made}) == 200
    for secret in made:
        assert secret.text.startswith(KEY_PREFIX) and len(secret.text) == KEY_LENGTH == 56
        assert key_well_formed(secret.text) and digest_of(secret.text) == secret.digest
        assert secret.text not in repr(secret)


@pytest.mark.threat("K1")
@settings(max_examples=200)
@given(st.integers(min_value=0, max_value=KEY_LENGTH - 1), st.sampled_from(ALPHABET))
def test_a_typo_is_found_without_a_look_up(place: int, letter: str) -> None:
    secret = new_secret().text
    typed = secret[:place] + letter + secret[place + 1 :]
    assert key_well_formed(typed) == (typed == secret)


@pytest.mark.threat("K2")
@pytest.mark.parametrize(
    "text",
    ["", "bth_sk_", "' OR '1'='1", "bth_sk_" + "é" * 49, "bth_sk_" + "0" * 49, "x" * 65_536, "bth_sk_\x00" + "a" * 48],
)
def test_what_is_no_key_is_no_key(text: str) -> None:
    assert not key_well_formed(text)


@given(st.integers(min_value=0, max_value=2**256 - 1))
def test_256_bits_fit_and_come_back(number: int) -> None:
    text = base62(number, 43)
    back = 0
    for letter in text:
        back = back * 62 + ALPHABET.index(letter)
    assert (len(text), back) == (43, number)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(OverflowError):
        base62(62**6, 6)
