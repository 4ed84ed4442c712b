"""One request from head to last byte, without sockets: every way it can end, and what is recorded of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from berth_gateway.contract import CountedBy, Outcome
from berth_gateway.records import OPEN, SETTLED, read_records
from berth_gateway.spool import SpoolFull
from berth_gateway.upstream import Upstream
from tests.gateway.core import Core, Dialled, Wire, answers, whole_answer
from tests.gateway.harness import (
    HEAD,
    chat_chunk,
    chat_events,
    chunked,
    completion_events,
    event,
    plain,
    raw_post,
    timings,
)

WORDS = ["one ", "two ", "three"]


def piece(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def text_of(events: list[Any]) -> str:
    return "".join(
        e["choices"][0]["delta"].get("content") or "" for e in events if isinstance(e, dict) and e.get("choices")
    )


def test_a_stream_from_head_to_last_byte(core: Core) -> None:
    client, wire = core.ask(stream=True)
    assert wire.out == b"", "the head waits for the first event"
    core.engine.send(HEAD + piece(chat_events(WORDS)[0]))
    assert wire.out == b"", "the role alone is no answer yet"
    for part in chat_events(WORDS)[1:]:
        core.engine.send(piece(part))
    (answer,) = answers(wire.out)
    assert answer.status == 200
    assert text_of(answer.events) == "one two three"
    assert answer.events[-1] == "[DONE]"
    assert wire.writes[-1].endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"), "[DONE] and the end in one segment"
    assert wire.open
    (event_,) = core.events
    assert (event_.outcome, event_.status, event_.counted_by) == (Outcome.OK, 200, CountedBy.ENGINE)
    assert (event_.prompt_tokens, event_.cached_tokens, event_.completion_tokens) == (11, 3, 3)
    client.lost()
    assert len(core.events) == 1, "leaving after [DONE] is no abort"


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_split_of_both_sides_gives_the_same_answer_and_usage(core: Core, data: st.DataObject) -> None:
    core.events.clear()
    request, reply = core.request(stream=True), whole_answer(WORDS)
    client, wire = core.client()
    at = data.draw(st.integers(0, len(request)))
    for part in (request[:at], request[at:]):
        if part:
            client.received(part)
    engine = core.dialled[-1]
    for _ in range(3):
        cut = data.draw(st.integers(0, len(reply)))
        if cut:
            engine.send(reply[:cut])
        reply = reply[cut:]
    if reply:
        engine.send(reply)
    (answer,) = answers(wire.out)
    assert text_of(answer.events) == "one two three"
    assert (core.events[0].completion_tokens, core.events[0].outcome) == (3, Outcome.OK)
    client.lost()


def test_the_engine_gets_our_encoding_with_a_limit_and_running_counts(core: Core) -> None:
    core.ask(stream=False, user="somebody", max_completion_tokens=7)
    sent = core.engine.requests[0]
    assert sent.json["stream"] is True
    assert sent.json["max_tokens"] == 7
    assert sent.json["timings_per_token"] is True
    assert sent.json["model"] == "engine-name"
    assert "user" not in sent.json
    names = {line.split(b":")[0] for line in sent.head.split(b"\r\n")[1:]}
    assert names == {b"host", b"authorization", b"content-type", b"x-request-id", b"content-length"}
    assert sent.header("authorization") == "Bearer engine-secret-0123456789"


def test_a_connection_is_used_again_after_a_clean_end_only(core: Core) -> None:
    for expected in (1, 1):
        _, wire = core.ask()
        core.engine.send(whole_answer(WORDS))
        assert len(core.dialled) == expected
        assert answers(wire.out)[0].json["choices"][0]["message"]["content"] == "one two three"
    core.ask()
    core.engine.send(whole_answer(WORDS) + b"HTTP/1.1 200 OK\r\n\r\n")
    assert core.engine.wire.closed, "bytes left over: never pooled"
    core.ask()
    assert len(core.dialled) == 2


def test_an_idle_connection_that_speaks_or_dies_is_forgotten(core: Core) -> None:
    core.ask()
    core.engine.send(whole_answer(WORDS))
    core.engine.send(b"HTTP/1.1 200 OK\r\n\r\n")
    assert core.engine.wire.aborted
    core.ask()
    core.engine.send(whole_answer(WORDS))
    core.engine.upstream.lost()
    core.ask()
    assert len(core.dialled) == 3


def test_one_retry_on_a_stale_connection(core: Core) -> None:
    core.ask()
    core.engine.send(whole_answer(WORDS))
    _, wire = core.ask()
    assert len(core.dialled) == 1
    core.engine.upstream.lost()
    assert len(core.dialled) == 2
    core.engine.send(whole_answer(WORDS))
    assert answers(wire.out)[0].status == 200
    assert [e.outcome for e in core.events] == [Outcome.OK, Outcome.OK]


@pytest.mark.parametrize("answered", [b"", b"HTTP/1.1 200 OK\r\n", HEAD, HEAD + piece(chat_events(WORDS)[0])])
def test_one_retry_on_another_replica_before_the_first_byte(tmp_path: Path, answered: bytes) -> None:
    core = Core(tmp_path, replicas=(7001, 7002, 7003))
    _, wire = core.ask(stream=True)
    if answered:
        core.engine.send(answered)
    core.engine.upstream.lost()
    assert len({d.upstream.where for d in core.dialled}) == 2
    core.engine.send(whole_answer(WORDS))
    (answer,) = answers(wire.out)
    assert text_of(answer.events) == "one two three"
    assert len(core.events) == 1
    core.close()


def test_an_answer_that_is_put_together_begins_anew_elsewhere(tmp_path: Path) -> None:
    """The client has got nothing yet, so it loses nothing; what the first replica made is nobody's, and on no bill."""
    core = Core(tmp_path, replicas=(7001, 7002, 7003))
    _, wire = core.ask()
    core.engine.send(HEAD + b"".join(piece(each) for each in chat_events(["lost", " words"])[:3]))
    core.clock += 5
    core.gateway.tick()
    core.engine.upstream.lost()
    assert len({d.upstream.where for d in core.dialled}) == 2
    core.engine.send(whole_answer(WORDS))
    (answer,) = answers(wire.out)
    assert (answer.status, answer.json["choices"][0]["message"]["content"]) == (200, "one two three")
    (booked,) = core.events
    assert (booked.outcome, booked.completion_tokens) == (Outcome.OK, 3)
    assert booked.first_token_ms is not None
    assert booked.first_token_ms >= 5000
    core.close()


