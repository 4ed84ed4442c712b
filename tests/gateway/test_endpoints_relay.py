"""What clients get of embeddings, rerank, responses, messages and audio, and what is metered, on the gateway's core."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from berth_gateway.contract import CountedBy, Outcome
from tests.gateway.core import Core, Wire, answers
from tests.gateway.harness import (
    HEAD,
    Answer,
    World,
    chat_chunk,
    chat_events,
    chunked,
    event,
    plain,
    raw_post,
    timings,
    usage,
)  # fmt: skip
from tests.gateway.test_endpoints_surface import form

EVERY = ("chat/completions", "completions", "responses", "messages", "embeddings", "rerank", "audio/transcriptions")
HELLO = [{"role": "user", "content": "hi"}]
CANARY = "/srv/models/secret-path.gguf"


@pytest.fixture
def every(tmp_path: Path) -> Iterator[Core]:
    """acme/model on llama.cpp and acme/big on vLLM serve everything, acme/chat only what chats do, acme/vectors only vectors."""
    world = World()
    world.route("acme/model", 7001, endpoints=EVERY)
    world.route("acme/big", 7002, endpoints=EVERY, engine="vllm")
    world.route("acme/chat", 7003, endpoints=("chat/completions", "completions"))
    world.route("acme/vectors", 7004, endpoints=("embeddings",))
    made = Core(tmp_path, world)
    yield made
    made.close()


def ask(core: Core, path: str, data: Any) -> Wire:
    _, wire = core.ask(data if isinstance(data, bytes) else json.dumps(data).encode(), path)
    return wire


def answered(core: Core, path: str, data: Any, engine: bytes | dict[str, Any]) -> Answer:
    """The answer to a request that the engine answers so."""
    wire = ask(core, path, data)
    core.engine.send(engine if isinstance(engine, bytes) else plain(200, json.dumps(engine).encode()))
    (answer,) = answers(wire.out)
    return answer


def named_events(body: bytes) -> list[tuple[str | None, dict[str, Any]]]:
    """Each event's name and data."""
    out = []
    for block in body.decode().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
        if "data" in lines:
            out.append((lines.get("event"), json.loads(lines["data"])))
    return out


# --- embeddings and rerank

FLOATS = [0.5, -1.25, 3.0]
PACKED = base64.b64encode(struct.pack("<3f", *FLOATS)).decode()


@pytest.mark.parametrize("given_", [FLOATS, PACKED], ids=["floats", "packed"])
@pytest.mark.parametrize("wanted", ["float", "base64", None])
def test_vectors_come_in_the_encoding_asked_for(every: Core, given_: Any, wanted: str | None) -> None:
    engine = {
        "object": "list", "model": CANARY, "usage": {"prompt_tokens": 7, "total_tokens": 7},
        "data": [{"index": 1, "embedding": given_, "x": CANARY}, {"index": 0, "embedding": given_}],
    }  # fmt: skip
    asked = {"model": "acme/vectors", "input": ["a", "b"], **({"encoding_format": wanted} if wanted else {})}
    answer = answered(every, "/v1/embeddings", asked, engine)
    expected = PACKED if wanted == "base64" else FLOATS
    assert answer.json == {
        "object": "list", "model": "acme/vectors", "usage": {"prompt_tokens": 7, "total_tokens": 7},
        "data": [{"object": "embedding", "index": at, "embedding": expected} for at in (0, 1)],
    }  # fmt: skip
    (seen,) = every.events
    assert (seen.endpoint, seen.prompt_tokens, seen.completion_tokens) == ("embeddings", 7, 0)
    assert (seen.outcome, seen.counted_by) == (Outcome.OK, CountedBy.ENGINE)


