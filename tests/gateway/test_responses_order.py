"""Whatever an engine leaves out or says twice, a client that keeps a picture of the response can follow, and sees all of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from berth_gateway.responses_order import ResponseOrder
from tests.gateway.core import Core, answers
from tests.gateway.harness import HEAD, World, chunked
from tests.gateway.test_endpoints_relay import named_events


class Picture:
    """The response as openai-node's accumulator keeps it: what is not there cannot be added to."""

    def __init__(self) -> None:
        self.output: list[dict[str, Any]] | None = None

    def take(self, kind: str, event: dict[str, Any]) -> None:
        if kind == "response.created":
            assert self.output is None, "created again: everything would be forgotten"
            self.output = []
            return
        assert self.output is not None, "nothing is there yet"
        if kind == "response.output_item.added":
            assert event["output_index"] == len(self.output)
            self.output.append(json.loads(json.dumps(event["item"])))
        elif kind == "response.output_item.done":
            self.output[event["output_index"]] = event["item"]
        elif kind == "response.content_part.added":
            content = self.output[event["output_index"]].setdefault("content", [])
            assert event["content_index"] == len(content)
            content.append(dict(event["part"]))
        elif kind in ("response.output_text.delta", "response.reasoning_text.delta"):
            self.output[event["output_index"]]["content"][event["content_index"]]["text"] += event["delta"]
        elif kind == "response.function_call_arguments.delta":
            self.output[event["output_index"]]["arguments"] += event["delta"]


def whole(words: list[str], thought: str, arguments: str) -> list[dict[str, Any]]:
    """A thought, a text and a call as llama.cpp tells them: without numbers and places, the call without an id of its own."""
    item = {"type": "message", "id": "m", "role": "assistant", "status": "completed"}
    text = {"type": "output_text", "text": "".join(words), "annotations": [], "logprobs": []}
    mind = {"type": "reasoning", "id": "r", "summary": [], "status": "completed"}
    call = {"type": "function_call", "call_id": "fc_1", "name": "f", "status": "completed"}
    done = [
        {**mind, "content": [{"type": "reasoning_text", "text": thought}]},
        {**item, "content": [text]},
        {**call, "arguments": arguments},
    ]
    begun = {"status": "in_progress"}
    usage = {"input_tokens": 9, "output_tokens": 20, "total_tokens": 29}
    return [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
        {"type": "response.output_item.added", "item": {**mind, "content": [], "status": "in_progress"}},
        {"type": "response.reasoning_text.delta", "item_id": "r", "delta": thought},
        {"type": "response.output_item.added", "item": {**item, "content": [], "status": "in_progress"}},
        {"type": "response.content_part.added", "item_id": "m", "part": {"type": "output_text", "text": ""}},
        *({"type": "response.output_text.delta", "item_id": "m", "delta": word} for word in words),
        {"type": "response.output_text.done", "item_id": "m", "text": "".join(words)},
        {"type": "response.content_part.done", "item_id": "m", "part": text},
        {"type": "response.output_item.added", "item": {**call, "arguments": "", "status": "in_progress"}},
        {"type": "response.function_call_arguments.delta", "item_id": "fc_1", "delta": arguments},
        *({"type": "response.output_item.done", "item": each} for each in done),
        {"type": "response.completed", "response": {"status": "completed", "output": done, "usage": usage}},
    ]


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Core]:
    world = World()
    world.route("acme/model", 7001, endpoints=("responses",))
    made = Core(tmp_path, world)
    yield made
    made.close()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    words=st.lists(st.text(max_size=8), max_size=4),
    left_out=st.sets(st.integers(0, 20)),
    again=st.sets(st.integers(0, 20)),
)
def test_every_stream_can_be_followed_to_the_same_end(
    core: Core, words: list[str], left_out: set[int], again: set[int]
) -> None:
    """Deltas are never left out or repeated: those are the answer itself. All that surrounds them may be."""
    sent = whole(words, "hm", '{"a":1}')
    events = []
    for number, each in enumerate(sent[:-1]):
        if each["type"].endswith(".delta"):
            events.append(each)
        elif number not in left_out:
            events += [each, each] if number in again else [each]
    asked = {"model": "acme/model", "stream": True, "input": "hi", "max_output_tokens": 99}
    _, wire = core.ask(json.dumps(asked).encode(), "/v1/responses")
    core.engine.send(HEAD + chunked(*(b"data: %b\n\n" % json.dumps(each).encode() for each in [*events, sent[-1]])))
    told = named_events(answers(wire.out)[0].body)
    picture = Picture()
    for kind, data in told:
        picture.take(str(kind), data)
    assert [data["sequence_number"] for _, data in told] == list(range(len(told)))
    assert told[-1][0] == "response.completed"
    final = {item["type"]: item for item in told[-1][1]["response"]["output"]}
    seen = {item["type"]: item for item in picture.output or []}
    assert set(seen) == set(final) == {"reasoning", "message", "function_call"}
    assert seen["message"]["content"][0]["text"] == "".join(words) == final["message"]["content"][0]["text"]
    assert seen["function_call"]["arguments"] == '{"a":1}'
    assert all(item["status"] == "completed" for item in seen.values())


def test_what_is_said_twice_is_said_once() -> None:
    order = ResponseOrder()
    item = {"type": "message", "id": "m", "role": "assistant", "content": [], "status": "in_progress"}
    added = ("response.output_item.added", {"output_index": 0, "item": item})
    assert [kind for kind, _ in order.put(*added)] == ["response.output_item.added"]
    assert order.put(*added) == []
    done = ("response.output_item.done", {"output_index": 0, "item": {**item, "status": "completed"}})
    assert [kind for kind, _ in order.put(*done)] == ["response.output_item.done"]
    assert order.put(*done) == [] and order.close([{**item, "status": "completed"}]) == []