def test_the_second_failure_is_told(tmp_path: Path) -> None:
    core = Core(tmp_path, replicas=(7001, 7002, 7003))
    _, wire = core.ask()
    core.engine.upstream.lost()
    core.engine.upstream.lost()
    assert (answers(wire.out)[0].status, len(core.dialled), len(core.events)) == (503, 2, 1)
    core.close()


def test_replicas_that_cannot_be_reached_are_no_try(tmp_path: Path) -> None:
    """None of them has seen the request, so each may be asked; one that had it, and another one, are all that may."""
    core = Core(tmp_path, replicas=(7001, 7002, 7003, 7004))
    core.refuse_connections = True
    _, wire = core.ask()
    assert answers(wire.out)[0].code == "upstream_unavailable"
    assert core.events == []
    core.refuse_connections = False
    _, wire = core.ask()
    core.refuse_connections = True
    core.engine.upstream.lost()
    assert answers(wire.out)[0].code == "upstream_unavailable"
    assert len(core.events) == 1
    core.close()


def test_a_second_try_never_meets_a_connection_that_may_be_stale(tmp_path: Path) -> None:
    core = Core(tmp_path, replicas=(7001, 7002))
    for _ in range(2):  # both have a kept connection
        core.ask()
    for each in list(core.dialled):
        each.send(whole_answer(WORDS))
    kept = len(core.dialled)
    _, wire = core.ask()
    (used,) = [each for each in core.dialled if len(each.requests) == 2]
    used.upstream.lost()
    core.engine.upstream.lost()
    assert len(core.dialled) == kept + 2
    core.engine.send(whole_answer(WORDS))
    assert answers(wire.out)[0].status == 200
    core.close()


