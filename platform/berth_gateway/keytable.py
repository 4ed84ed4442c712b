"""API keys by digest, kept packed: a million of them in two hundred megabytes, each decoded when it first calls. Pure.

The table is one row of bytes, an array of the digests' first 64 bits in order, and arrays of where each key is. Looking up
is a binary search in C and one comparison; keys that call are kept decoded, so most look-ups are one in a dictionary.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

import msgspec
from msgspec import Raw

from berth_gateway.contract import KeyInfo

MOST_DECODED = 20_000


class _Kept(KeyInfo, array_like=True, frozen=True):
    """A key without the names of its fields."""


_read = msgspec.msgpack.Decoder(KeyInfo).decode
_decode = msgspec.msgpack.Decoder(_Kept).decode
_encode = msgspec.msgpack.Encoder().encode


class KeyTable:
    """Answers `get` as a dictionary from digest to KeyInfo would; of two keys with the same digest the later counts."""

    __slots__ = ("_decoded", "_ends", "_firsts", "_order", "_row")

    def __init__(self, keys: Iterable[KeyInfo], count: int) -> None:
        """`keys` are read once, in order; `count` is how many there are."""
        row, ends, firsts = bytearray(), array("Q", [0]), array("Q")
        for key in keys:
            firsts.append(int.from_bytes(key.digest[:8]))
            row += _encode(msgspec.structs.astuple(key))
            ends.append(len(row))
        order = array("I", sorted(range(count), key=firsts.__getitem__))
        self._row = memoryview(row)
        self._firsts = array("Q", map(firsts.__getitem__, order))
        self._order, self._ends = order, ends
        self._decoded: dict[bytes, KeyInfo] = {}

    @classmethod
    def of(cls, keys: Sequence[KeyInfo]) -> KeyTable:
        return cls(keys, len(keys))

    @classmethod
    def unpacked(cls, packed: Sequence[Raw]) -> KeyTable:
        """From keys as MessagePack. Raises DecodeError for what is no key."""
        return cls(map(_read, packed), len(packed))

    def __len__(self) -> int:
        return len(self._order)

    def get(self, digest: bytes) -> KeyInfo | None:
        """The key with this SHA-256. The same object each time, for as long as it is in use."""
        known = self._decoded.get(digest)
        return known if known is not None else self._find(digest)

    def _find(self, digest: bytes) -> KeyInfo | None:
        first, firsts = int.from_bytes(digest[:8]), self._firsts
        found: KeyInfo | None = None
        at = bisect_left(firsts, first)
        while at < len(firsts) and firsts[at] == first:
            key = self._at(at)
            if key.digest == digest:
                found = key
            at += 1
        if found is not None:
            if len(self._decoded) >= MOST_DECODED:
                self._decoded.clear()
            self._decoded[digest] = found
        return found

    def _at(self, at: int) -> KeyInfo:
        number = self._order[at]
        return _decode(self._row[self._ends[number] : self._ends[number + 1]])

    def values(self) -> Iterator[KeyInfo]:
        """All keys, decoded one by one and not kept."""
        return (self._at(at) for at in range(len(self)))
