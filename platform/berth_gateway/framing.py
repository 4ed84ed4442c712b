"""HTTP/1.1 message bodies: chunked framing both ways, as strict as the standard allows. Bytes only, no sockets."""

from __future__ import annotations

import re

MAX_LINE = 1024  # a chunk-size line with its extensions
MAX_TRAILERS = 8192

LAST_CHUNK = b"0\r\n\r\n"

# Hexadecimal digits and, after a semicolon, anything visible: no sign, no 0x, no blanks, no control characters.
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,8})(?:;[\t\x20-\x7e\x80-\xff]*)?\Z")
_TRAILER_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*\Z")


known_sizes: dict[bytes, int] = {}  # by their lines; what is not in it may be right all the same


class FramingError(Exception):
    """The bytes are not what the framing announced. Whoever sent them is not trusted with another message."""


def chunk(payload: bytes) -> bytes:
    """One chunk. An empty payload gives nothing, because an empty chunk would end the body."""
    return b"%x\r\n%b\r\n" % (len(payload), payload) if payload else b""


def known_size(line: bytes) -> int | None:
    """The size in a line that has been read before; None does not say that it is wrong."""
    return known_sizes.get(line)


def chunk_size(line: bytes) -> int:
    """Raises FramingError. Engines' chunks have few sizes, so what was read once is remembered."""
    length = known_sizes.get(line)
    if length is None:
        found = _SIZE_LINE.match(line) if len(line) < MAX_LINE else None
        if found is None:
            raise FramingError("chunk size")
        length = int(found[1], 16)
        if len(line) < 6 and len(known_sizes) < 4096:
            known_sizes[line] = length
    return length


class ChunkedBody:
    """Takes the bytes of a chunked body in any pieces, gives its payload.

    `done` when the last chunk and its trailers have been read; `rest` then holds what came behind them.
    Costs time linear in the bytes, whatever the size of the pieces.
    """

    __slots__ = ("_left", "_line", "_trailers", "_trailing", "done", "rest")

    def __init__(self) -> None:
        self._line = b""  # start of a size line, or of a trailer line
        self._left = 0  # payload bytes of this chunk still to come, and 2 for the CRLF behind them
        self._trailing = False
        self._trailers = 0
        self.done = False
        self.rest = b""

    def feed(self, data: bytes) -> bytes:
        """Payload in `data`. Raises FramingError."""
        if self._line:
            data, self._line = self._line + data, b""
        at, size = 0, len(data)
        pieces: list[bytes] = []
        while at < size:
            if self._left:
                at = self._payload(data, at, pieces)
                continue
            end = data.find(b"\r\n", at)
            if end < 0:
                self._hold(data[at:])
                break
            if self._trailing:
                if self._trailer(data[at:end]):
                    self.done, self.rest = True, data[end + 2 :]
                    break
                at = end + 2
                continue
            length = chunk_size(data[at:end])
            at = end + 2
            if not length:
                self._trailing = True
            elif data[at + length : at + length + 2] == b"\r\n":  # the whole chunk is here
                pieces.append(data[at : at + length])
                at += length + 2
            else:
                self._left = length + 2
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    @property
    def between_chunks(self) -> bool:
        """Nothing of a chunk has come yet."""
        return not (self._left or self._line or self._trailing)

    @property
    def announced(self) -> int:
        """Payload of the present chunk that is still to come."""
        return max(0, self._left - 2)

    def _payload(self, data: bytes, at: int, pieces: list[bytes]) -> int:
        """Takes what `data` has of the chunk; returns where it ends."""
        left = self._left
        take = min(left, len(data) - at)
        payload = min(take, max(0, left - 2))
        if payload:
            pieces.append(data[at : at + payload])
        # What is left of `take` belongs to the CRLF: check exactly those bytes.
        if take > payload:
            start = 2 - (left - payload)
            if data[at + payload : at + take] != b"\r\n"[start : start + take - payload]:
                raise FramingError("chunk end")
        self._left = left - take
        return at + take

    def _hold(self, line: bytes) -> None:
        if len(line) > MAX_LINE or b"\n" in line or b"\r" in line[:-1]:
            raise FramingError("line end")
        self._line = line

    def _trailer(self, line: bytes) -> bool:
        """True at the empty line that ends the trailers. Their content is dropped."""
        if not line:
            return True
        self._trailers += len(line)
        if self._trailers > MAX_TRAILERS or not _TRAILER_LINE.match(line):
            raise FramingError("trailer")
        return False


class LengthBody:
    """A body of known length. The same interface as ChunkedBody."""

    __slots__ = ("_left", "done", "rest")

    def __init__(self, length: int) -> None:
        self._left = length
        self.done = length == 0
        self.rest = b""

    def feed(self, data: bytes) -> bytes:
        left = self._left
        if len(data) < left:
            self._left = left - len(data)
            return data
        self._left, self.done, self.rest = 0, True, data[left:]
        return data[:left] if self.rest else data


class UntilClose:
    """A body that ends with its connection (answers only). Never `done` by itself."""

    __slots__ = ("done", "rest")

    def __init__(self) -> None:
        self.done = False
        self.rest = b""

    def feed(self, data: bytes) -> bytes:
        return data


Body = ChunkedBody | LengthBody | UntilClose