def test_a_busy_replica_is_left_for_another_one(tmp_path: Path) -> None:
    core = Core(tmp_path, replicas=(7001, 7002))
    _, wire = core.ask()
    core.engine.send(plain(503, b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}'))
    assert len(core.dialled) == 2
    core.engine.send(plain(429, b"{}"))
    (answer,) = answers(wire.out)
    assert (answer.status, answer.code) == (503, "overloaded")
    assert answer.headers["retry-after"] == "2"
    core.close()


def test_nothing_reachable_is_503_and_was_never_accepted(core: Core, tmp_path: Path) -> None:
    core.refuse_connections = True
    _, wire = core.ask(stream=True)
    (answer,) = answers(wire.out)
    assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "upstream_unavailable", "1")
    assert core.events == []
    assert [file.stat().st_size for file in tmp_path.glob("*.spool")] == [0]
    assert core.gateway.exchanges == set()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "end",
    [
        None,  # the connection breaks
        piece(event({"error": {"message": "SECRET", "code": 500}})) + piece(event("[DONE]")) + b"0\r\n\r\n",
        b"0\r\n\r\n",  # a clean end without [DONE] and finish_reason
        piece(event("[DONE]")) + b"0\r\n\r\n",
        b"+5\r\nhello\r\n",  # broken framing
        piece(event("nonsense")),
    ],
)
def test_a_failure_in_mid_answer_is_told_and_metered_as_delivered(core: Core, stream: bool, end: bytes | None) -> None:
    _, wire = core.ask(stream=stream)
    core.engine.send(HEAD + b"".join(map(piece, chat_events(WORDS)[:3])))
    if end is None:
        core.engine.upstream.lost()
    else:
        core.engine.send(end)
    (answer,) = answers(wire.out)
    if stream:
        assert text_of(answer.events) == "one two "
        error = answer.events[-1]["error"]
        assert (error["type"], error["code"], error["param"]) == ("server_error", "upstream_error", None)
        assert answer.headers["x-request-id"] in error["message"]
        assert b"[DONE]" not in answer.body
    else:
        assert (answer.status, answer.code) == (503, "upstream_error")
    assert b"SECRET" not in answer.body
    assert wire.open, "the client's connection is kept"
    (event_,) = core.events
    assert (event_.outcome, event_.status) == (Outcome.UPSTREAM_ERROR, 200 if stream else 503)
    assert (event_.counted_by, event_.completion_tokens, event_.prompt_tokens) == (CountedBy.ENGINE_RUNNING, 2, 11)


def test_an_end_without_done_but_with_finish_reasons_is_a_whole_answer(core: Core) -> None:
    _, wire = core.ask(stream=True)
    core.engine.send(HEAD + chunked(*chat_events(WORDS)[:-1]))
    (answer,) = answers(wire.out)
    assert answer.events[-1] == "[DONE]"
    assert core.events[0].outcome is Outcome.OK


@pytest.mark.threat("B4")
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("chunks", [0, 1, 2, 3])
def test_a_client_that_leaves_pays_for_what_was_produced(core: Core, stream: bool, chunks: int) -> None:
    client, _ = core.ask(stream=stream)
    core.engine.send(HEAD + b"".join(map(piece, chat_events(WORDS)[: chunks + 1])))
    client.lost()
    assert core.engine.wire.aborted, "the engine stops at once"
    (event_,) = core.events
    assert (event_.outcome, event_.status) == (Outcome.CLIENT_CLOSED, 499)
    assert event_.completion_tokens == chunks
    assert event_.prompt_tokens == (11 if chunks else 0), "a prompt is billed once the first token exists"
    assert event_.counted_by is (CountedBy.ENGINE_RUNNING if chunks else CountedBy.NONE)
    assert core.gateway.router.in_flight() == 0


def test_a_client_that_leaves_while_the_engine_is_dialled(core: Core) -> None:
    waiting: list[Any] = []
    core.gateway.dial = waiting.append
    client, _ = core.ask()
    client.lost()
    wire = Wire()
    waiting[0].opened(wire)
    assert wire.aborted
    assert wire.out == b""
    assert core.events == []  # no engine has seen it
    assert core.gateway.exchanges == set()


