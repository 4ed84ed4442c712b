"""The way of nearly every chunk of a stream that flows: one HTTP chunk in, one event of the learned form in it, one chunk out.

The same as Upstream, ChunkedBody, EventSplitter, ChunkReader, Relay and Client do together, in one step; a property test holds
the two ways together. Whatever looks different in the least is left for the long way.

Two forms are known. Of the narrow one only the text between two quotes differs from chunk to chunk; of the wide one, everything
within `choices`.
"""

from __future__ import annotations

from collections.abc import Callable

from berth_gateway.chunks import FINISHED, RUNNING, UNFINISHED, ChunkReader
from berth_gateway.framing import known_sizes

Write = Callable[[bytes], None]

_MOST = 4096  # bytes of an event in the narrow form
_END = b"}\n\n\r\n"
_SIZES = tuple(b"%x" % size for size in range(_MOST))
_LINES = tuple(b"%x\r\n" % size for size in range(_MOST))
_OPENINGS = (b'"delta":{"content":"', b'"text":"')


class Express:
    """Takes whole chunks off the front of `data` and writes what becomes of them; returns what is left for the long way.

    `before`: what an event begins with for the client. `write` sends bytes to it.
    """

    __slots__ = (
        "_after",
        "_before",
        "_close",
        "_cut",
        "_end",
        "_fixed",
        "_framed",
        "_open",
        "_opening",
        "_reader",
        "_rest",
        "_size",
        "_tried",
        "_write",
    )

    def __init__(self, reader: ChunkReader, before: bytes, write: Write) -> None:
        self._reader = reader
        self._before = before
        self._size = len(before) + 3
        self._write = write
        self._framed, self._fixed = reader.framed, reader.fixed
        self._end = self._fixed + _END
        # The narrow form: what stands before the text and behind it, as the engine writes it and as the client gets it.
        self._open = self._close = self._opening = self._after = b""
        self._cut = self._rest = 0
        self._tried = 4  # choices that are looked at for their narrow form

    def take(self, data: bytes) -> bytes:
        """`data` begins between two chunks and two events."""
        opening = self._open
        if opening:
            size = len(data) - 6
            digits = 2
            if size > 255:
                size -= 1
                digits = 3
            if 15 < size < _MOST and data.startswith(opening, digits) and data.startswith(_SIZES[size]):
                start = digits + self._cut
                end = data.find(b'"', start)
                close = self._close
                if data.startswith(close, end):
                    rest = data[end + self._rest :]
                    reader = self._reader
                    if rest != _END:
                        if not rest.startswith(RUNNING) or rest.find(b"\n") != len(rest) - 4 or not rest.endswith(_END):
                            return self._take_wide(data)
                        reader.last_running = rest[:-4]
                    text = data[start:end]
                    if b"\n" not in text and b"\r" not in text:
                        reader.pieces += 1
                        size = self._size + len(text)
                        line = _LINES[size] if size < _MOST else b"%x\r\n" % size
                        self._write(b"".join((line, self._opening, text, self._after)))
                        return b""
        return self._take_wide(data)

    def _take_wide(self, data: bytes) -> bytes:
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
            self._write(outs[0] if len(outs) == 1 else b"".join(outs))
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
            if not rest.startswith(RUNNING):
                return None
            reader.last_running = rest
        else:
            return None
        if UNFINISHED not in choices or FINISHED in choices or b"\n" in choices or b"\r" in choices:
            return None
        if reader.has_finished:
            return None
        reader.pieces += 1
        if self._tried:
            self._narrow(choices)
        return b"%x\r\n%b%b}\n\n\r\n" % (len(self._before) + 3 + len(choices), self._before, choices)

    def _narrow(self, choices: bytes) -> None:
        """Learns what stands around the text, if `choices` is one choice with nothing in it but text."""
        self._tried -= 1
        for mark in _OPENINGS:
            start = choices.find(mark) + len(mark)
            end = choices.find(b'"', start)
            if start < len(mark) or choices.count(b"{") != 1 + mark.count(b"{") or b"\\" in choices:
                continue
            opening, closing = choices[:start], choices[end:]
            if UNFINISHED in closing and closing.endswith(b"}]"):
                self._tried = 0
                self._open, self._opening = self._framed + opening, self._before + opening
                self._close, self._after = closing[:-1] + self._fixed, closing + _END
                self._cut, self._rest = len(self._open), len(self._close)
                self._size = len(self._before) + len(choices) - (end - start) + 3
                return
