"""The form of the spool's records on disk: a length, a checksum, a kind, and a usage event."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from berth_gateway.contract import UsageEvent

OPEN, SETTLED = 1, 2

HEADER = struct.Struct("<IIB")  # length, CRC-32 of kind and payload, kind
_MAX_RECORD = 64 * 1024
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(UsageEvent).decode


def frame(kind: int, event: UsageEvent) -> bytes:
    payload = _encode(event)
    return HEADER.pack(len(payload), zlib.crc32(payload, kind), kind) + payload


def read_records(path: Path, size: int) -> Iterator[tuple[int, UsageEvent]]:
    """Kind and event of each record within the first `size` bytes, up to the first damaged one."""
    for kind, event, _ in _undamaged(path, size):
        yield kind, event


def undamaged_bytes(path: Path, size: int) -> int:
    """Where the last undamaged record ends."""
    return max((end for _, _, end in _undamaged(path, size)), default=0)


def _undamaged(path: Path, size: int) -> Iterator[tuple[int, UsageEvent, int]]:
    with path.open("rb") as file:
        at = 0
        while at + HEADER.size <= size:
            length, crc, kind = HEADER.unpack(file.read(HEADER.size))
            at += HEADER.size + length
            if length > _MAX_RECORD or at > size or kind not in (OPEN, SETTLED):
                return
            payload = file.read(length)
            if zlib.crc32(payload, kind) != crc:
                return
            try:
                yield kind, _decode(payload), at
            except msgspec.DecodeError:
                return
