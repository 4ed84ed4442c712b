"""The form of the spool's records on disk: a length, a checksum, a kind, and a usage event, or a batch of usual ones.

A batch holds what came and what ended between two waits of the event loop. What the events of one key, deployment and replica have in
common stands in it once, so it is read without anything else.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from berth_gateway.contract import CountedBy, Outcome, UsageEvent

OPEN, SETTLED, BATCH = 1, 2, 3

HEADER = struct.Struct("<IIB")  # length, CRC-32 of kind and payload, kind
_MAX_RECORD = {OPEN: 64 * 1024, SETTLED: 64 * 1024, BATCH: 64 * 1024 * 1024}
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(UsageEvent).decode


class Ended(NamedTuple):
    """A usual request that was answered to the end: 32 digits of its id, when it was accepted (Unix seconds), how long it took and how
    long to the first token (microseconds), its tokens."""

    request_id: bytes
    accepted_at: float
    lasted: int
    first: int
    prompt: int
    cached: int
    completion: int
    reasoning: int


Opened = tuple[bytes, float]  # request id, when it was accepted
# An event as it stands while its request runs, but for id and time; the requests that came, and those that ended.
Part = tuple[msgspec.Raw, Sequence[Opened], Sequence[tuple[bytes, float, int, int, int, int, int, int]]]
_decode_batch = msgspec.msgpack.Decoder(list[tuple[UsageEvent, list[Opened], list[Ended]]]).decode


def frame(kind: int, event: UsageEvent) -> bytes:
    return _frame(kind, _encode(event))


def frame_batch(parts: Sequence[Part]) -> bytes:
    return _frame(BATCH, _encode(parts))


def _frame(kind: int, payload: bytes) -> bytes:
    return HEADER.pack(len(payload), zlib.crc32(payload, kind), kind) + payload


def event_id_of(request_id: bytes) -> str:
    """The usage event's UUID: the digits of the request id."""
    h = request_id.decode()
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"


def opened_event(common: UsageEvent, request_id: bytes, accepted_at: float) -> UsageEvent:
    return msgspec.structs.replace(common, event_id=event_id_of(request_id), accepted_at=accepted_at)


def ended_event(common: UsageEvent, ended: Ended) -> UsageEvent:
    return msgspec.structs.replace(
        common,
        event_id=event_id_of(ended.request_id),
        accepted_at=ended.accepted_at,
        duration_ms=ended.lasted / 1000,
        outcome=Outcome.OK,
        status=200,
        counted_by=CountedBy.ENGINE,
        prompt_tokens=ended.prompt,
        cached_tokens=ended.cached,
        completion_tokens=ended.completion,
        reasoning_tokens=ended.reasoning,
        first_token_ms=ended.first / 1000,
    )


def unpack(kind: int, payload: bytes) -> list[tuple[int, UsageEvent]]:
    """Kinds and events of one record. Raises msgspec.DecodeError."""
    if kind != BATCH:
        return [(kind, _decode(payload))]
    parts = _decode_batch(payload)
    opened = [(OPEN, opened_event(common, *each)) for common, came, _ in parts for each in came]
    return opened + [(SETTLED, ended_event(common, each)) for common, _, ended in parts for each in ended]


def read_records(path: Path, size: int) -> Iterator[tuple[int, UsageEvent]]:
    """Kind and event of each record within the first `size` bytes, up to the first damaged one."""
    for events, _ in _undamaged(path, size):
        yield from events


def undamaged_bytes(path: Path, size: int) -> int:
    """Where the last undamaged record ends."""
    return max((end for _, end in _undamaged(path, size)), default=0)


def _undamaged(path: Path, size: int) -> Iterator[tuple[list[tuple[int, UsageEvent]], int]]:
    with path.open("rb") as file:
        at = 0
        while at + HEADER.size <= size:
            length, crc, kind = HEADER.unpack(file.read(HEADER.size))
            at += HEADER.size + length
            if length > _MAX_RECORD.get(kind, -1) or at > size:
                return
            payload = file.read(length)
            if zlib.crc32(payload, kind) != crc:
                return
            try:
                yield unpack(kind, payload), at
            except msgspec.DecodeError:
                return
