"""Records and log lines of usual requests: everything but a few numbers is known before the request comes, and encoded then. Pure.

A stencil is cut from an event that the ordinary encoders have written, at marks that stand for what varies; so both ways say the same.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any
from zlib import crc32

import msgspec

from berth_gateway.contract import USAGE_FORMAT, CountedBy, Outcome, UsageEvent
from berth_gateway.logs import request_line
from berth_gateway.records import HEADER, OPEN, SETTLED

_ID = "0" * 7 + "mark" + "0" * 25
_AT, _LASTED, _FIRST = 1.2345678901e40, 2.3456789012e41, 3.4567890123e42  # no event has such times
_COUNTS = (0xF1A2B3C1, 0xF1A2B3C2, 0xF1A2B3C3, 0xF1A2B3C4)
_pack = msgspec.msgpack.Encoder().encode
_double = struct.Struct(">d").pack
_count = struct.Struct(">I").pack


def _pieces(whole: bytes, marks: Sequence[bytes]) -> list[bytes]:
    """What stands before, between and behind marks, each of which is there once and in this order."""
    pieces = []
    for mark in marks:
        piece, found, whole = whole.partition(mark)
        if not found:
            raise ValueError("the encoding does not hold what it was given")
        pieces.append(piece)
    return [*pieces, whole]


# A usual request that was answered to the end: grant, stencil, request id, when it was accepted (Unix seconds), how long it
# took and how long to the first token (microseconds), prompt, cached, completion and reasoning tokens.
Ended = tuple[Any, Any, bytes, float, int, int, int, int, int, int]


class Stencil:
    """For the usual requests of one key for one deployment. Event ids are 36 bytes of text, request ids 32."""

    __slots__ = ("_ends", "_line", "_open", "_opens", "_settles", "open_form", "settled_form")

    def __init__(
        self, gateway: str, org_id: str, key_id: str, deployment_id: str, revision: int, endpoint: str, *, stream: bool
    ) -> None:
        begun = UsageEvent(
            USAGE_FORMAT, _ID, gateway, org_id, key_id, deployment_id, revision, endpoint, stream,
            _AT, 0.0, Outcome.INTERRUPTED, 503, CountedBy.NONE,
        )  # fmt: skip
        done = msgspec.structs.replace(
            begun, duration_ms=_LASTED, outcome=Outcome.OK, status=200, counted_by=CountedBy.ENGINE,
            prompt_tokens=_COUNTS[0], cached_tokens=_COUNTS[1], completion_tokens=_COUNTS[2], reasoning_tokens=_COUNTS[3],
            first_token_ms=_FIRST,
        )  # fmt: skip
        self._opens = _pieces(_pack(begun), (_ID.encode(), _double(_AT)))
        self.open_form = struct.Struct(">{}s36s{}sd{}s".format(*map(len, self._opens)))
        marks = (_ID.encode(), _double(_AT), _double(_LASTED), *map(_count, _COUNTS), _double(_FIRST))
        self._settles = _pieces(_pack(done), marks)
        self.settled_form = struct.Struct(">{}s36s{}sd{}sd{}sI{}sI{}sI{}sI{}sd{}s".format(*map(len, self._settles)))
        line = request_line(_AT, "req_" + _ID, done)
        texts = [msgspec.json.encode(mark) for mark in (_AT, _COUNTS[0], _COUNTS[2], _LASTED, _FIRST)]
        texts.insert(1, _ID.encode())
        parts = [piece.replace(b"%", b"%%") for piece in _pieces(line, texts)]
        slots = (b"%b", b"%b", b"%d", b"%d", b"%b", b"%b", b"")
        self._line = b"".join(part + slot for part, slot in zip(parts, slots, strict=True))

    def open(self, event_id: bytes, accepted_at: float) -> bytes:
        """The record of a request that is about to go to an engine."""
        before, between, behind = self._opens
        payload = self.open_form.pack(before, event_id, between, accepted_at, behind)
        return HEADER.pack(len(payload), crc32(payload, OPEN), OPEN) + payload

    def settled(
        self, event_id: bytes, accepted_at: float, lasted: int, first: int, prompt: int, cached: int, completion: int, reasoning: int
    ) -> bytes:  # fmt: skip
        """The record of a request that was answered to the end. `lasted`, `first` in microseconds."""
        a, b, c, d, e, f, g, h, i = self._settles
        payload = self.settled_form.pack(
            a, event_id, b, accepted_at, c, lasted / 1000, d, prompt, e, cached, f, completion, g, reasoning, h, first / 1000, i
        )  # fmt: skip
        return HEADER.pack(len(payload), crc32(payload, SETTLED), SETTLED) + payload

    def line(self, at: bytes, ended: Ended) -> bytes:
        """The log line of such a request. `at`: Unix seconds, as text."""
        _, _, request_id, _, lasted, first, prompt, _, completion, _ = ended
        duration = b"%d.%03d" % (lasted // 1000, lasted % 1000)
        to_first = duration if first == lasted else b"%d.%03d" % (first // 1000, first % 1000)
        return self._line % (at, request_id, prompt, completion, duration, to_first)
