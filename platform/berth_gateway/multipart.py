"""multipart/form-data: read strictly, written anew. Bytes only, no sockets.

The boundary is read from the body's own first line, so a body means the same whatever its header says.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

from berth_gateway.errors import Refusal

MAX_PARTS = 64
MAX_HEAD = 4096  # bytes of one part's headers
MAX_TEXT = 64 * 1024  # bytes of a part that is no file

_FIRST_LINE = re.compile(rb"(?:\r\n)?--([A-Za-z0-9'()+_,./:=?-]{1,70})[ \t]*\r\n")
_DISPOSITION = re.compile(
    rb'content-disposition:[ \t]*form-data;[ \t]*name="([^"\r\n]{1,128})"(?:;[ \t]*filename="([^"\r\n]{0,512})")?'
    rb"(?:;[ \t]*filename\*=[^\r\n;]{0,1024})?[ \t]*\Z",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Part:
    """`filename` is None for a plain field."""

    name: str
    filename: str | None
    data: bytes


def read_form(data: bytes) -> list[Part]:
    """The parts in their order. Raises Refusal."""
    first = _FIRST_LINE.match(data)
    if first is None:
        raise _malformed()
    mark = b"\r\n--" + first[1]
    parts: list[Part] = []
    at = first.end()
    while True:
        end = data.find(mark, at - 2)
        if end < 0 or len(parts) == MAX_PARTS:
            raise _malformed()
        parts.append(_part(data, at, end))
        after = end + len(mark)
        if data[after : after + 2] == b"--":
            return parts
        line = data.find(b"\r\n", after, after + 64)
        if line < 0 or data[after:line].strip(b" \t"):
            raise _malformed()
        at = line + 2


def _part(data: bytes, start: int, end: int) -> Part:
    stop = data.find(b"\r\n\r\n", start, min(end, start + MAX_HEAD))
    if stop < 0:
        raise _malformed()
    found = [m for m in map(_DISPOSITION.match, data[start:stop].split(b"\r\n")) if m]
    if len(found) != 1:
        raise _malformed()
    name, filename = found[0][1], found[0][2]
    value = data[stop + 4 : end]
    try:
        shown = name.decode()
        if filename is not None:
            return Part(shown, filename.decode(errors="replace"), value)
        if len(value) > MAX_TEXT:
            raise Refusal("invalid_value", "A field of the form is longer than 64 KiB.", param=shown)
        value.decode()
    except UnicodeDecodeError:
        raise _malformed() from None
    return Part(shown, None, value)


def write_form(fields: list[tuple[str, str]], file: Part) -> tuple[bytes, str]:
    """A body and its content type. The file comes last, under the name given."""
    boundary = secrets.token_hex(24)  # nobody can have put it into the file
    out = [
        b'--%b\r\ncontent-disposition: form-data; name="%b"\r\n\r\n%b\r\n'
        % (boundary.encode(), name.encode(), value.encode())
        for name, value in fields
    ]
    head = f'--{boundary}\r\ncontent-disposition: form-data; name="{file.name}"; filename="{file.filename}"\r\n'
    out += (
        head.encode(),
        b"content-type: application/octet-stream\r\n\r\n",
        file.data,
        f"\r\n--{boundary}--\r\n".encode(),
    )
    return b"".join(out), f"multipart/form-data; boundary={boundary}"


def _malformed() -> Refusal:
    return Refusal(
        "invalid_value", "The body could not be read as multipart/form-data. Send a form with 'file' and 'model'."
    )
