"""HTTP/1.1 heads, read and written. Bytes only, no sockets.

Reading is picohttpparser's (gunicorn-h1c, or `plain` where that could not be compiled), which refuses bare LF, folded lines,
blanks before the colon, control characters, two lengths, a length beside chunked, and anything but HTTP/1.0 and 1.1; what it lets
pass and we do not is here.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct

try:
    from gunicorn_h1c import IncompleteError, LimitRequestHeaders, parse_request_fast, parse_response
    from gunicorn_h1c._parser_fast import IncompleteError as IncompleteRequest
except ImportError:  # it is compiled at installation, which needs a C compiler
    from berth_gateway.plain import IncompleteError, LimitRequestHeaders, parse_request_fast, parse_response
    from berth_gateway.plain import IncompleteError as IncompleteRequest

from berth_gateway.errors import REASONS

MAX_HEAD = 16 * 1024
MAX_HEADERS = 100
MAX_LENGTH = 1 << 50

_BARE_LF = re.compile(rb"(?<!\r)\n")
_CLIENT_ID = re.compile(r"[A-Za-z0-9._-]{1,128}\Z")
_DECIMAL = re.compile(rb"[0-9]{1,6}(?:\.[0-9]{1,6})?")


class HeadError(Exception):
    """The head cannot be trusted. `code` names the refusal."""

    def __init__(self, code: str = "bad_request") -> None:
        super().__init__(code)
        self.code = code


class RequestHead(Struct, frozen=True, gc=False):
    """What the gateway looks at of a request's head. `length` is -1 without Content-Length."""

    method: str
    target: str
    minor: int
    length: int
    chunked: bool
    keep_alive: bool
    expects_continue: bool
    authorizations: tuple[bytes, ...]
    api_keys: tuple[bytes, ...]
    origin: str | None
    preflight: bool
    client_request_id: str | None
    consumed: int
    read_timeout: float | None = None  # seconds that the client waits for bytes of an answer, as it says itself
    anthropic: bool = False  # it says which version of Anthropic's API it speaks
    forwarded: tuple[bytes, ...] = ()  # X-Forwarded-For, as it came
    traceparent: bytes | None = None

    @property
    def has_body(self) -> bool:
        return self.chunked or self.length > 0


def read_request(data: bytes, known: int = 0) -> RequestHead | None:
    """The head at the start of `data`, or None while it is incomplete. Raises HeadError.

    `known`: so many bytes were there at the last look, so that a head in many pieces is not read anew with each.
    """
    if known and data.find(b"\r\n\r\n", max(0, known - 3)) < 0:
        _check_incomplete(data, known)
        return None
    try:
        parsed = parse_request_fast(data)
    except IncompleteRequest:
        _check_incomplete(data, 0)
        return None
    except LimitRequestHeaders:
        raise HeadError("headers_too_large") from None
    except ValueError:  # the package has two classes named ParseError
        raise HeadError from None
    if parsed.consumed > MAX_HEAD or parsed.header_count > MAX_HEADERS:
        raise HeadError("headers_too_large")
    return _request_head(parsed)


def _check_incomplete(data: bytes, known: int) -> None:
    if len(data) > MAX_HEAD:
        raise HeadError("headers_too_large")
    if _BARE_LF.search(data, max(0, known - 1)):
        raise HeadError


_WANTED = frozenset(
    {
        b"host",
        b"origin",
        b"expect",
        b"x-api-key",
        b"x-request-id",
        b"authorization",
        b"content_length",
        b"transfer_encoding",
        b"transfer-encoding",
        b"access-control-request-method",
        b"anthropic-version",
        b"x-stainless-read-timeout",
        b"x-forwarded-for",
        b"traceparent",
    }
)


