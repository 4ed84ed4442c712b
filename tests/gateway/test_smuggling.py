"""Whatever a client sends, an engine sees one request or none, and only bytes that the gateway wrote itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gateway.core import Core, answers, whole_answer
from tests.gateway.harness import World, plain
from tests.gateway.test_fast import whole

BODY = b'{"model":"acme/model","messages":[{"role":"user","content":"x"}]}'
N = b"%d" % len(BODY)
TOKEN = b"Bearer bth_sk_" + b"a" * 43
START = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAuthorization: " + TOKEN + b"\r\n"
HIDDEN = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: b\r\nAuthorization: "
    + TOKEN
    + b"\r\nContent-Length: "
    + N
    + b"\r\n\r\n"
    + BODY
)
CHUNKED = b"%x\r\n" % len(BODY) + BODY + b"\r\n0\r\n\r\n"


def lines(*more: bytes, body: bytes = BODY) -> bytes:
    return START + b"".join(line + b"\r\n" for line in more) + b"\r\n" + body


# Each of these is refused as a whole, and what hides behind it is never taken for a request.
REFUSED = [
    lines(b"Content-Length: " + N, b"Transfer-Encoding: chunked", body=CHUNKED + HIDDEN),
    lines(b"Transfer-Encoding: chunked", b"Content-Length: " + N, body=CHUNKED + HIDDEN),
    lines(b"Content-Length: 0", b"Transfer-Encoding: chunked", body=CHUNKED + HIDDEN),
    lines(b"Content-Length: " + N, b"Content-Length: " + N),
    lines(b"Content-Length: " + N, b"Content-Length: 0", body=HIDDEN),
    lines(b"Content-Length: 0", b"Content-Length: " + N, body=HIDDEN),
    lines(b"Content-Length: +" + N),
    lines(b"Content-Length: -" + N),
    lines(b"Content-Length: " + N + b", " + N),
    lines(b"Content-Length: 0x41"),
    lines(b"Content-Length: " + N + b".0"),
    lines(b"Content-Length: 6 5"),
    lines(b"Content-Length:"),
    lines(b"Content-Length : " + N),
    lines(b"Content-Length\t: " + N),
    lines(b"Content_Length: " + N),
    lines(b"Transfer_Encoding: chunked", body=CHUNKED),
    lines(b"Transfer-Encoding: chunked, identity", body=CHUNKED),
    lines(b"Transfer-Encoding: gzip, chunked", body=CHUNKED),
    lines(b"Transfer-Encoding: identity", body=BODY),
    lines(b"Transfer-Encoding: xchunked", body=CHUNKED),
    lines(b'Transfer-Encoding: "chunked"', body=CHUNKED),
    lines(b"Transfer-Encoding: \x0bchunked", body=CHUNKED),
    lines(b"Transfer-Encoding : chunked", body=CHUNKED),
    lines(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked", body=CHUNKED),
    lines(b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity", body=CHUNKED),
    lines(b"Transfer-Encoding:", b" chunked", body=CHUNKED),
    lines(b"X: a", b" Content-Length: 0", b"Content-Length: " + N),
    lines(b"X: a\x00b", b"Content-Length: " + N),
    lines(b"X: a\nContent-Length: 0", b"Content-Length: " + N),
    lines(b"X: a\rContent-Length: 0", b"Content-Length: " + N),
    lines(b"Host: b", b"Content-Length: " + N),
    START.replace(b"\r\n", b"\n") + b"Content-Length: " + N + b"\n\n" + BODY,
    START.replace(b"HTTP/1.1", b"HTTP/1.0") + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKED,
    START.replace(b"HTTP/1.1", b"HTTP/1.2") + b"Content-Length: " + N + b"\r\n\r\n" + BODY,
    START.replace(b"POST ", b"POST\t") + b"Content-Length: " + N + b"\r\n\r\n" + BODY,
    lines(b"Transfer-Encoding: chunked", body=CHUNKED.replace(b"\r\n", b"\n")),
    lines(b"Transfer-Encoding: chunked", body=b"+" + CHUNKED),
    lines(b"Transfer-Encoding: chunked", body=b"0x" + CHUNKED),
    lines(b"Transfer-Encoding: chunked", body=CHUNKED.replace(b"\r\n", b" \r\n", 1)),
    lines(b"Transfer-Encoding: chunked", body=CHUNKED.replace(b"\r\n", b";a\nb\r\n", 1)),
    lines(b"Transfer-Encoding: chunked", body=CHUNKED.replace(b"\r\n0\r\n", b"XX0\r\n")),
    lines(b"Transfer-Encoding: chunked", body=CHUNKED[:-2] + b"Bad trailer\r\n\r\n"),
    lines(b"Transfer-Encoding: chunked", body=b"fffffffffffffffff\r\n" + BODY),
]


@pytest.mark.threat("G1")
@pytest.mark.parametrize("data", REFUSED)
def test_a_doubtful_request_never_reaches_an_engine(core: Core, data: bytes) -> None:
    for at in range(len(data)):
        client, wire = core.client()
        for piece in (data[:at], data[at:], b"\r\n\r\n", HIDDEN):
            if piece and wire.open:
                client.received(piece)
        assert core.asked == [], at
        (answer,) = answers(wire.out)
        assert answer.status == 400, at
        assert answer.headers["connection"] == "close"
        assert not wire.open
        client.lost()
    assert core.events == []


# These are one good request each, whatever surrounds its body.
GOOD = [
    lines(b"Content-Length: " + N),
    lines(b"content-length:" + N),
    lines(b"Transfer-Encoding: chunked", body=CHUNKED),
    lines(b"transfer-encoding:  Chunked ", body=CHUNKED.replace(b"\r\n", b";name=value\r\n", 1)),
    lines(b"Transfer-Encoding: chunked", body=CHUNKED[:-2] + b"X-Trailer: b\r\n\r\n"),
    lines(b"Transfer-Encoding: chunked", body=b"1\r\n{\r\n%x\r\n" % (len(BODY) - 1) + BODY[1:] + b"\r\n000\r\n\r\n"),
]


@pytest.mark.threat("G1")
@pytest.mark.parametrize("data", GOOD)
def test_a_good_request_reaches_the_engine_once_and_rewritten(core: Core, data: bytes) -> None:
    for at in range(len(data)):
        client, _ = core.client()
        for piece in (data[:at], data[at:]):
            if piece:
                client.received(piece)
        sent = core.engine.requests[-1]
        assert b"Host: a" not in sent.head
        assert sent.json["messages"] == [{"role": "user", "content": "x"}]
        core.engine.send(whole_answer(["x"]))
        client.lost()
    assert len(core.asked) == len(core.events) == len(data)


@pytest.mark.threat("G1")
def test_a_body_that_holds_a_request_is_a_body(core: Core) -> None:
    inner = core.gateway.encode({"model": "acme/model", "messages": [{"role": "user", "content": HIDDEN.decode()}]})
    client, wire = core.client()
    client.received(START + b"Content-Length: %d\r\n\r\n" % len(inner) + inner)
    assert len(core.asked) == 1
    core.engine.send(whole_answer(["x"]))
    assert len(answers(wire.out)) == 1
    assert len(core.asked) == 1


@pytest.mark.threat("G2")
def test_the_key_is_judged_before_the_body_is_read(core: Core) -> None:
    client, wire = core.client()
    client.received(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer wrong-key\r\nContent-Length: 10000000\r\n\r\n"
    )
    (answer,) = answers(wire.out)
    assert (answer.status, answer.code, answer.headers["connection"]) == (401, "invalid_api_key", "close")
    assert wire.ended
    for _ in range(20):
        client.received(b"x" * 65536)
    assert wire.aborted, "what is sent all the same is not read for ever"


@pytest.mark.threat("G2")
def test_expect_continue_is_answered_after_the_key_has_been_judged(core: Core) -> None:
    head = b"Content-Length: " + N + b"\r\nExpect: 100-continue\r\n\r\n"
    client, wire = core.client()
    client.received(START.replace(b"aaaa", b"zzzz") + head)
    assert [a.status for a in answers(wire.out)] == [401]
    client, wire = core.client()
    client.received(START + head)
    assert wire.out == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.received(BODY)
    core.engine.send(whole_answer(["x"]))
    assert [a.status for a in answers(wire.out)] == [100, 200]


@pytest.mark.threat("G2")
def test_a_body_over_the_limit_is_refused_before_it_is_read(core: Core) -> None:
    client, wire = core.client()
    client.received(START + b"Content-Length: 33554433\r\nExpect: 100-continue\r\n\r\n")
    (answer,) = answers(wire.out)
    assert (answer.status, answer.code) == (413, "request_too_large")
    client, wire = core.client()
    client.received(START + b"Transfer-Encoding: chunked\r\n\r\n")
    while wire.open:
        client.received(b"100000\r\n" + b"x" * 0x100000 + b"\r\n")
    assert answers(wire.out)[0].status == 413
    assert core.asked == []


@pytest.mark.threat("G2")
@pytest.mark.parametrize("before", [b"", b"3\r\nabc\r\n", b"1\r\na"], ids=["first", "second", "behind half a one"])
def test_a_chunk_over_the_limit_is_refused_by_its_size_line(before: bytes, core: Core) -> None:
    client, wire = core.client()
    client.received(START + b"Transfer-Encoding: chunked\r\n\r\n" + before)
    assert not wire.out
    client.received((b"\r\n" if before[-1:] == b"a" else b"") + b"2000001\r\n")
    (answer,) = answers(wire.out)
    assert (answer.status, answer.code) == (413, "request_too_large") and wire.ended


@pytest.mark.threat("G2")
def test_a_chunk_of_just_what_is_allowed_is_read(core: Core) -> None:
    client, wire = core.client()
    client.received(START + b"Transfer-Encoding: chunked\r\n\r\n2000000\r\nx")
    assert not wire.out
    client.received(b"x" * 0x1FFFFFF + b"\r\n0\r\n\r\n")
    assert [each.status for each in answers(wire.out)] == [400], "it is no JSON"


@pytest.mark.threat("G2")
def test_a_body_over_the_limit_is_refused_behind_a_head_that_is_known(tmp_path: Path) -> None:
    world = World()
    world.route("acme/model", 7001, engine="vllm")
    core = Core(tmp_path, world, BERTH_MAX_BODY_BYTES="1024")
    client, wire = core.client()
    for text, status in ((b"x", 200), (b"y", 200), (b"z" * 900, 200), (b"z" * 1000, 413)):
        body = BODY.replace(b'"x"', b'"%b"' % text)
        wire.out = b""
        client.received(lines(b"Content-Length: %d" % len(body), body=body))
        if status == 200:
            core.engine.send(plain(200, whole(2)))
        assert [each.status for each in answers(wire.out)] == [status]
    assert len(core.asked) == 3
    core.close()


@pytest.mark.threat("G2")
def test_slow_heads_and_bodies_are_given_up(core: Core) -> None:
    client, wire = core.client()
    client.received(b"POST /v1/chat")
    for _ in range(12):
        client.received(b"x")
        core.pass_time(1)
    assert answers(wire.out)[0].code == "slow_request"
    client, wire = core.client()
    client.received(START + b"Content-Length: 100000\r\n\r\n")
    for _ in range(15):
        if wire.open:
            client.received(b"x")
        core.pass_time(1)
    assert answers(wire.out)[0].code == "slow_request"


@pytest.mark.threat("G2")
def test_half_open_heads_do_not_hinder_others(core: Core) -> None:
    for _ in range(2000):
        client, _ = core.client()
        client.received(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nX: ")
    core.gateway.tick()
    _, wire = core.ask()
    core.engine.send(whole_answer(["x"]))
    assert answers(wire.out)[0].status == 200


def test_idle_connections_are_closed(core: Core) -> None:
    client, wire = core.client()
    client.received(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
    assert wire.open
    core.pass_time(80)
    assert wire.closed
