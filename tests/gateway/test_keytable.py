"""The packed table of keys answers as a dictionary would."""

from __future__ import annotations

import hashlib
import os
import tracemalloc

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from berth_gateway.contract import KeyInfo
from berth_gateway.keytable import MOST_DECODED, KeyTable

# Few first bytes, so that keys collide in what the table is ordered by.
DIGESTS = st.tuples(st.sampled_from([b"\0" * 8, b"\xff" * 8, b"abcdefgh"]), st.binary(min_size=24, max_size=24)).map(
    b"".join
)


@settings(max_examples=100, deadline=None)
@given(st.lists(DIGESTS, max_size=30), DIGESTS)
def test_it_finds_what_a_dictionary_finds(digests: list[bytes], other: bytes) -> None:
    keys = [KeyInfo(digest, f"key-{at}", "org") for at, digest in enumerate(digests)]
    table, known = KeyTable.of(keys), {key.digest: key for key in keys}
    for digest in [*digests, other]:
        found, expected = table.get(digest), known.get(digest)
        assert (found and msgspec.structs.astuple(found)) == (expected and msgspec.structs.astuple(expected))
        assert table.get(digest) is table.get(digest)
    assert sorted(key.key_id for key in table.values()) == sorted(key.key_id for key in keys)


def test_a_hundred_thousand_keys_fit_and_are_found() -> None:
    digests = [hashlib.sha256(b"%d" % at).digest() for at in range(100_000)]
    packed = msgspec.msgpack.encode([KeyInfo(digest, "k" * 36, "o" * 36) for digest in digests])
    tracemalloc.start()
    table = KeyTable.unpacked(msgspec.msgpack.decode(packed, type=tuple[Raw, ...]))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept / len(digests) < 200  # bytes for each key
    for digest in digests[::7]:
        found = table.get(digest)
        assert found is not None
        assert found.digest == digest
    assert table.get(os.urandom(32)) is None
    assert len(table._decoded) <= MOST_DECODED


def test_what_is_no_key_is_refused_at_once() -> None:
    with pytest.raises(msgspec.DecodeError):
        KeyTable.unpacked([Raw(msgspec.msgpack.encode({"digest": b"x" * 32}))])