def _request_head(parsed: Any) -> RequestHead:
    found: dict[bytes, list[bytes]] = {}
    for name, value in parsed.headers:
        low = name.lower()
        if low in _WANTED:
            found.setdefault(low, []).append(value)
    # "gzip, chunked" makes engines hang, underscores are dashes to some servers, and no honest client sends either.
    if b"content_length" in found or b"transfer_encoding" in found:
        raise HeadError
    if any(value.strip().lower() != b"chunked" for value in found.get(b"transfer-encoding", ())):
        raise HeadError
    hosts = len(found.get(b"host", ()))
    if hosts > 1 or (hosts == 0 and parsed.minor_version == 1):
        raise HeadError
    expectations = found.get(b"expect", ())
    if any(value.strip().lower() != b"100-continue" for value in expectations):
        raise HeadError
    if parsed.content_length > MAX_LENGTH:
        raise HeadError("request_too_large")
    origins = found.get(b"origin", ())
    client_id = found.get(b"x-request-id", [b""])[0].decode("latin-1")
    return RequestHead(
        method=parsed.method.decode("ascii"),
        target=parsed.path.decode("latin-1"),
        minor=parsed.minor_version,
        length=parsed.content_length,
        chunked=parsed.has_chunked,
        keep_alive=parsed.connection_close != 1 and parsed.minor_version == 1,  # -1: no such header
        expects_continue=bool(expectations) and parsed.minor_version == 1,
        authorizations=tuple(found.get(b"authorization", ())),
        api_keys=tuple(found.get(b"x-api-key", ())),
        origin=origins[0].decode("latin-1") if len(origins) == 1 else None,
        preflight=b"access-control-request-method" in found,
        client_request_id=client_id if _CLIENT_ID.match(client_id) else None,
        consumed=parsed.consumed,
        read_timeout=_seconds(found.get(b"x-stainless-read-timeout", [b""])[0]),
        anthropic=b"anthropic-version" in found,
        forwarded=tuple(found.get(b"x-forwarded-for", ())),
        traceparent=found.get(b"traceparent", [None])[0],
    )


def _seconds(text: bytes) -> float | None:
    return float(text) if _DECIMAL.fullmatch(text.strip()) else None


class ResponseHead(Struct, frozen=True, gc=False):
    """What the gateway looks at of an engine's answer. `length` is -1 when there is none."""

    status: int
    length: int
    chunked: bool
    keep_alive: bool
    content_type: bytes
    consumed: int


def read_response(data: bytes) -> ResponseHead | None:
    """The answer's head at the start of `data`, or None while it is incomplete. Raises HeadError on any doubt."""
    try:
        parsed = parse_response(data)
    except IncompleteError:
        if len(data) > MAX_HEAD:
            raise HeadError from None
        return None
    except ValueError:  # the package has two classes named ParseError
        raise HeadError from None
    length, codings, kind = -1, [], b""
    keep_alive = parsed["minor_version"] == 1
    for name, value in parsed["headers"]:
        low = name.lower()
        if low == b"content-length":
            if length >= 0 or not value.isdigit():
                raise HeadError
            length = int(value)
        elif low == b"transfer-encoding":
            codings.append(value.strip().lower())
        elif low == b"connection":
            keep_alive = keep_alive and b"close" not in value.lower()
        elif low == b"content-type":
            kind = value.lower()
    if codings and (codings != [b"chunked"] or length >= 0):
        raise HeadError
    return ResponseHead(
        status=parsed["status"],
        length=length,
        chunked=bool(codings),
        keep_alive=keep_alive,
        content_type=kind,
        consumed=parsed["consumed"],
    )


def write_request(
    path: str,
    host: str,
    port: int,
    secret: str,
    request_id: str,
    body: bytes,
    content_type: str = "application/json",
    trace: str = "",
) -> bytes:
    """The head and body that an engine gets. Nothing of the client's head is in it but, where it is traced, the id of its trace."""
    more = f"traceparent: {trace}\r\n" if trace else ""
    return (
        f"POST {path} HTTP/1.1\r\nhost: {host}:{port}\r\nauthorization: Bearer {secret}\r\n"
        f"content-type: {content_type}\r\nx-request-id: {request_id}\r\n{more}content-length: {len(body)}\r\n\r\n"
    ).encode("latin-1") + body


def write_response(
    status: int, content_type: bytes, length: int, request_id: str, *, close: bool, more: bytes
) -> bytes:
    """A head with Content-Length. `more`: further lines, each ended by CRLF."""
    if status == 204:
        return b"HTTP/1.1 204 No Content\r\nx-request-id: %b\r\n%b%b\r\n" % (
            request_id.encode(),
            more,
            b"connection: close\r\n" if close else b"",
        )
    return b"HTTP/1.1 %d %b\r\ncontent-type: %b\r\ncontent-length: %d\r\nx-request-id: %b\r\n%b%b\r\n" % (
        status,
        REASONS[status].encode(),
        content_type,
        length,
        request_id.encode(),
        more,
        b"connection: close\r\n" if close else b"",
    )


def write_stream(request_id: str, *, chunked: bool, close: bool, more: bytes) -> bytes:
    """The head of an event stream. Without chunks (HTTP/1.0) the end of the connection ends the stream."""
    return (
        b"HTTP/1.1 200 OK\r\n%b%bcontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n%b\r\n"
        % (
            b"transfer-encoding: chunked\r\n" if chunked else b"",
            b"connection: close\r\n" if close or not chunked else b"",
            b"x-accel-buffering: no\r\nx-request-id: %b\r\n%b" % (request_id.encode(), more),
        )
    )
