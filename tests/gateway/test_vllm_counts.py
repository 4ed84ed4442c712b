"""Running figures of vLLM: what is broken off is counted exactly, and no client ever sees them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from berth_gateway.contract import CountedBy, Outcome
from tests.gateway.core import Core, answers
from tests.gateway.harness import HEAD, World, event, usage


def chunk(delta: dict[str, Any], finish: str | None, **more: Any) -> bytes:
    """As vLLM 0.32 writes one with `continuous_usage_stats`."""
    head = {"id": "chatcmpl-x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return event({**head, "choices": [choice], **more})


def answer_of(tokens: int) -> list[bytes]:
    """Pieces of several tokens each: they are not to be counted as one."""
    out = [chunk({"role": "assistant", "content": ""}, None, **usage(21, 0))]
    out += [chunk({"content": f"piece {n} "}, None, **usage(21, 3 * n)) for n in range(1, tokens // 3 + 1)]
    last = {"id": "chatcmpl-x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": []}
    return [*out, chunk({}, "stop", **usage(21, tokens)), event({**last, **usage(21, tokens)}), event("[DONE]")]


def framed(pieces: list[bytes]) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)


@pytest.mark.threat("B4")
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
@pytest.mark.parametrize("seen", [2, 4, 8])
def test_who_leaves_pays_for_the_tokens_and_not_for_the_pieces(tmp_path: Path, path: str, seen: int) -> None:
    world = World()
    world.route("acme/model", 7001, engine="vllm", endpoints=("chat/completions", "messages"))
    core = Core(tmp_path, world)
    asked = {"model": "acme/model", "messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 99}
    client, wire = core.ask(json.dumps(asked).encode(), path)
    assert core.asked[0].json["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    pieces = answer_of(30)
    core.engine.send(HEAD)
    for piece in pieces[:seen]:
        core.engine.send(framed([piece]))
    client.lost()
    (found,) = core.events
    assert (found.outcome, found.counted_by) == (Outcome.CLIENT_CLOSED, CountedBy.ENGINE_RUNNING)
    assert (found.prompt_tokens, found.completion_tokens) == (21, 3 * (seen - 1))
    if path.endswith("completions"):
        assert b"usage" not in wire.out
    core.close()


def test_a_whole_answer_has_them_cut_out(tmp_path: Path) -> None:
    world = World()
    world.route("acme/model", 7001, engine="vllm")
    core = Core(tmp_path, world)
    asked = {"model": "acme/model", "messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 99}
    _, wire = core.ask(json.dumps(asked).encode())
    core.engine.send(HEAD + framed(answer_of(30)) + b"0\r\n\r\n")
    (answer,) = answers(wire.out)
    assert b"usage" not in answer.body and answer.body.endswith(b"data: [DONE]\n\n")
    assert [(e.counted_by, e.completion_tokens) for e in core.events] == [(CountedBy.ENGINE, 30)]
    core.close()
