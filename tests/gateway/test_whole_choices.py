"""Engines that stop when their client leaves are asked for a plain answer plainly; the others never are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from berth_gateway.contract import CountedBy, Outcome
from tests.gateway.core import Core, answers
from tests.gateway.harness import World, plain


def core_with(folder: Path, engine: str) -> Core:
    world = World()
    world.route("acme/model", 7001, engine=engine)
    return Core(folder, world)


def whole(**more: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop", "stop_reason": 7}
    usage = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15, "prompt_tokens_details": None}
    return {"id": "engine-id", "object": "chat.completion", "created": 5, "model": "/srv/path"} | (
        {"choices": [choice], "usage": usage, "system_fingerprint": "fp"} | more
    )


def test_a_plain_answer_passes_with_its_envelope_written_anew(tmp_path: Path) -> None:
    core = core_with(tmp_path, "vllm")
    _, wire = core.ask(temperature=0.5)
    assert "stream" not in core.asked[0].json
    assert "stream_options" not in core.asked[0].json
    core.engine.send(plain(200, json.dumps(whole()).encode()))
    answer = answers(wire.out)[0]
    assert answer.status == 200
    body = json.loads(answer.body)
    assert body.pop("id").startswith("chatcmpl-")
    assert body.pop("created") != 5
    assert body == {
        "object": "chat.completion",
        "model": "acme/model",
        "choices": [{"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": "Hi"}}],
        "usage": {
            "prompt_tokens": 12,
            "completion_tokens": 3,
            "total_tokens": 15,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }
    event = core.events[0]
    assert (event.outcome, event.counted_by) == (Outcome.OK, CountedBy.ENGINE)
    assert (event.prompt_tokens, event.completion_tokens, event.stream) == (12, 3, False)


@pytest.mark.parametrize("engine", ["llamacpp", "onnx", "ollama", "tensorrt_llm"])
def test_an_engine_that_would_generate_on_is_asked_for_a_stream(tmp_path: Path, engine: str) -> None:
    core = core_with(tmp_path, engine)
    core.ask()
    assert core.asked[0].json["stream"] is True


@pytest.mark.parametrize("split", range(1, 60, 7))
def test_any_split_gives_the_same(tmp_path: Path, split: int) -> None:
    core = core_with(tmp_path, "vllm")
    _, wire = core.ask()
    data = plain(200, json.dumps(whole()).encode())
    core.engine.send(data, len(data) - split)
    assert json.loads(answers(wire.out)[0].body)["choices"][0]["message"]["content"] == "Hi"
    assert core.events[0].completion_tokens == 3


@pytest.mark.parametrize(
    "wrong",
    [
        whole(choices=[]),
        whole(choices=[{"index": 0, "message": {"content": "x"}, "finish_reason": None}]),
        whole(choices=[{"index": 0, "message": {"content": "x"}, "finish_reason": "error"}]),
        whole(choices=[{"index": 0, "message": {"content": "x"}, "finish_reason": "abort"}]),
        whole(choices=[{"index": 0, "message": None, "finish_reason": "stop"}]),
        whole(choices=[{"index": 0, "text": "x", "finish_reason": "stop"}]),
        whole(error={"message": "secret"}),
        {"error": "secret"},
        [],
        "secret",
    ],
)
def test_what_is_not_an_answer_is_a_fault_and_not_shown(tmp_path: Path, wrong: Any) -> None:
    core = core_with(tmp_path, "vllm")
    _, wire = core.ask()
    core.engine.send(plain(200, json.dumps(wrong).encode()))
    answer = answers(wire.out)[0]
    assert answer.status == 503
    assert b"secret" not in answer.body
    assert core.events[0].completion_tokens == 0


@pytest.mark.parametrize(("text", "status"), [("\xff\xfe".encode("latin1"), 503), ("\N{PARTY POPPER}é".encode(), 200)])
def test_a_text_that_is_no_utf8_is_not_passed_on(tmp_path: Path, text: bytes, status: int) -> None:
    core = core_with(tmp_path, "vllm")
    _, wire = core.ask()
    core.engine.send(plain(200, json.dumps(whole()).encode().replace(b"Hi", text)))
    (answer,) = answers(wire.out)
    assert answer.status == status
    answer.body.decode()


@pytest.mark.parametrize(("good", "bad"), [(b"Hi", b"H\xff"), (b'"stop"', b'"abort"')])
def test_nor_is_it_the_short_way(tmp_path: Path, good: bytes, bad: bytes) -> None:
    """A client's second request on a connection goes the short way."""
    core = core_with(tmp_path, "vllm")
    client, wire = core.client()
    body = json.dumps(whole()).encode()
    assert good in body
    for said in (body, body, body.replace(good, bad)):
        client.received(core.request())
        core.engine.send(plain(200, said))
        core.pass_time(1)
    assert [each.status for each in answers(wire.out)] == [200, 200, 503]


def test_without_the_engines_figures_the_answer_is_estimated(tmp_path: Path) -> None:
    core = core_with(tmp_path, "vllm")
    core.ask()
    core.engine.send(plain(200, json.dumps(whole(usage=None)).encode()))
    assert core.events[0].counted_by is CountedBy.ESTIMATE


def test_a_client_that_leaves_ends_the_engines_work(tmp_path: Path) -> None:
    core = core_with(tmp_path, "vllm")
    client, _ = core.ask()
    client.lost()
    assert core.engine.wire.aborted
    assert [e.outcome for e in core.events] == [Outcome.CLIENT_CLOSED]
