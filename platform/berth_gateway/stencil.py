"""Records and log lines of usual requests: everything but a few numbers is known before the request comes, and encoded then.

A log line's stencil is cut from one that the ordinary encoder has written, at marks that stand for what varies; so both ways say the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from berth_gateway.contract import USAGE_FORMAT, CountedBy, Outcome, UsageEvent
from berth_gateway.logs import request_line
from berth_gateway.records import Part

_ID = "0" * 7 + "mark" + "0" * 25
_AT, _LASTED, _FIRST = 1.2345678901e40, 2.3456789012e41, 3.4567890123e42  # no event has such times
_COUNTS = (0xF1A2B3C1, 0xF1A2B3C2, 0xF1A2B3C3, 0xF1A2B3C4)
_pack = msgspec.msgpack.Encoder().encode

Ended = tuple[bytes, float, int, int, int, int, int, int]  # as `records.Ended`


def _pieces(whole: bytes, marks: Sequence[bytes]) -> list[bytes]:
    """What stands before, between and behind marks, each of which is there once and in this order."""
    pieces = []
    for mark in marks:
        piece, found, whole = whole.partition(mark)
        if not found:
            raise ValueError("the encoding does not hold what it was given")
        pieces.append(piece)
    return [*pieces, whole]


class Stencil:
    """For the usual requests of one key to one replica. `opened`, `ended`: those that are not on record yet."""

    __slots__ = ("_line", "_raw", "common", "deployment_id", "ended", "endpoint", "opened")

    def __init__(
        self, gateway: str, org_id: str, key_id: str, deployment_id: str, revision: int, endpoint: str, *, stream: bool
    ) -> None:
        self.deployment_id, self.endpoint = deployment_id, endpoint
        self.opened: list[tuple[bytes, float]] = []
        self.ended: list[Ended] = []
        self.common = begun = UsageEvent(
            USAGE_FORMAT, "", gateway, org_id, key_id, deployment_id, revision, endpoint, stream,
            0.0, 0.0, Outcome.INTERRUPTED, 503, CountedBy.NONE,
        )  # fmt: skip
        self._raw = msgspec.Raw(_pack(begun))
        done = msgspec.structs.replace(
            begun, accepted_at=_AT, duration_ms=_LASTED, outcome=Outcome.OK, status=200, counted_by=CountedBy.ENGINE,
            prompt_tokens=_COUNTS[0], cached_tokens=_COUNTS[1], completion_tokens=_COUNTS[2], reasoning_tokens=_COUNTS[3],
            first_token_ms=_FIRST,
        )  # fmt: skip
        line = request_line(_AT, "req_" + _ID, done)
        texts = [msgspec.json.encode(mark) for mark in (_AT, _COUNTS[0], _COUNTS[2], _LASTED, _FIRST)]
        texts.insert(1, _ID.encode())
        parts = [piece.replace(b"%", b"%%") for piece in _pieces(line, texts)]
        slots = (b"%b", b"%b", b"%d", b"%d", b"%d.%03d", b"%d.%03d", b"")
        self._line = b"".join(part + slot for part, slot in zip(parts, slots, strict=True))

    def take(self) -> tuple[Part, list[Ended]]:
        """What is to be put on record now, and what of it has ended."""
        opened, ended = self.opened, self.ended
        self.opened, self.ended = [], []
        return (self._raw, opened, ended), ended

    def lines(self, at: bytes, some: Sequence[Ended]) -> bytes:
        """The log lines of requests that have ended. `at`: Unix seconds, as text."""
        figures: list[bytes | int] = []
        for request_id, _, lasted, first, prompt, _, completion, _ in some:
            figures += (at, request_id, prompt, completion, lasted // 1000, lasted % 1000, first // 1000, first % 1000)
        return b"\n".join([self._line] * len(some)) % tuple(figures)