@pytest.mark.parametrize(
    "data",
    [[], [{"index": 0, "embedding": FLOATS}] * 2, [{"index": 1, "embedding": FLOATS}], [{"index": 0, "embedding": "!"}],
     [{"index": 0, "embedding": "AAA="}], [{"index": 0, "embedding": [1e999]}], [{"index": 0, "embedding": ["x"]}]],
)  # fmt: skip
def test_what_is_no_answer_is_503_and_free(every: Core, data: Any) -> None:
    engine = json.dumps({"data": data, "usage": {"prompt_tokens": 7}}).replace("Infinity", "1e999").encode()
    answer = answered(
        every,
        "/v1/embeddings",
        {"model": "acme/vectors", "input": "a", "encoding_format": "base64"},
        plain(200, engine),
    )
    assert (answer.status, answer.code) == (503, "upstream_error")
    (seen,) = every.events
    assert (seen.prompt_tokens, seen.counted_by, seen.outcome) == (0, CountedBy.NONE, Outcome.UPSTREAM_ERROR)


def test_an_engine_that_does_not_count_is_estimated(every: Core) -> None:
    engine = {"data": [{"index": 0, "embedding": FLOATS}]}
    assert answered(every, "/v1/embeddings", {"model": "acme/vectors", "input": "word " * 40}, engine).status == 200
    (seen,) = every.events
    assert (seen.counted_by, seen.completion_tokens) == (CountedBy.ESTIMATE, 0)
    assert 40 < seen.prompt_tokens < 80
    assert seen.first_token_ms is not None


def test_a_sum_over_many_inputs_may_exceed_one_context(every: Core) -> None:
    engine = {
        "data": [{"index": at, "embedding": FLOATS} for at in range(10)],
        "usage": {"prompt_tokens": 20_000, "total_tokens": 20_000},
    }
    assert answered(every, "/v1/embeddings", {"model": "acme/vectors", "input": ["a"] * 10}, engine).status == 200
    assert every.events[0].prompt_tokens == 20_000


def test_a_ranking_is_sorted_cut_and_shown_as_asked(every: Core) -> None:
    engine = {
        "id": CANARY, "model": CANARY, "usage": {"total_tokens": 9},
        "results": [
            {"index": 0, "relevance_score": 0.1, "document": {"text": CANARY}},
            {"index": 1, "relevance_score": 0.9},
            {"index": 2, "relevance_score": 0.5},
        ],
    }  # fmt: skip
    asked = {
        "model": "acme/big",
        "query": "q",
        "documents": ["a", {"text": "b"}, "c"],
        "top_n": 2,
        "return_documents": True,
    }
    for path in ("/v1/rerank", "/v2/rerank"):
        answer = answered(every, path, asked, engine).json
        assert answer.pop("id").startswith("rerank-")
        assert answer == {
            "model": "acme/big", "usage": {"prompt_tokens": 9, "total_tokens": 9},
            "results": [
                {"index": 1, "relevance_score": 0.9, "document": {"text": "b"}},
                {"index": 2, "relevance_score": 0.5, "document": {"text": "c"}},
            ],
        }  # fmt: skip
    assert [(e.endpoint, e.prompt_tokens, e.completion_tokens) for e in every.events] == [("rerank", 9, 0)] * 2
    assert every.asked[0].head.startswith(b"POST /v1/rerank ")
    del asked["return_documents"], asked["top_n"]
    assert [sorted(r) for r in answered(every, "/v1/rerank", asked, engine).json["results"]] == [
        ["index", "relevance_score"]
    ] * 3


# --- messages


def messages(**fields: Any) -> dict[str, Any]:
    return {"model": "acme/model", "max_tokens": 50, "messages": HELLO, **fields}