@pytest.mark.threat("B4")
def test_an_engine_that_says_less_than_it_delivered_is_not_believed(core: Core) -> None:
    core.ask()
    said = {**chat_chunk({}), "choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 0, "total_tokens": 5}}
    body = [event(chat_chunk({"content": w})) for w in WORDS] + [
        event(chat_chunk({}, "stop")),
        event(said),
        event("[DONE]"),
    ]
    core.engine.send(HEAD + chunked(*body))
    (event_,) = core.events
    assert (event_.prompt_tokens, event_.completion_tokens, event_.counted_by) == (5, 3, CountedBy.ESTIMATE)
    assert core.gateway.telemetry.breaches.value(event_.deployment_id) == 1


@pytest.mark.threat("B4")
def test_an_engine_that_says_nothing_is_estimated_within_bounds(core: Core) -> None:
    core.ask(max_tokens=2)
    body = [event(chat_chunk({"content": w})) for w in WORDS] + [event(chat_chunk({}, "stop")), event("[DONE]")]
    core.engine.send(HEAD + chunked(*body))
    (event_,) = core.events
    assert (event_.completion_tokens, event_.counted_by) == (2, CountedBy.ESTIMATE)
    assert 0 < event_.prompt_tokens <= 2048


@pytest.mark.threat("B4")
def test_an_engine_that_claims_more_than_possible_is_cut_to_it(core: Core) -> None:
    core.ask(max_tokens=3)
    said = {**chat_chunk({}), "choices": [], "usage": {"prompt_tokens": 10**9, "completion_tokens": 10**6}}
    body = [event(chat_chunk({"content": w})) for w in WORDS] + [
        event(chat_chunk({}, "stop")),
        event(said),
        event("[DONE]"),
    ]
    core.engine.send(HEAD + chunked(*body))
    (event_,) = core.events
    assert (event_.prompt_tokens, event_.completion_tokens) == (2048, 3)


def test_an_explicit_zero_is_a_figure(core: Core) -> None:
    core.ask()
    said = {**chat_chunk({}), "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 0}}
    core.engine.send(HEAD + chunked(event(chat_chunk({}, "stop")), event(said), event("[DONE]")))
    (event_,) = core.events
    assert (event_.counted_by, event_.prompt_tokens, event_.completion_tokens) == (CountedBy.ENGINE, 9, 0)


def test_an_engines_refusal_is_told_in_our_words_and_never_billed(core: Core) -> None:
    _, wire = core.ask(stream=True)
    said = b'{"error":{"code":400,"message":"SECRET prompt","type":"exceed_context_size_error","n_prompt_tokens":6001,"n_ctx":2048}}'
    core.engine.send(plain(400, said))
    (answer,) = answers(wire.out)
    assert (answer.status, answer.code, answer.error["param"]) == (400, "context_length_exceeded", "messages")
    assert "This model's maximum context length is 2048 tokens" in answer.error["message"]
    assert "exceeds the context window" in answer.error["message"]
    assert (core.events[0].outcome, core.events[0].counted_by) == (Outcome.REJECTED, CountedBy.NONE)
    _, wire = core.ask()
    core.engine.send(plain(422, b'{"detail":[{"input":"SECRET"}]}'))
    (answer,) = answers(wire.out)
    assert answer.status == 400
    assert b"SECRET" not in wire.out


@pytest.mark.threat("G7")
@pytest.mark.parametrize("status", [200, 301, 401, 403, 404, 500, 502])
def test_hostile_answers_of_an_engine_do_not_arrive(core: Core, status: int) -> None:
    _, wire = core.ask()
    evil = b"Set-Cookie: a=SECRET\r\nLocation: http://SECRET\r\nAccess-Control-Allow-Origin: *\r\nX-Secret: SECRET\r\nServer: SECRET\r\n"
    core.engine.send(plain(status, b'{"error":"SECRET at /srv/SECRET.gguf"}', evil))
    (answer,) = answers(wire.out)
    assert (answer.status, answer.code) == (503, "upstream_error")
    assert set(answer.headers) == {"content-type", "content-length", "x-request-id", "retry-after", "x-should-retry"}
    assert b"SECRET" not in wire.out


@pytest.mark.threat("G7")
def test_headers_of_an_engine_do_not_arrive_with_a_good_answer_either(core: Core) -> None:
    _, wire = core.ask(stream=True)
    evil = HEAD[:-2] + b"Set-Cookie: a=SECRET\r\nX-Conversation-Id: SECRET\r\nAccess-Control-Allow-Origin: *\r\n\r\n"
    core.engine.send(evil + chunked(*chat_events(WORDS)))
    (answer,) = answers(wire.out)
    assert set(answer.headers) == {
        "transfer-encoding", "content-type", "cache-control", "x-accel-buffering", "x-request-id", "openai-processing-ms",
    }  # fmt: skip
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"


# --- time


def test_silence_is_filled_with_comments_and_later_failures_are_events(core: Core) -> None:
    _, wire = core.ask(stream=True)
    core.pass_time(14)
    assert wire.out == b""
    core.pass_time(2)
    core.pass_time(16)
    core.engine.send(plain(500, b"{}"))
    (answer,) = answers(wire.out)
    assert answer.status == 200
    assert answer.body.startswith(b": keep-alive\n\n: keep-alive\n\n")
    assert answer.events[-1]["error"]["code"] == "upstream_error"


def test_a_plain_client_gets_no_comments(core: Core) -> None:
    _, wire = core.ask()
    core.pass_time(100)
    assert wire.out == b""


def test_no_first_token_in_time_is_504(core: Core) -> None:
    _, wire = core.ask()
    core.pass_time(301)
    (answer,) = answers(wire.out)
    assert (answer.status, answer.error["type"], answer.code) == (504, "timeout", "request_timeout")
    assert answer.headers["x-should-retry"] == "false"
    assert core.engine.wire.aborted
    assert core.events[0].outcome is Outcome.TIMEOUT


def test_a_stream_that_takes_too_long_ends_with_an_event(core: Core) -> None:
    _, wire = core.ask(stream=True)
    core.engine.send(HEAD + b"".join(map(piece, chat_events(WORDS)[:3])))
    core.pass_time(3601)
    (answer,) = answers(wire.out)
    assert answer.events[-1]["error"]["code"] == "request_timeout"
    assert (core.events[0].outcome, core.events[0].completion_tokens) == (Outcome.TIMEOUT, 2)


def test_an_engine_that_does_not_end_its_answer_is_let_go(core: Core) -> None:
    core.ask()
    core.engine.send(HEAD + b"".join(map(piece, chat_events(WORDS))))
    assert core.events[0].outcome is Outcome.OK
    core.pass_time(6)
    assert core.engine.wire.aborted
    core.ask()
    assert len(core.dialled) == 2


# --- pressure, pipelines, old clients


def test_a_slow_reader_stops_the_engine_until_it_has_read(core: Core) -> None:
    client, wire = core.ask(stream=True)
    core.engine.send(HEAD + b"".join(map(piece, chat_events(WORDS)[:3])))
    client.full()
    assert core.engine.wire.paused
    client.drained()
    assert not core.engine.wire.paused
    client.full()
    for part in chat_events(WORDS)[3:]:
        core.engine.send(piece(part))
    assert answers(wire.out + b"0\r\n\r\n" if not wire.out.endswith(b"0\r\n\r\n") else wire.out)
    core.engine.send(b"0\r\n\r\n")
    assert not core.engine.wire.paused, "a connection is resumed before it is pooled"


def test_pipelined_requests_are_answered_in_order(core: Core) -> None:
    client, wire = core.client()
    client.received(core.request(stream=True) + core.request() + b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
    assert len(core.asked) == 1
    core.engine.send(whole_answer(["first"]))
    assert len(core.asked) == 2
    core.engine.send(whole_answer(["second"]))
    first, second, third = answers(wire.out)
    assert text_of(first.events) == "first"
    assert second.json["choices"][0]["message"]["content"] == "second"
    assert third.json == {"status": "ok"}


def test_too_much_pipelined_stops_the_reading(core: Core) -> None:
    client, wire = core.ask(stream=True)
    client.received(b"x" * 70_000)
    assert wire.paused


def test_an_http_1_0_client_gets_a_stream_without_chunks_and_the_end(core: Core) -> None:
    client, wire = core.client()
    body = core.gateway.encode({"model": "acme/model", "prompt": "x", "stream": True})
    client.received(raw_post("/v1/completions", body, core.world.token, version="1.0"))
    core.engine.send(HEAD + chunked(*completion_events(WORDS)))
    (answer,) = answers(wire.out)
    assert "transfer-encoding" not in answer.headers
    assert answer.headers["connection"] == "close"
    assert answer.events[-1] == "[DONE]"
    assert wire.ended


# --- the record before anything else


def test_a_request_that_cannot_be_recorded_is_refused_and_not_sent(core: Core) -> None:
    def full(event_: Any) -> None:
        raise SpoolFull

    core.gateway.spool.accept = full  # type: ignore[method-assign]
    _, wire = core.ask()
    (answer,) = answers(wire.out)
    assert (answer.status, answer.code) == (503, "service_unavailable")
    assert core.engine.wire.out == b""
    assert core.gateway.exchanges == set()


def test_the_record_is_written_before_the_request_and_the_end_before_the_last_bytes(core: Core, tmp_path: Path) -> None:
    def kinds() -> list[int]:
        return [
            kind for file in sorted(tmp_path.glob("*.spool")) for kind, _ in read_records(file, file.stat().st_size)
        ]

    seen: list[tuple[str, list[int]]] = []

    def watch(name: str, wire: Wire) -> None:
        write = wire.write
        wire.write = lambda data: (seen.append((name, kinds())), write(data))[1]  # type: ignore[method-assign]

    def dial(upstream: Upstream) -> None:
        made = Dialled(upstream)
        watch("engine", made.wire)
        core.dialled.append(made)
        upstream.opened(made.wire)

    core.gateway.dial = dial
    client, wire = core.client()
    watch("client", wire)
    client.received(core.request())
    core.engine.send(whole_answer(WORDS))
    assert seen == [("engine", [OPEN]), ("client", [OPEN, SETTLED])]


def test_progress_of_running_streams_is_recorded(core: Core, tmp_path: Path) -> None:
    core.ask(stream=True)
    core.engine.send(HEAD + b"".join(map(piece, chat_events(WORDS)[:3])))
    core.pass_time(1.1)
    (file,) = tmp_path.glob("*.spool")
    last = list(read_records(file, file.stat().st_size))[-1][1]
    assert (last.outcome, last.completion_tokens, last.prompt_tokens) == (Outcome.INTERRUPTED, 2, 11)


@pytest.mark.threat("K4")
def test_running_streams_of_a_revoked_key_are_cut(core: Core) -> None:
    _, wire = core.ask(stream=True)
    core.engine.send(HEAD + b"".join(map(piece, chat_events(WORDS)[:3])))
    core.world.keys.pop(0)
    core.gateway.offer_snapshot(core.world.next().signed())
    (answer,) = answers(wire.out)
    assert answer.events[-1]["error"]["code"] == "invalid_api_key"
    assert core.engine.wire.aborted
    assert (core.events[0].outcome, core.events[0].completion_tokens) == (Outcome.INTERRUPTED, 2)
    _, wire = core.ask()
    assert answers(wire.out)[0].status == 401


def test_timings_are_never_shown_even_in_the_first_chunk(core: Core) -> None:
    _, wire = core.ask(stream=True)
    core.engine.send(HEAD + piece(event(chat_chunk({"content": "x"}, **timings(5, 1)))))
    assert b"timings" not in wire.out
    assert b'"content":"x"' in wire.out


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.booleans(), st.lists(st.integers(0, 6000), max_size=6), st.integers(0, 3))
def test_the_short_way_and_the_long_way_of_a_chunk_are_the_same(
    core: Core, stream: bool, cuts: list[int], fault: int
) -> None:
    """Whole chunks, several in one read, torn ones, and a fault among them: as when every byte comes alone."""
    events = chat_events([f"w{n}\u00e9 " for n in range(12)])
    if fault:
        events.insert(3 * fault, event({"error": {"message": "SECRET"}}))
    reply = HEAD + chunked(*events)
    marks = sorted({c % len(reply) for c in cuts})
    outcomes: list[Any] = []
    for pieces in (
        [reply[i : i + 1] for i in range(len(reply))],
        [HEAD, *map(piece, events), b"0\r\n\r\n"],
        [reply[a:b] for a, b in zip([0, *marks], [*marks, len(reply)], strict=True)],
    ):
        core.events.clear()
        core.gateway.router.keep_only([])  # a connection of its own
        client, wire = core.ask(stream=stream)
        engine = core.engine
        for part in pieces:
            if part and not (engine.wire.aborted or engine.wire.closed):
                engine.send(part)
        (answer,) = answers(wire.out)
        client.lost()
        (usage,) = core.events
        counts = (usage.outcome, usage.prompt_tokens, usage.completion_tokens, usage.counted_by)
        text = (
            text_of(answer.events)
            if stream
            else str(answer.json.get("choices", [{}])[0].get("message", {}).get("content"))
        )
        outcomes.append((answer.status, text, answer.body.count(b'"error"'), counts))
    assert outcomes[0] == outcomes[1] == outcomes[2]
