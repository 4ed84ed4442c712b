"""Heads that came on other connections lately: a client that opens another one sends the head that it always sends. Pure.

Only bytes that are equal are taken as known, and only under the snapshot by which they were judged. Keys that may be used from some
addresses only are left out, because each connection has its own.
"""

from __future__ import annotations

import re

from berth_gateway.repeat import Known
from berth_gateway.snapshot import View

MOST = 256
SECONDS = 60.0  # so long at most they are kept: there are keys in them
_LENGTH = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ?")
_MOST_DIGITS = 15


class Heads:
    """By what stands before the number in Content-Length and behind it. `latest`: the one that came last on a new connection, which
    the next will probably send."""

    __slots__ = ("_known", "_since", "latest")

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, bytes], Known] = {}
        self._since = 0.0
        self.latest: Known | None = None

    def forget(self) -> None:
        self._known, self.latest = {}, None

    def tidy(self, now: float) -> None:
        """`now` in seconds of any clock, the same one each time."""
        if now - self._since >= SECONDS:
            self._since = now
            self.forget()

    def keep(self, known: Known) -> None:
        if known.is_usual and not known.caller.key.networks and len(self._known) < MOST:
            self._known[known.form.before, known.form.behind] = self.latest = known

    def find(self, data: bytes, view: View | None, wall: float) -> Known | None:
        """What is known of the head at the start of `data`, for a connection of its own."""
        if not self._known:
            return None
        line = _LENGTH.search(data)
        if line is None:
            return None
        start = line.end()
        # What is compared below ends a head and holds no such line itself, so a line within a body is never taken for this one.
        digits = data.find(b"\r", start, start + _MOST_DIGITS + 1)
        end = data.find(b"\r\n\r\n", digits) + 4 if digits > start else 0
        known = self._known.get((data[:start], data[digits:end])) if end > 4 else None
        if known is None or view is None or known.caller_now(view, wall) is None:
            return None
        self.latest = known
        return known.again_elsewhere()