THOUGHT_AND_CALLED = [
    event(chat_chunk({"role": "assistant", "content": None})),
    event(chat_chunk({"reasoning_content": "hm"}, **timings(9, 1, 4))),
    event(chat_chunk({"content": "I"}, **timings(9, 2, 4))),
    event(chat_chunk({"content": " call"}, **timings(9, 3, 4))),
    event(chat_chunk({"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}]})),
    event(chat_chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]}, **timings(9, 5, 4))),
    event(chat_chunk({"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}, **timings(9, 6, 4))),
    event(chat_chunk({}, "tool_calls")),
    event({**chat_chunk({}), "choices": [], **usage(9, 6, 4)}),
    event("[DONE]"),
]  # fmt: skip
BLOCKS = [
    {"type": "thinking", "thinking": "hm", "signature": ""},
    {"type": "text", "text": "I call"},
    {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}},
]


def test_a_message_in_one_piece(every: Core) -> None:
    answer = answered(every, "/v1/messages", messages(), HEAD + chunked(*THOUGHT_AND_CALLED))
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    body = answer.json
    assert body.pop("id").startswith("msg_")
    assert body == {
        "type": "message", "role": "assistant", "model": "acme/model", "content": BLOCKS, "stop_reason": "tool_use", "stop_sequence": None,
        "usage": {"input_tokens": 5, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 4, "output_tokens": 6},
    }  # fmt: skip
    (seen,) = every.events
    assert (seen.endpoint, seen.stream, seen.counted_by) == ("messages", False, CountedBy.ENGINE)
    assert (seen.prompt_tokens, seen.cached_tokens, seen.completion_tokens) == (9, 4, 6)


def rebuilt(events: list[tuple[str | None, dict[str, Any]]]) -> list[dict[str, Any]]:
    """The blocks that a client makes of a stream; fails on any event out of order."""
    blocks: list[dict[str, Any]] = []
    texts: list[str] = []
    open_ = False
    for name, data in events:
        assert name == data["type"]
        if name == "content_block_start":
            assert not open_ and data["index"] == len(blocks)
            open_ = True
            blocks.append(dict(data["content_block"]))
            texts.append("")
        elif name == "content_block_delta":
            assert open_ and data["index"] == len(blocks) - 1
            delta = dict(data["delta"])
            assert delta.pop("type") in ("text_delta", "thinking_delta", "input_json_delta")
            (piece,) = delta.values()
            texts[-1] += piece
        elif name == "content_block_stop":
            open_ = False
    for block, text in zip(blocks, texts, strict=True):
        key = {"text": "text", "thinking": "thinking", "tool_use": "input"}[block["type"]]
        block[key] = json.loads(text) if key == "input" else text
    return blocks


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(1, 3000), max_size=6))
def test_a_streamed_message_however_it_is_split(every: Core, points: list[int]) -> None:
    every.events.clear()
    wire = ask(every, "/v1/messages", messages(stream=True))
    data = HEAD + chunked(*THOUGHT_AND_CALLED)
    cuts = [0, *sorted(p for p in points if p < len(data)), len(data)]
    for start, end in pairwise(cuts):
        every.engine.send(data[start:end])
    (answer,) = answers(wire.out)
    events = named_events(answer.body)
    assert [events[0][0], events[-2][0], events[-1][0]] == ["message_start", "message_delta", "message_stop"]
    assert rebuilt(events) == BLOCKS
    start = events[0][1]["message"]
    assert (start["model"], start["usage"]["input_tokens"], start["usage"]["cache_read_input_tokens"]) == (
        "acme/model",
        5,
        4,
    )
    assert events[-2][1]["delta"]["stop_reason"] == "tool_use"
    assert events[-2][1]["usage"]["output_tokens"] == 6
    assert b"[DONE]" not in answer.body
    assert CANARY.encode() not in answer.body
    assert [(e.prompt_tokens, e.completion_tokens) for e in every.events] == [(9, 6)]


def test_the_short_cut_for_whole_chunks_says_the_same(every: Core) -> None:
    wire = ask(every, "/v1/messages", messages(stream=True))
    every.engine.send(HEAD)
    for each in chat_events([f"w{n} " for n in range(30)]):
        every.engine.send(b"%x\r\n%b\r\n" % (len(each), each))
    every.engine.send(b"0\r\n\r\n")
    (answer,) = answers(wire.out)
    assert rebuilt(named_events(answer.body)) == [{"type": "text", "text": "".join(f"w{n} " for n in range(30))}]
    assert every.events[0].completion_tokens == 30


