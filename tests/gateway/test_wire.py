"""The pure readers of bytes: framing, heads, event streams. Any split of the bytes gives the same."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth_gateway.framing import ChunkedBody, FramingError, LengthBody, chunk
from berth_gateway.head import HeadError, read_request, read_response
from berth_gateway.sse import MAX_EVENT, EventSplitter, EventTooLarge


def cut(data: bytes, points: list[int]) -> list[bytes]:
    marks = sorted({p % (len(data) + 1) for p in points})
    return [data[a:b] for a, b in zip([0, *marks], [*marks, len(data)], strict=True)]


# --- chunked bodies


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.lists(st.integers(0, 400), max_size=8))
def test_a_chunked_body_is_the_same_through_every_split(payloads: list[bytes], points: list[int]) -> None:
    data = b"".join(map(chunk, payloads)) + b"0;note=1\r\nX-Trailer: a\r\n\r\nNEXT"
    body = ChunkedBody()
    got, rest = b"", b""
    for piece in cut(data, points):
        if body.done:
            rest += piece
        else:
            got += body.feed(piece)
    assert (got, body.done, body.rest + rest) == (b"".join(payloads), True, b"NEXT")


@pytest.mark.threat("G1")
@pytest.mark.parametrize(
    "data",
    [
        b"+5\r\nhello\r\n0\r\n\r\n",
        b"0x5\r\nhello\r\n0\r\n\r\n",
        b"5 \r\nhello\r\n0\r\n\r\n",
        b" 5\r\nhello\r\n0\r\n\r\n",
        b"-1\r\n\r\n",
        b"\r\n0\r\n\r\n",
        b"1_0\r\n",
        b"fffffffff\r\n",
        b"5\nhello\r\n0\r\n\r\n",
        b"5\rhello",
        b"5\r\nhelloX\r\n0\r\n\r\n",
        b"5\r\nhello\n\n0\r\n\r\n",
        b"5\r\nhello\rX",
        b"5;a\nb\r\nhello\r\n0\r\n\r\n",
        b"5;a\x00b\r\nhello\r\n0\r\n\r\n",
        b"5;" + b"a" * 2000,
        b"0\r\nX Y: 1\r\n\r\n",
        b"0\r\nno colon\r\n\r\n",
        b"0\r\n folded: 1\r\n\r\n",
        b"0\r\nX: a\nb\r\n\r\n",
        b"0\r\n" + b"X: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n" * 300,
        b"g\r\n",
    ],
)
def test_a_doubtful_chunk_is_refused_through_every_split(data: bytes) -> None:
    for at in range(len(data) if len(data) < 200 else 1):
        body = ChunkedBody()
        with pytest.raises(FramingError):
            for piece in (data[:at], data[at:], b"\r\n"):
                body.feed(piece)
        assert not body.done


def test_a_body_of_known_length_leaves_what_follows() -> None:
    body = LengthBody(5)
    assert (body.feed(b"he"), body.done) == (b"he", False)
    assert (body.feed(b"lloNEXT"), body.done, body.rest) == (b"llo", True, b"NEXT")
    assert LengthBody(0).done


@pytest.mark.threat("G2")
def test_a_flood_of_tiny_chunks_costs_linear_time() -> None:
    def cost(count: int) -> float:
        data = b"1\r\nx\r\n" * count
        best = 1e9
        for _ in range(3):
            body, start = ChunkedBody(), time.process_time()
            for at in range(0, len(data), 1021):
                body.feed(data[at : at + 1021])
            best = min(best, time.process_time() - start)
        return best

    assert cost(160_000) / cost(40_000) < 10, "four times as much; sixteen if it were quadratic"


# --- heads

GOOD = b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.mark.threat("G1")
@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5, 5\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x5\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent_Length: 5\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nTransfer_Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \x0bchunked\r\n\r\n",
        b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\nHost: a\n\n",
        b"GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n folded\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
        b"GET / HTTP/1.1\r\n Host: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX\x80: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: no host\r\n\r\n",
        b"GET / HTTP/2.0\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1 \r\nHost: a\r\n\r\n",
        b"GET /\x01 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"G@T / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /\r\nHost: a\r\n\r\n",
        b"\r\n\r\n" + GOOD,
        b"GET / HTTP/1.1\r\nHost: a\r\nExpect: 200-ok\r\n\r\n",
    ],
)
def test_a_doubtful_head_is_refused_through_every_split(head: bytes) -> None:
    for at in range(1, len(head)):
        with pytest.raises(HeadError):
            if read_request(head[:at]) is None:
                read_request(head, at)


@pytest.mark.threat("G2")
def test_heads_are_bounded_in_bytes_and_lines() -> None:
    for head in (
        b"GET /" + b"a" * 20_000,
        GOOD[:-2] + b"X: " + b"a" * 17_000 + b"\r\n\r\n",
        GOOD[:-2] + b"X: a\r\n" * 101 + b"\r\n",
    ):
        with pytest.raises(HeadError) as refused:
            read_request(head)
        assert refused.value.code == "headers_too_large"


def test_a_good_head_is_read_through_every_split_and_leaves_the_body() -> None:
    data = (
        b"POST /v1/completions?beta=true HTTP/1.1\r\nHOST: a\r\nauthorization: Bearer k\r\nX-API-Key: k2\r\nContent-Length: 3\r\n"
        b"Expect: 100-continue\r\nOrigin: https://a.example\r\nX-Request-ID: my-id\r\n\r\nabc"
    )
    end = data.index(b"\r\n\r\n") + 4
    known = 0
    for at in range(1, end):
        assert read_request(data[:at], known) is None
        known = at
    head = read_request(data, known)
    assert head is not None
    assert (head.method, head.target, head.length, head.consumed) == ("POST", "/v1/completions?beta=true", 3, end)
    assert (head.authorizations, head.api_keys, head.origin) == ((b"Bearer k",), (b"k2",), "https://a.example")
    assert head.expects_continue
    assert head.keep_alive
    assert head.client_request_id == "my-id"


def test_connections_are_kept_unless_somebody_says_otherwise() -> None:
    def kept(line: bytes, version: bytes = b"1.1") -> bool:
        head = read_request(b"GET / HTTP/" + version + b"\r\nHost: a\r\n" + line + b"\r\n")
        assert head is not None
        return head.keep_alive

    assert kept(b"")
    assert kept(b"Connection: keep-alive\r\n")
    assert not kept(b"Connection: close\r\n")
    assert not kept(b"", b"1.0")


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/9 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 20_000,
    ],
)
def test_an_engines_doubtful_head_is_refused(head: bytes) -> None:
    with pytest.raises(HeadError):
        read_response(head)


# --- event streams

STREAM = (
    b'\xef\xbb\xbf: hello\n\ndata: {"a":1}\n\ndata:{"b":2}\r\n\r\ndata: x\rdata: y\r\revent: named\ndata: z\n\n\n\nid: 7\n\n'
    + "data: \u2028 \u4f60\u597d\n\ndata: [DONE]\n\n".encode()
)
EVENTS = [b'{"a":1}', b'{"b":2}', b"x\ny", b"z", "\u2028 \u4f60\u597d".encode(), b"[DONE]"]


def split_events(pieces: list[bytes]) -> list[bytes]:
    splitter = EventSplitter()
    return [event for piece in pieces for event in splitter.feed(piece)]


def test_events_survive_every_single_split_and_bytes_one_at_a_time() -> None:
    for at in range(len(STREAM) + 1):
        assert split_events([STREAM[:at], STREAM[at:]]) == EVENTS
    assert split_events([STREAM[i : i + 1] for i in range(len(STREAM))]) == EVENTS


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_events_survive_any_splits(points: list[int]) -> None:
    assert split_events(cut(STREAM, points)) == EVENTS


def test_an_event_that_is_not_closed_is_given_at_the_end() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"data: a\n\ndata: [DONE]") == [b"a"]
    assert splitter.finish() == [b"[DONE]"]
    assert splitter.finish() == []


def test_an_event_without_end_is_a_fault() -> None:
    splitter = EventSplitter()
    with pytest.raises(EventTooLarge):
        for _ in range(MAX_EVENT // 65536 + 2):
            splitter.feed(b"x" * 65536)
