"""Reads HTTP/1.1 heads in plain Python: what gunicorn-h1c does, for machines that could not compile it.

The same names and the same answers, about eight times slower (12 µs a request). It accepts no head that the compiled reader
refuses: every doubt is a refusal. A property test holds the two together.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

MAX_FIELDS = 100
MAX_LINE = 8190  # bytes of a request line or of one field
SINGLE = frozenset({b"host", b"content-length", b"content-type"})  # a second one is an ambiguity, never a list

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_REQUEST_LINE = re.compile(rb"([A-Z0-9!$%&'*+.^_`|~-]{3,20}) ([\x21-\x7e\x80-\xff]+) HTTP/1\.([01])")
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([0-9]{3})(?: [\t\x20-\x7e\x80-\xff]*)?")
_FIELD = re.compile(rb"(" + _TOKEN + rb"):([\t\x20-\x7e\x80-\xff]*)")


class ParseError(ValueError):
    """The head is not HTTP/1.0 or 1.1, or can be understood in two ways."""


class IncompleteError(Exception):
    """The head's end has not come yet."""


class LimitRequestHeaders(ParseError):
    """Too many fields, or one that is too long."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """`content_length` is -1 without one; `connection_close` is 1 for close, 0 for keep-alive, -1 for neither."""

    method: bytes
    path: bytes
    minor_version: int
    headers: tuple[tuple[bytes, bytes], ...]
    consumed: int
    content_length: int
    has_chunked: bool
    connection_close: int

    @property
    def header_count(self) -> int:
        return len(self.headers)


def parse_request_fast(data: bytes) -> HttpRequest:
    """The request head at the start of `data`. Raises IncompleteError, LimitRequestHeaders, ParseError."""
    start = 2 if data[:2] == b"\r\n" else 0  # an empty line that some clients send after a body
    line, fields, consumed = _split(data, start)
    match = _REQUEST_LINE.fullmatch(line)
    if match is None or len(line) > MAX_LINE:
        raise ParseError("request line")
    method, path, minor = match[1], match[2], int(match[3])
    if not (path.startswith(b"/") or b"://" in path or (path == b"*" and method == b"OPTIONS")):
        raise ParseError("request target")
    if len(fields) > MAX_FIELDS or any(len(name) + len(value) + 4 > MAX_LINE for name, value in fields):
        raise LimitRequestHeaders("fields")
    length, chunked, close = _framing(fields, minor)
    return HttpRequest(method, path, minor, tuple(fields), consumed, length, chunked, close)


def parse_response(data: bytes) -> dict[str, Any]:
    """The response head at the start of `data`: status, minor_version, headers, consumed."""
    line, fields, consumed = _split(data, 0)
    match = _STATUS_LINE.fullmatch(line)
    if match is None:
        raise ParseError("status line")
    return {"status": int(match[2]), "minor_version": int(match[1]), "headers": fields, "consumed": consumed}


def _split(data: bytes, start: int) -> tuple[bytes, list[tuple[bytes, bytes]], int]:
    """First line, fields and where the head ends."""
    end = data.find(b"\r\n\r\n", start)
    if end < 0:
        raise IncompleteError
    line, *rest = bytes(data[start:end]).split(b"\r\n")
    fields = []
    for text in rest:
        match = _FIELD.fullmatch(
            text
        )  # also refuses folded lines, blanks before the colon, control characters, bare LF
        if match is None:
            raise ParseError("field")
        fields.append((match[1], match[2].strip(b" \t")))
    return line, fields, end + 4


def _framing(fields: list[tuple[bytes, bytes]], minor: int) -> tuple[int, bool, int]:
    """Length, whether chunked, and what Connection says."""
    length, chunked, close = -1, False, -1
    seen: set[bytes] = set()
    for name, value in fields:
        low = name.lower()
        if low in SINGLE and low in seen:
            raise ParseError("twice")
        seen.add(low)
        if low == b"content-length":
            if not value.isdigit() or len(value) > 18:
                raise ParseError("content-length")
            length = int(value)
        elif low == b"transfer-encoding":
            if chunked or value.lower() != b"chunked" or minor == 0:
                raise ParseError("transfer-encoding")
            chunked = True
        elif low == b"connection":
            said = value.lower()
            close = 1 if b"close" in said else 0 if b"keep-alive" in said else close
    if chunked and length >= 0:
        raise ParseError("two lengths")
    return length, chunked, close