def test_a_message_that_breaks_off_says_so_in_its_own_form(every: Core) -> None:
    wire = ask(every, "/v1/messages", messages(stream=True))
    every.engine.send(HEAD + b"".join(b"%x\r\n%b\r\n" % (len(e), e) for e in THOUGHT_AND_CALLED[:3]))
    every.engine.upstream.lost()
    (answer,) = answers(wire.out)
    name, data = named_events(answer.body)[-1]
    assert (name, data["type"], data["error"]["type"]) == ("error", "error", "overloaded_error")
    assert data["request_id"] == answer.headers["request-id"]
    (seen,) = every.events
    assert (seen.outcome, seen.prompt_tokens, seen.completion_tokens) == (Outcome.UPSTREAM_ERROR, 9, 2)


def test_who_leaves_a_message_pays_by_the_engines_running_figures(every: Core) -> None:
    client, _ = every.ask(json.dumps(messages(stream=True)).encode(), "/v1/messages")
    every.engine.send(HEAD + b"".join(b"%x\r\n%b\r\n" % (len(e), e) for e in THOUGHT_AND_CALLED[:6]))
    client.lost()
    assert every.engine.wire.aborted
    (seen,) = every.events
    assert (seen.outcome, seen.counted_by) == (Outcome.CLIENT_CLOSED, CountedBy.ENGINE_RUNNING)
    assert (seen.prompt_tokens, seen.cached_tokens, seen.completion_tokens) == (9, 4, 5)


def test_counting_tokens_costs_nothing(every: Core) -> None:
    asked = {"model": "acme/model", "messages": HELLO}
    answer = answered(every, "/v1/messages/count_tokens", asked, {"input_tokens": 12, "object": CANARY})
    assert (answer.status, answer.json) == (200, {"input_tokens": 12})
    asked["model"] = "acme/big"
    assert answered(every, "/v1/messages/count_tokens?beta=true", asked, {"count": 13, "tokens": [1]}).json == {
        "input_tokens": 13
    }
    assert [(e.endpoint, e.prompt_tokens, e.completion_tokens) for e in every.events] == [
        ("messages/count_tokens", 0, 0)
    ] * 2


# --- responses


def response_events(words: list[str], end: str = "completed", **final: Any) -> list[bytes]:
    """As llama.cpp sends them: without numbers and indices."""
    item = {"type": "message", "status": "completed", "id": "msg_x", "role": "assistant",
            "content": [{"type": "output_text", "annotations": [], "logprobs": [], "text": "".join(words)}]}  # fmt: skip
    started = {"id": "resp_x", "object": "response", "status": "in_progress", "model": CANARY, "path": CANARY}
    out: list[dict[str, Any]] = [
        {"type": "response.created", "response": started},
        {"type": "response.in_progress", "response": started},
        {"type": "response.output_item.added", "item": {**item, "content": [], "status": "in_progress"}},
        {"type": "response.content_part.added", "item_id": "msg_x", "part": {"type": "output_text", "text": ""}},
        *({"type": "response.output_text.delta", "item_id": "msg_x", "delta": w, **timings(8, n)} for n, w in enumerate(words, 1)),
        {"type": "response.output_text.done", "item_id": "msg_x", "text": "".join(words)},
        {"type": "response.content_part.done", "item_id": "msg_x", "part": item["content"][0]},  # type: ignore[index]
        {"type": "response.output_item.done", "item": item},
        {"type": f"response.{end}", "response": {**started, "status": end, "output": [item], **final}, **timings(8, len(words))},
    ]  # fmt: skip
    return [b"event: %b\n" % each["type"].encode() + event(each) for each in out]


def response_usage(prompt: int, completion: int, cached: int = 0) -> dict[str, Any]:
    return {
        "usage": {
            "input_tokens": prompt,
            "output_tokens": completion,
            "total_tokens": prompt + completion,
            "input_tokens_details": {"cached_tokens": cached},
        }
    }


