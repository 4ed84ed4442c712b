"""The way of nearly every chunk of a stream that flows: one HTTP chunk in, one event of the learned form in it, one chunk out.

The same as Upstream, ChunkedBody, EventSplitter, ChunkReader, Relay and Client do together, in one step; a property test holds
the two ways together. Whatever looks different in the least is left for the long way.
"""

from __future__ import annotations

from collections.abc import Callable

from berth_gateway.chunks import FINISHED, UNFINISHED, ChunkReader
from berth_gateway.framing import known_sizes

Write = Callable[[bytes], None]


class Express:
    """Takes whole chunks off the front of `data` and writes what becomes of them; returns what is left for the long way.

    `before`: what an event begins with for the client. `write` sends bytes to it. `moved` is set when something was written, and
    taken back by whoever looks after silence.
    """

    __slots__ = ("_before", "_end", "_fixed", "_framed", "_reader", "_size", "_write", "moved")

    def __init__(self, reader: ChunkReader, before: bytes, write: Write) -> None:
        self._reader = reader
        self._before = before
        self._size = len(before) + 3
        self._write = write
        self._framed, self._fixed = reader.framed, reader.fixed
        self._end = self._fixed + b"}\n\n\r\n"
        self.moved = False

    def take(self, data: bytes) -> bytes:
        """`data` begins between two chunks and two events."""
        at = data.find(b"\r\n", 0, 8)
        if known_sizes.get(data[:at]) != len(data) - at - 4:
            return self._take_several(data)
        out = self._one(data, at)
        if out is None:
            return data
        self.moved = True
        self._write(out)
        return b""

    def _take_several(self, data: bytes) -> bytes:
        outs = []
        at, size = 0, len(data)
        while at < size:
            line = data.find(b"\r\n", at, at + 8)
            length = known_sizes.get(data[at:line]) if line > at else None
            end = line + 4 + length if length else 0
            if not at < end <= size:
                break
            out = self._one(data[at:end], line - at)
            if out is None:
                break
            outs.append(out)
            at = end
        if outs:
            self.moved = True
            self._write(b"".join(outs))
        return data[at:] if at else data

    def _one(self, data: bytes, at: int) -> bytes | None:
        """What the client gets for one whole chunk whose size line ends at `at`; None if it has to go the long way."""
        if not data.startswith(self._framed, at):
            return None
        reader = self._reader
        start = at + len(self._framed)
        if data.endswith(self._end):
            choices = data[start : 1 - len(self._end)]
        elif data.endswith(b"\n\n\r\n"):
            cut = data.rfind(self._fixed, start)
            choices, rest = data[start : cut + 1], data[cut + len(self._fixed) : -4]
            if not reader.take_running(rest):
                return None
        else:
            return None
        if (
            UNFINISHED not in choices
            or FINISHED in choices
            or b"\n" in choices
            or b"\r" in choices
            or reader.has_finished
        ):
            return None
        reader.pieces += 1
        return b"%x\r\n%b%b}\n\n\r\n" % (self._size + len(choices), self._before, choices)
