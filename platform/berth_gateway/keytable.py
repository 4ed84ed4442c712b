"""API keys by digest, kept packed: a million of them in a few hundred megabytes, each decoded when it first calls. Pure.

The table is the snapshot's own bytes, an array of the digests' first 64 bits in order, and an array of where each key begins.
Looking up is a binary search in C and one comparison; keys that call are kept decoded, so most look-ups are one in a dictionary.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Raw

from berth_gateway.contract import KeyInfo

MOST_DECODED = 20_000

_decode = msgspec.msgpack.Decoder(KeyInfo).decode


class KeyTable:
    """Answers `get` as a dictionary from digest to KeyInfo would; of two keys with the same digest the later counts."""

    __slots__ = ("_decoded", "_firsts", "_packed")

    def __init__(self, packed: Sequence[Raw]) -> None:
        """`packed`: each key as MessagePack. Raises DecodeError for what is no key."""
        count = len(packed)
        firsts = array("Q", bytes(8 * count))
        for at, raw in enumerate(packed):
            firsts[at] = int.from_bytes(_decode(raw).digest[:8])
        order = sorted(range(count), key=firsts.__getitem__)
        self._firsts = array("Q", map(firsts.__getitem__, order))
        self._packed = [packed[at] for at in order]
        self._decoded: dict[bytes, KeyInfo] = {}

    @classmethod
    def of(cls, keys: Sequence[KeyInfo]) -> KeyTable:
        return cls([Raw(msgspec.msgpack.encode(key)) for key in keys])

    def __len__(self) -> int:
        return len(self._packed)

    def get(self, digest: bytes) -> KeyInfo | None:
        """The key with this SHA-256. The same object each time, for as long as it is in use."""
        known = self._decoded.get(digest)
        return known if known is not None else self._find(digest)

    def _find(self, digest: bytes) -> KeyInfo | None:
        first, firsts, found = int.from_bytes(digest[:8]), self._firsts, None
        at = bisect_left(firsts, first)
        while at < len(firsts) and firsts[at] == first:
            key = _decode(self._packed[at])
            if key.digest == digest:
                found = key
            at += 1
        if found is None:
            return None
        if len(self._decoded) >= MOST_DECODED:
            self._decoded.clear()
        self._decoded[digest] = found
        return found

    def values(self) -> Iterator[KeyInfo]:
        """All keys, decoded one by one and not kept."""
        return map(_decode, self._packed)
