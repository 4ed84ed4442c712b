"""The reader in plain Python and the compiled one: the same answers, and never a head that the compiled one refuses."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth_gateway import plain

gunicorn_h1c = pytest.importorskip("gunicorn_h1c", reason="needs a C compiler at installation")

token = st.text("abcXYZ019-_", min_size=1, max_size=12).map(str.encode)
text = st.text("abc XYZ019-_=;,/\t\xe9", max_size=20).map(lambda t: t.encode("latin-1"))
known = st.sampled_from(
    [
        (b"Host", b"x"),
        (b"Content-Length", b"5"),
        (b"Content-Length", b"5, 5"),
        (b"content-length", b"+5"),
        (b"Content-Length", b""),
        (b"Content-Length", b"99999999999999999999999"),
        (b"Transfer-Encoding", b"chunked"),
        (b"Transfer-Encoding", b"gzip, chunked"),
        (b"Transfer-Encoding", b"chunked, identity"),
        (b"Transfer-Encoding", b"xchunked"),
        (b"Connection", b"close"),
        (b"Connection", b"Keep-Alive"),
        (b"Connection", b"upgrade"),
        (b"Content-Type", b"application/json"),
    ]
)
field = st.one_of(known, st.tuples(token, text)).map(lambda pair: pair[0] + b": " + pair[1])
line = st.builds(
    lambda method, target, version: b" ".join((method, target, version)),
    st.sampled_from([b"GET", b"POST", b"OPTIONS", b"post", b"X", b"CONNECT", b"M#X"]),
    st.sampled_from([b"/", b"/v1/models?x=1", b"*", b"http://h/x", b"h:443", b"x", b"/\xc3\xa9", b""]),
    st.sampled_from([b"HTTP/1.1", b"HTTP/1.0", b"HTTP/1.2", b"HTTP/2.0", b"http/1.1"]),
)
head = st.builds(
    lambda first, fields, end: b"\r\n".join([first, *fields]) + end,
    line,
    st.lists(field, max_size=6),
    st.sampled_from([b"\r\n\r\n", b"\r\n\r\nbody", b"\n\n", b"\r\n", b"\r\n \r\n\r\n"]),
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A head with one byte replaced, put in or taken out."""
    whole = draw(head)
    at = draw(st.integers(0, max(0, len(whole) - 1)))
    odd = draw(st.sampled_from([b"", b"\n", b"\r", b"\0", b" ", b"\t", b":", b"\x7f", b"\xff", b"\r\n", b"\r\n\r\n"]))
    return whole[:at] + odd + whole[at + draw(st.integers(0, 1)) :]


def outcome(parse: Any, data: bytes, incomplete: tuple[type[Exception], ...]) -> Any:
    try:
        got = parse(data)
    except incomplete:
        return "incomplete"
    except ValueError:
        return "refused"
    if isinstance(got, dict):
        return (got["status"], got["minor_version"], tuple(got["headers"]), got["consumed"])
    names = ("method", "path", "minor_version", "headers", "consumed", "content_length", "has_chunked")
    return (*(getattr(got, name) for name in names), got.header_count, got.connection_close)


def compiled(data: bytes) -> Any:
    return outcome(gunicorn_h1c.parse_request_fast, data, (gunicorn_h1c._parser_fast.IncompleteError,))


def ours(data: bytes) -> Any:
    return outcome(plain.parse_request_fast, data, (plain.IncompleteError,))


@settings(max_examples=400, deadline=None)
@given(st.one_of(head, damaged()))
def test_what_the_plain_reader_accepts_the_compiled_one_accepts_alike(data: bytes) -> None:
    got = ours(data)
    if isinstance(got, tuple):
        assert got == compiled(data)
    elif got == "incomplete":
        assert compiled(data) in ("incomplete", "refused")


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([b"GET", b"POST", b"DELETE"]),
    st.lists(st.tuples(token.map(lambda name: b"x-" + name), text), max_size=8),
    st.sampled_from(
        [(), ((b"Content-Length", b"12"),), ((b"transfer-encoding", b"Chunked"),), ((b"Connection", b"close"),)]
    ),
)
def test_what_honest_clients_send_both_accept(method: bytes, fields: list[Any], framing: tuple[Any, ...]) -> None:
    lines = [method + b" /v1/chat/completions HTTP/1.1", b"Host: h"]
    data = b"\r\n".join([*lines, *(n + b": " + v for n, v in [*fields, *framing])]) + b"\r\n\r\n{}"
    assert isinstance(ours(data), tuple)
    assert ours(data) == compiled(data)


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\ndata",
        b"HTTP/1.1 503\r\n\r\n",
        b"HTTP/1.0 404 Not Found\r\nA:  b \r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 2xx OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA : b\r\n\r\n",
    ],
)
def test_responses(data: bytes) -> None:
    theirs = outcome(gunicorn_h1c.parse_response, data, (gunicorn_h1c.IncompleteError,))
    assert outcome(plain.parse_response, data, (plain.IncompleteError,)) == theirs


def test_limits_are_told_apart() -> None:
    start = b"GET / HTTP/1.1\r\n"
    for data in (start + b"a: b\r\n" * 101 + b"\r\n", start + b"a: " + b"b" * 8190 + b"\r\n\r\n"):
        with pytest.raises(plain.LimitRequestHeaders):
            plain.parse_request_fast(data)
        with pytest.raises(gunicorn_h1c.LimitRequestHeaders):
            gunicorn_h1c.parse_request_fast(data)
