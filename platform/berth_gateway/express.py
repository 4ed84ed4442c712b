"""The way of nearly every chunk of a stream that flows: one HTTP chunk in, one event of the learned form in it, one chunk out.

The same as Upstream, ChunkedBody, EventSplitter, ChunkReader, Relay and Client do together, in one step; a property test holds
the two ways together. Whatever looks different in the least is left for the long way.

Two forms are known. Of the narrow one only the text between two quotes differs from chunk to chunk; of the wide one, everything
within `choices`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from berth_gateway.chunks import FINISHED, RUNNING, UNFINISHED
from berth_gateway.framing import known_sizes

Write = Callable[[bytes], None]

_MOST = 4096  # bytes of an event in the narrow form
_TWO_DIGITS = 245  # a chunk that is so large without a text has three with nearly every text
_END = b"}\n\n\r\n"
SIZES = tuple(b"%x" % size for size in range(_MOST))
LINES = tuple(b"%x\r\n" % size for size in range(_MOST))
# Of a chunk that `receiver` takes: what of it is not its payload, the first size that is too much, where the text begins and, from the
# end, ends, what stands before and behind it; who is told; how it is written, how much larger, and what stands around it then.
Constants = tuple[int, int, int, int, bytes, bytes, object, object, int, bytes, bytes]
UNKNOWN: Constants = (0, 0, 0, 0, b"", b"", None, None, 0, b"", b"")  # no chunk is so small
_RUNNING_STARTS = frozenset(mark[:9] for mark in RUNNING)
_OPENINGS = (b'"delta":{"content":"', b'"text":"')


class Counting(Protocol):
    """Who is told of what went this way (`chunks.ChunkReader`)."""

    framed: bytes
    fixed: bytes
    pieces: int
    last_running: bytes

    @property
    def has_finished(self) -> bool: ...


class Express:
    """Takes whole chunks off the front of `data` and writes what becomes of them; returns what is left for the long way.

    `before`: what an event begins with for the client. `write` sends bytes to it.
    """

    __slots__ = (
        "_before",
        "_close",
        "_end",
        "_fixed",
        "_framed",
        "_lead",
        "_rest",
        "_shape",
        "_tried",
        "after",
        "base",
        "constants",
        "most",
        "open",
        "opening",
        "reader",
        "tail",
        "write",
    )

    def __init__(self, reader: Counting, before: bytes, write: Write) -> None:
        self.reader = reader
        self.write = write
        self._before = before
        self._framed, self._fixed = reader.framed, reader.fixed
        self._end = self._fixed + _END
        # The narrow form: what stands before the text and behind it, as the engine writes it (`open` behind the digits of the chunk's
        # size, `tail` where no figures follow) and as the client gets it (`opening`, `after`).
        self.open = self._close = self.opening = self.after = self.tail = b""
        self._lead = b""
        self._rest = 0
        self._tried = 4  # choices that are looked at for their narrow form
        self.base = self.most = 0  # how much larger the client's chunk is; the first size that is too much
        self._shape = UNKNOWN[:4]
        self.constants = UNKNOWN

    def fits(self, reader: Counting, before: bytes) -> bool:
        """Whether a stream with this reader differs in nothing but the bytes before its choices, and not in their number."""
        return (
            reader.fixed == self._fixed and len(reader.framed) == len(self._framed) and len(before) == len(self._before)
        )

    def another(self, reader: Counting, before: bytes, write: Write) -> Express:
        """The same for such a stream."""
        made = Express.__new__(Express)
        made.reader, made.write, made._before = reader, write, before
        made._framed = framed = reader.framed
        made._fixed, made._end, made._close, made._rest = self._fixed, self._end, self._close, self._rest
        made.open, made.opening = framed + self._lead, before + self._lead
        made._lead, made.after, made.tail, made._tried = self._lead, self.after, self.tail, 0
        made.most, made.base, made._shape = self.most, self.base, self._shape
        made._describe()
        return made

    @property
    def around(self) -> tuple[bytes, bytes]:
        """What stands around the text within `choices`."""
        return self._lead, self.after[: -len(_END)]

    def event(self, data: bytes) -> bytes | None:
        """The client's event for exactly one chunk of the narrow form; None if it is none."""
        kept: list[bytes] = []
        write, self.write = self.write, kept.append
        left = self._take_narrow(data) if self.open else data
        self.write = write
        return None if left or len(kept) != 1 else kept[0].partition(b"\r\n")[2][:-2]

    def take(self, data: bytes) -> bytes:
        """`data` begins between two chunks and two events."""
        opening = self.open
        if not opening:
            return self._take_wide(data)
        # A single chunk with figures behind it. Slices are compared: startswith() and find() take thrice as long to read their arguments.
        size, digits = len(data) - 6, 2
        if size > 255:
            size, digits = size - 1, 3
        if 15 < size < self.most and data[: (cut := digits + len(opening))] == SIZES[size] + opening:
            text, _, rest = data[cut:].partition(b'"')
            figures = rest[self._rest :]
            if (
                figures[:9] in _RUNNING_STARTS and rest[: self._rest] == self._close and figures[-5:] == _END
                and figures.count(b"\n") == 3 and not (10 in text or 13 in text)
            ):  # fmt: skip
                reader = self.reader
                reader.last_running = figures[:-4]
                reader.pieces += 1
                self.write(b"".join((LINES[size + self.base - len(figures) + 5], self.opening, text, self.after)))
                return b""
        left = self._take_narrow(data)
        return self._take_wide(left) if left else left

    def _take_narrow(self, data: bytes) -> bytes:
        """Several chunks of the narrow form in one go: the client gets their events in one chunk."""
        opening, cut, close, closes = self.open, len(self.open), self._close, self._rest
        before, after = self.opening, self.after[:-2]
        outs: list[bytes] = []
        running, at = b"", 0
        # Each piece but the last is a chunk without its end, if what it says of its size is right.
        for piece in data.split(_END)[:-1]:
            size, digits = len(piece) - 1, 2
            if size > 255:
                size, digits = size - 1, 3
            if not 15 < size < _MOST or piece[: digits + cut] != SIZES[size] + opening:
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
                self.reader.last_running = running + b"}"
            self.reader.pieces += len(outs) // 3
            payload = b"".join(outs)
            self.write(b"%x\r\n%b\r\n" % (len(payload), payload))
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
            self.write(outs[0] if len(outs) == 1 else b"".join(outs))
        return data[at:] if at else data

    def _one(self, data: bytes, at: int) -> bytes | None:
        """What the client gets for one whole chunk whose size line ends at `at`; None if it has to go the long way."""
        if not data.startswith(self._framed, at):
            return None
        reader = self.reader
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
            if (UNFINISHED in closing or UNFINISHED in opening) and closing.endswith(b"}]"):
                self.narrow(opening, closing)
                return

    def narrow(self, opening: bytes, closing: bytes) -> None:
        """What stands around the text within `choices`, from here on."""
        self._tried = 0
        self._lead = opening
        self.open, self.opening = self._framed + opening, self._before + opening
        self._close, self.after = closing[1:-1] + self._fixed, closing + _END
        self._rest = len(self._close)
        self.tail = b'"' + self._close + _END
        least = len(self.open) + len(self.tail) - 4  # the size of a chunk without text
        self.base = len(self._before) - len(self._framed) + 2 + 1 - len(self._fixed)
        digits = 2 if least < _TWO_DIGITS else 3
        self.most = min(_MOST, _MOST - self.base)
        self._shape = (digits + 4, self.most, digits + len(self.open), -len(self.tail))
        self._describe()

    def _describe(self) -> None:
        self.constants = (
            *self._shape, self.open, self.tail, self.reader, self.write, self.base, self.opening, self.after
        )  # fmt: skip
