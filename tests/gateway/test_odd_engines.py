"""Whatever well-formed JSON an engine answers with, nothing is raised and every request ends."""

from __future__ import annotations

import contextlib
import copy
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gateway.core import Core, answers
from tests.gateway.harness import HEAD, SECRET, World, chat, chunked, event, plain
from tests.gateway.test_endpoints_relay import EVERY, response_events, response_usage
from tests.gateway.test_endpoints_surface import form
from tests.gateway.test_whole_choices import whole

HELLO = [{"role": "user", "content": "hi"}]
CALL = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def chunk(delta: dict[str, Any] | None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
    return {"id": "e", "object": "chat.completion.chunk", "created": 1, "model": SECRET, "choices": choices, **more}


def of_events(raw: list[bytes]) -> list[dict[str, Any]]:
    return [json.loads(each.partition(b"data: ")[2]) for each in raw]


FIGURES = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5, "prompt_tokens_details": {"cached_tokens": 1}}
CHAT = [
    chunk({"role": "assistant", "content": ""}),
    chunk({"content": "a", "reasoning_content": "b"}, timings={"prompt_n": 3, "predicted_n": 1, "cache_n": 0}),
    chunk({"tool_calls": [CALL]}),
    chunk({}, "stop"),
    chunk(None, usage=FIGURES),
]
CALLED = [
    {"type": "response.output_item.added", "item": {"type": "function_call", "call_id": "c", "name": "f", "arguments": ""}},
    {"type": "response.function_call_arguments.delta", "item_id": "c", "delta": "{"},
    {"type": "response.output_item.done", "item": {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}},
]  # fmt: skip
RESPONSE = of_events(response_events(["a", "b"], **response_usage(8, 2, 3)))
RESPONSE[-1:-1] = CALLED
RESPONSE[-1]["response"]["output"].append(CALLED[-1]["item"])
TEXT = [
    {"choices": [{"index": 0, "text": "a", "logprobs": {"content": [{"token": "a", "logprob": -1.0, "top_logprobs": []}]},
                  "finish_reason": None}]},
    {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}], "usage": FIGURES},
]  # fmt: skip

# path, what is asked, the events or the one answer of a good engine
CASES: dict[str, tuple[str, Any, Any]] = {
    "chat": ("/v1/chat/completions", chat(stream=True), CHAT),
    "chat in one": ("/v1/chat/completions", chat(), CHAT),
    "whole chat": ("/v1/chat/completions", chat("acme/big"), whole()),
    "completions": ("/v1/completions", {"model": "acme/model", "prompt": "x", "logprobs": 1, "stream": True}, TEXT),
    "completions in one": ("/v1/completions", {"model": "acme/model", "prompt": "x", "logprobs": 1}, TEXT),
    "messages": ("/v1/messages", {"model": "acme/model", "max_tokens": 9, "messages": HELLO, "stream": True}, CHAT),
    "messages in one": ("/v1/messages", {"model": "acme/model", "max_tokens": 9, "messages": HELLO}, CHAT),
    "count": ("/v1/messages/count_tokens", {"model": "acme/model", "messages": HELLO}, {"input_tokens": 5}),
    "responses": ("/v1/responses", {"model": "acme/model", "input": "hi", "stream": True}, RESPONSE),
    "responses in one": ("/v1/responses", {"model": "acme/model", "input": "hi"}, RESPONSE),
    "embeddings": (
        "/v1/embeddings", {"model": "acme/model", "input": "a"},
        {"data": [{"index": 0, "embedding": [0.5, 1.0]}], "usage": {"prompt_tokens": 3, "total_tokens": 3}},
    ),
    "rerank": (
        "/v1/rerank", {"model": "acme/model", "query": "a", "documents": ["b", "c"]},
        {"results": [{"index": n, "relevance_score": 0.5} for n in range(2)], "usage": {"prompt_tokens": 3, "total_tokens": 3}},
    ),
    "audio": ("/v1/audio/transcriptions", None, {"text": "a", "usage": {"type": "tokens", "input_tokens": 3, "output_tokens": 2}}),
}  # fmt: skip

odd = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.just(10**30), st.just(-(10**30)), st.floats(allow_nan=False), st.text(max_size=3),
    st.sampled_from([[], {}, [[]], [5], [None], {"": 1}, {"index": []}, {"type": {}}, "stop", "completed", "message"]),
)  # fmt: skip


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container with every key or position in it."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


def spoilt(good: Any, data: st.DataObject) -> Any:
    made = copy.deepcopy(good)
    for _ in range(data.draw(st.integers(1, 2))):
        found = list(places(made))
        if not found:
            break
        container, key = found[data.draw(st.integers(0, len(found) - 1))]
        match data.draw(st.sampled_from(["replace", "replace", "leave out", "twice"])):
            case "replace":
                container[key] = data.draw(odd)
            case "leave out":
                del container[key]
            case "twice" if isinstance(container, list):
                container.insert(key, copy.deepcopy(container[key]))
    return made


@contextlib.contextmanager
def fresh_core() -> Iterator[Core]:
    world = World()
    world.route("acme/model", 7001, endpoints=EVERY)
    world.route("acme/big", 7002, endpoints=EVERY, engine="vllm")
    with tempfile.TemporaryDirectory() as folder:
        made = Core(Path(folder), world)
        yield made
        made.close()


@pytest.mark.threat("G7")
@pytest.mark.parametrize("case", CASES)
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_whatever_an_engine_answers_nothing_is_raised_and_the_request_ends(case: str, data: st.DataObject) -> None:
    path, asked, good = CASES[case]
    body = form(("file", b"RIFF"), ("model", "acme/big")) if asked is None else json.dumps(asked).encode()
    said = spoilt(good, data)
    events = [event(each) for each in said] if isinstance(good, list) else []
    with fresh_core() as core:
        _, wire = core.ask(body, path)
        core.engine.send(HEAD + chunked(*events, event("[DONE]")) if events else plain(200, json.dumps(said).encode()))
        core.pass_time(4000)  # an answer that does not end is given up
        (answer,) = answers(wire.out)
        assert answer.status in (200, 503, 504)
        assert SECRET.encode() not in wire.out
        assert len(core.events) == 1
        assert core.events[0].prompt_tokens >= 0 and core.events[0].completion_tokens >= 0