def responses(**fields: Any) -> dict[str, Any]:
    return {"model": "acme/model", "input": "hi", **fields}


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(1, 3000), max_size=6))
def test_a_streamed_response_is_numbered_and_whole(every: Core, points: list[int]) -> None:
    every.events.clear()
    wire = ask(every, "/v1/responses", responses(stream=True, metadata={"a": "b"}))
    data = HEAD + chunked(*response_events(["a", "b"], **response_usage(8, 2, 3)))
    cuts = [0, *sorted(p for p in points if p < len(data)), len(data)]
    for start, end in pairwise(cuts):
        every.engine.send(data[start:end])
    (answer,) = answers(wire.out)
    events = named_events(answer.body)
    assert all(name == data["type"] for name, data in events)
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    assert all(data["output_index"] == 0 for name, data in events if "output_" in str(name) or "content_" in str(name))
    assert all(data["content_index"] == 0 for name, data in events if "_text." in str(name) or "content_" in str(name))
    assert not {"timings"} & {key for _, data in events for key in data}
    last = events[-1][1]["response"]
    assert (events[-1][0], last["model"], last["status"], last["store"]) == (
        "response.completed",
        "acme/model",
        "completed",
        False,
    )
    assert last["metadata"] == {"a": "b"}
    assert last["usage"] == {
        "input_tokens": 8, "input_tokens_details": {"cached_tokens": 3}, "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 10,
    }  # fmt: skip
    assert CANARY.encode() not in answer.body
    assert [(e.endpoint, e.prompt_tokens, e.cached_tokens, e.completion_tokens) for e in every.events] == [
        ("responses", 8, 3, 2)
    ]


