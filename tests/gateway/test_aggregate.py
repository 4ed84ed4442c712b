"""Streams put together: whatever stands in a chunk, the engine is at fault or there is an answer."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from berth_gateway.aggregate import Aggregate
from berth_gateway.chunks import EngineFault
from berth_gateway.meter import Counts

ODD: list[Any] = [None, True, -3, 10**30, 0.5, "", "ab", [], {}, [5], [None], {"": 1}]
CALL = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
PIECES: list[dict[str, Any]] = [
    {"index": 0, "delta": {"role": "assistant", "content": "a"}, "finish_reason": None},
    {"index": 0, "delta": {"tool_calls": [CALL]}, "logprobs": {"content": [{"token": "a"}]}, "finish_reason": None},
    {"index": 0, "delta": {}, "finish_reason": "stop"},
]


def places(value: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        found.append((value, key))
        if isinstance(value[key], dict | list):
            found += places(value[key])
    return found


def put_together(pieces: list[Any]) -> bytes:
    aggregate = Aggregate(chat=True)
    for piece in pieces:
        aggregate.add(json.dumps([piece]).encode())
    return aggregate.answer(id_="i", object_="chat.completion", created=1, model="m", usage=Counts())


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_whatever_stands_in_any_place(odd: Any) -> None:
    for at in range(len(places(PIECES))):
        pieces = copy.deepcopy(PIECES)
        container, key = places(pieces)[at]
        container[key] = odd
        try:
            answer = json.loads(put_together(pieces))
        except EngineFault:
            continue
        for choice in answer["choices"]:
            for call in choice["message"].get("tool_calls", []):
                assert isinstance(call["function"]["arguments"], str) and isinstance(call["id"], str)


@pytest.mark.parametrize("place", ["choice", "call"])
def test_an_index_that_is_no_number_is_a_fault(place: str) -> None:
    pieces = copy.deepcopy(PIECES)
    (pieces[1] if place == "choice" else pieces[1]["delta"]["tool_calls"][0])["index"] = None
    with pytest.raises(EngineFault):
        put_together(pieces)
