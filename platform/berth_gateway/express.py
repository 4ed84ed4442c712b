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
_RUNNING_STARTS = frozenset(mark[:9] for mark in RUNNING)
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
        "_tail",
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
        self._open = self._close = self._opening = self._after = self._tail = b""
        self._cut = self._rest = 0
        self._tried = 4  # choices that are looked at for their narrow form

    def take(self, data: bytes) -> bytes:
        """`data` begins between two chunks and two events."""
        opening = self._open
        if not opening:
            return self._take_wide(data)
        # Slices are compared: startswith() and find() take thrice as long to read their arguments.
        size, digits = len(data) - 6, 2
        if size > 255:
            size, digits = size - 1, 3
        if not 15 < size < _MOST or data[: digits + self._cut] != _SIZES[size] + opening:
            return self._take_several(data)
        text, _, rest = data[digits + self._cut :].partition(b'"')
        reader = self._reader
        if rest != self._tail:
            figures = rest[self._rest :]
            if rest[: self._rest] != self._close or figures[-5:] != _END or figures.count(b"\n") != 3:
                return self._take_several(data)
            if figures[:9] not in _RUNNING_STARTS:
                return self._take_several(data)
            reader.last_running = figures[:-4]
        # Line ends by their numbers: a test for b"\n" costs ten times as much, because it is first tried as a number.
        if 10 in text or 13 in text:
            return self._take_wide(data)
        reader.pieces += 1
        size = self._size + len(text)
        line = _LINES[size] if size < _MOST else b"%x\r\n" % size
        self._write(b"".join((line, self._opening, text, self._after)))
        return b""

    def _take_several(self, data: bytes) -> bytes:
        left = self._take_narrow(data)
        return self._take_wide(left) if left else left

    def _take_narrow(self, data: bytes) -> bytes:
        """Several chunks of the narrow form in one go: the client gets their events in one chunk."""
        opening, cut, close, closes = self._open, self._cut, self._close, self._rest
        before, after = self._opening, self._after[:-2]
        outs: list[bytes] = []
        running, at = b"", 0
        # Each piece but the last is a chunk without its end, if what it says of its size is right.
        for piece in data.split(_END)[:-1]:
            size, digits = len(piece) - 1, 2
            if size > 255:
                size, digits = size - 1, 3
            if not 15 < size < _MOST or piece[: digits + cut] != _SIZES[size] + opening:
                break
            text, _, rest = piece[digits + cut :].partition(b'"')
            if rest != close:
                figures = rest[closes:]
                if rest[:closes] != close or figures[:9] not in _RUNNING_STARTS or 10 in figures:
                    break
                running = figures
            if 10 in text or 13 in text:
                break
            outs += (before, text, after)
            at += len(piece) + len(_END)
        if outs:
            if running:
                self._reader.last_running = running + b"}"
            self._reader.pieces += len(outs) // 3
            payload = b"".join(outs)
            self._write(b"%x\r\n%b\r\n" % (len(payload), payload))
        return data[at:] if at else data

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
        if UNFINISHED not in choices or FINISHED in choices or 10 in choices or 13 in choices:
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
                self._close, self._after = closing[1:-1] + self._fixed, closing + _END
                self._cut, self._rest, self._tail = len(self._open), len(self._close), self._close + _END
                self._size = len(self._before) + len(choices) - (end - start) + 3
                return