@pytest.mark.parametrize("missing", [(2,), (3,), (2, 3)])
def test_what_opens_a_text_is_put_in_where_the_engine_left_it_out(every: Core, missing: tuple[int, ...]) -> None:
    """llama.cpp does when the first token is a part of a character; SDKs then look for an item that nobody told them of."""
    sent = response_events(["a", "b"], **response_usage(8, 2))
    wire = ask(every, "/v1/responses", responses(stream=True))
    every.engine.send(HEAD + chunked(*(each for number, each in enumerate(sent) if number not in missing)))
    (answer,) = answers(wire.out)
    events = named_events(answer.body)
    assert [name for name, _ in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    assert events[2][1]["item"]["id"] == events[3][1]["item_id"] == events[4][1]["item_id"] == "msg_x"


def test_a_response_in_one_piece(every: Core) -> None:
    engine = HEAD + chunked(*response_events(["a", "b"], **response_usage(8, 2)), event("[DONE]"))
    answer = answered(every, "/v1/responses", responses(), engine)
    assert answer.json["output"][0]["content"][0]["text"] == "ab"
    assert answer.json["id"].startswith("resp_")
    assert answer.json["usage"]["total_tokens"] == 10
    assert every.events[0].stream is False


def test_an_answer_that_was_cut_off_is_called_incomplete(every: Core) -> None:
    engine = HEAD + chunked(*response_events(["a", "b"], **response_usage(8, 2)))
    answer = answered(every, "/v1/responses", responses(max_output_tokens=2), engine)
    assert (answer.json["status"], answer.json["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert answer.json["output"][0]["status"] == "incomplete"


@pytest.mark.parametrize(
    "tail",
    [
        response_events(["a"], "failed", error={"code": "x", "message": CANARY}, **response_usage(8, 1))[-1],
        event({"type": "error", "message": CANARY}),
        event({"error": {"message": CANARY}}),
        event({"type": "response.output_item.added", "item": {"type": "secret_call", "id": "x"}}),
        event("[DONE]"),
        event("{"),
        b"",
    ],
)
def test_a_response_that_fails_says_so_so_that_clients_raise(every: Core, tail: bytes) -> None:
    wire = ask(every, "/v1/responses", responses(stream=True))
    every.engine.send(HEAD + chunked(*response_events(["a", "b"])[:5], *([tail] if tail else [])))
    (answer,) = answers(wire.out)
    name, data = named_events(answer.body)[-1]
    assert (name, data["type"], data["code"], data["error"]["code"]) == (
        "error",
        "error",
        "upstream_error",
        "upstream_error",
    )
    assert data["sequence_number"] == len(named_events(answer.body)) - 1
    assert CANARY.encode() not in answer.body
    (seen,) = every.events
    assert (seen.outcome, seen.prompt_tokens, seen.completion_tokens) == (Outcome.UPSTREAM_ERROR, 8, 1)


# --- audio


@pytest.mark.parametrize(
    ("usage_", "counted", "tokens"),
    [
        ({"type": "tokens", "input_tokens": 30, "output_tokens": 5, "total_tokens": 35}, CountedBy.ENGINE, (30, 5)),
        ({"type": "duration", "seconds": 3}, CountedBy.ESTIMATE, (0, 4)),
        (None, CountedBy.ESTIMATE, (0, 4)),
    ],
)
def test_a_transcript_and_its_usage(every: Core, usage_: Any, counted: CountedBy, tokens: tuple[int, int]) -> None:
    body = form(("file", b"RIFF"), ("model", "acme/big"))
    engine = {"text": "hello hello hello", "usage": usage_, "secret": CANARY}
    answer = answered(every, "/v1/audio/transcriptions", body, engine)
    assert answer.json == {"text": "hello hello hello", **({"usage": usage_} if usage_ else {})}
    (seen,) = every.events
    assert (seen.endpoint, seen.counted_by, (seen.prompt_tokens, seen.completion_tokens)) == (
        "audio/transcriptions",
        counted,
        tokens,
    )
    (asked,) = every.asked
    assert str(asked.header("content-type")).startswith("multipart/form-data; boundary=")
    assert b"acme/big" not in asked.body and b"engine-name" in asked.body


# --- errors


def test_what_a_model_does_not_serve_names_what_it_does(every: Core) -> None:
    cases = [
        ("/v1/responses", responses(model="acme/chat"), 404, "unsupported_endpoint"),
        ("/v1/embeddings", {"model": "acme/chat", "input": "a"}, 400, "unsupported_model"),
        ("/v1/rerank", {"model": "acme/chat", "query": "a", "documents": ["a"]}, 400, "unsupported_model"),
        ("/v1/chat/completions", {"model": "acme/vectors", "messages": HELLO}, 404, "unsupported_endpoint"),
    ]
    for path, data, status, code in cases:
        (answer,) = answers(ask(every, path, data).out)
        assert (answer.status, answer.code) == (status, code)
        assert "It serves: /v1/" in answer.error["message"]
    assert every.dialled == [] and every.events == []


@pytest.mark.parametrize(
    ("change", "status", "kind"),
    [
        (lambda d: d.update(model="acme/none"), 404, "not_found_error"),
        (lambda d: d.update(model="acme/vectors"), 404, "not_found_error"),
        (lambda d: d.pop("max_tokens"), 400, "invalid_request_error"),
        (lambda d: d.update(cache_salt="x"), 400, "invalid_request_error"),
    ],
)
def test_anthropics_clients_get_their_own_errors(
    every: Core, change: Callable[[Any], Any], status: int, kind: str
) -> None:
    data = messages()
    change(data)
    (answer,) = answers(ask(every, "/v1/messages", data).out)
    assert (answer.status, answer.json["type"], answer.error["type"]) == (status, "error", kind)
    assert answer.json["request_id"] == answer.headers["request-id"]
    assert set(answer.error) == {"type", "message"}


def test_a_wrong_key_and_an_unknown_path_too(every: Core) -> None:
    for path, status, kind in (
        ("/v1/messages", 401, "authentication_error"),
        ("/v1/messages/batches", 404, "not_found_error"),
    ):
        client, wire = every.client()
        client.received(raw_post(path, b"{}", "bth_sk_" + "z" * 43))
        (answer,) = answers(wire.out)
        assert (answer.status, answer.error["type"]) == (status, kind)


@pytest.mark.threat("G7")
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses", "/v1/embeddings", "/v1/rerank"])
def test_an_engines_error_is_never_shown(every: Core, path: str) -> None:
    data = {
        "/v1/messages": messages(), "/v1/responses": responses(), "/v1/embeddings": {"model": "acme/vectors", "input": "a"},
        "/v1/rerank": {"model": "acme/model", "query": "a", "documents": ["a"]},
    }[path]  # fmt: skip
    hostile = b"Set-Cookie: a=b\r\nX-Secret: " + CANARY.encode() + b"\r\n"
    for status, body in (
        (400, {"error": {"message": CANARY, "type": "invalid_request_error"}}),
        (500, {"error": CANARY}),
        (200, {"data": CANARY, "results": CANARY}),
    ):
        every.events.clear()
        answer = answered(every, path, data, plain(status, json.dumps(body).encode(), hostile))
        assert answer.status == (400 if status == 400 else 503)
        assert CANARY not in str(answer.headers) + answer.body.decode()
        assert "set-cookie" not in answer.headers
        assert [(e.prompt_tokens, e.completion_tokens) for e in every.events] == [(0, 0)]


def test_a_text_too_long_to_embed_is_the_clients_fault(every: Core) -> None:
    error = {"code": 500, "message": f"input (3001 tokens) is too large to process. {CANARY}", "type": "server_error"}
    answer = answered(
        every,
        "/v1/embeddings",
        {"model": "acme/vectors", "input": "a"},
        plain(500, json.dumps({"error": error}).encode()),
    )
    assert (answer.status, answer.code, answer.error["param"]) == (400, "context_length_exceeded", "input")
    assert every.events[0].outcome is Outcome.REJECTED


def test_too_long_is_told_by_the_field_of_each_endpoint(every: Core) -> None:
    engine = plain(
        400, json.dumps({"error": {"type": "exceed_context_size_error", "n_ctx": 10, "n_prompt_tokens": 20}}).encode()
    )
    answer = answered(every, "/v1/responses", responses(), engine)
    assert (answer.code, answer.error["param"]) == ("context_length_exceeded", "input")
    answer = answered(every, "/v1/messages", messages(), engine)
    assert "maximum context length" in answer.error["message"]


def test_many_prompts_and_choices_are_counted_together_where_the_engine_does(every: Core) -> None:
    chunks = [
        event({"choices": [{"index": at, "text": "x", "finish_reason": None}], "id": "c", "object": "text_completion"})
        for at in range(4)
    ]
    ends = [event({"choices": [{"index": at, "text": "", "finish_reason": "stop"}]}) for at in range(4)]
    engine = HEAD + chunked(*chunks, *ends, event({"choices": [], **usage(4000, 4)}), event("[DONE]"))
    asked = {"model": "acme/big", "prompt": ["a", "b"], "n": 2, "max_tokens": 5, "stream": True}
    answer = answered(every, "/v1/completions", asked, engine)
    texts = [(c["index"], c["text"]) for e in answer.events if e != "[DONE]" for c in e["choices"]]
    assert texts == [*((at, "x") for at in range(4)), *((at, "") for at in range(4))]
    assert [(e.prompt_tokens, e.completion_tokens) for e in every.events] == [(4000, 4)]


def test_an_answer_lacks_something_until_every_choice_has_its_end(every: Core) -> None:
    chunks = [event({"choices": [{"index": at, "text": "x", "finish_reason": None}]}) for at in range(2)]
    end = event({"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]})
    asked = {"model": "acme/big", "prompt": "a", "n": 2, "stream": True}
    answer = answered(every, "/v1/completions", asked, HEAD + chunked(*chunks, end))
    assert answer.events[-1]["error"]["code"] == "upstream_error"
    assert every.events[0].outcome is Outcome.UPSTREAM_ERROR
