"""Answers whose first token is only a part of a character: llama.cpp then leaves out, or says twice, what opens them.

The recorded bytes are what the server of xllamacpp 2026.10 sent for the sample model, made to begin with an emoji.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import redis

from berth.host.valkey import Valkey
from berth_gateway.contract import CountedBy, Outcome
from tests.gateway.core import Core, answers
from tests.gateway.harness import HEAD, Answer, GatewayProcess, Ingester, World, chunked, post
from tests.gateway.llama import Llama
from tests.gateway.test_endpoints_relay import named_events, rebuilt

RECORDED = Path(__file__).parent / "recorded"
EVERY = ("chat/completions", "completions", "responses", "messages")
HELLO = [{"role": "user", "content": "hi"}]
WHOLE = [
    "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
    *["response.output_text.delta"] * 4,
    "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed",
]  # fmt: skip


@pytest.fixture
def every(tmp_path: Path) -> Iterator[Core]:
    world = World()
    world.route("acme/model", 7001, endpoints=EVERY)
    made = Core(tmp_path, world)
    yield made
    made.close()


def replayed(core: Core, path: str, recorded: str, **fields: Any) -> Answer:
    """The answer to a request whose engine sends those bytes, one event a piece."""
    asked = {"model": "acme/model", "stream": True, **fields}
    _, wire = core.ask(json.dumps(asked).encode(), path)
    sent = (RECORDED / f"llamacpp-{recorded}.txt").read_bytes()
    core.engine.send(HEAD + chunked(*(piece + b"\n\n" for piece in sent.split(b"\n\n") if piece)))
    (answer,) = answers(wire.out)
    assert answer.status == 200
    return answer


def chunks(answer: Answer) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in answer.body.decode().split("\n") if line.startswith("data: {")]


def test_the_first_delta_of_a_chat_has_its_role(every: Core) -> None:
    (answer, choices) = (
        (found := replayed(every, "/v1/chat/completions", "emoji-chat", messages=HELLO)),
        [each["choices"][0] for each in chunks(found)],
    )
    assert choices[0]["delta"] == {"role": "assistant", "content": "😀"}
    assert "".join(each["delta"].get("content", "") for each in choices) == "😀😀 hi"
    assert sum("role" in each["delta"] for each in choices) == 1
    assert answer.body.endswith(b"data: [DONE]\n\n")


def test_a_chat_that_ends_within_its_first_character_has_its_role_too(every: Core) -> None:
    (only,) = chunks(replayed(every, "/v1/chat/completions", "cut-chat", messages=HELLO))
    assert only["choices"] == [{"finish_reason": "length", "index": 0, "delta": {"role": "assistant", "content": ""}}]
    assert [(e.outcome, e.counted_by, e.completion_tokens) for e in every.events] == [(Outcome.OK, CountedBy.ENGINE, 2)]


def test_texts_pass_as_they_are(every: Core) -> None:
    whole = chunks(replayed(every, "/v1/completions", "emoji-completions", prompt="hi"))
    assert "".join(each["choices"][0]["text"] for each in whole) == "😀😀 hi"
    (only,) = chunks(replayed(every, "/v1/completions", "cut-completions", prompt="hi"))
    assert (only["choices"][0]["text"], only["choices"][0]["finish_reason"]) == ("", "length")


def test_a_response_is_opened_once(every: Core) -> None:
    """A client that is told of its creation again forgets the output that it has."""
    fields = {"input": "hi", "max_output_tokens": 20}
    events = named_events(replayed(every, "/v1/responses", "emoji-responses", **fields).body)
    assert [name for name, _ in events] == WHOLE
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    assert events[-1][1]["response"]["output"][0]["content"][0]["text"] == "😀😀 hi"


def test_a_response_that_ends_within_its_first_character_is_opened_too(every: Core) -> None:
    fields = {"input": "hi", "max_output_tokens": 2}
    events = named_events(replayed(every, "/v1/responses", "cut-responses", **fields).body)
    assert [name for name, _ in events] == ["response.created", "response.in_progress", "response.incomplete"]
    assert [(e.outcome, e.completion_tokens) for e in every.events] == [(Outcome.OK, 2)]


def test_a_message_has_its_text(every: Core) -> None:
    events = named_events(replayed(every, "/v1/messages", "emoji-chat", messages=HELLO, max_tokens=20).body)
    assert rebuilt(events) == [{"type": "text", "text": "😀😀 hi"}]
    cut = named_events(replayed(every, "/v1/messages", "cut-chat", messages=HELLO, max_tokens=2).body)
    assert [name for name, _ in cut] == ["message_start", "message_delta", "message_stop"]
    assert cut[1][1]["delta"]["stop_reason"] == "max_tokens"


def told_twice(kind: str, *items: dict[str, Any]) -> list[bytes]:
    """A response of whose output nothing is told before its end."""
    usage = {"input_tokens": 5, "output_tokens": 4, "total_tokens": 9}
    final = {"type": f"response.{kind}", "response": {"status": kind, "output": list(items), "usage": usage}}
    return [b"data: %b\n\n" % json.dumps(final).encode()]


def test_what_only_the_end_tells_is_told_in_events_too(every: Core) -> None:
    text = {"type": "message", "id": "m", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": "hello", "annotations": [], "logprobs": []}]}  # fmt: skip
    call = {"type": "function_call", "call_id": "fc_1", "name": "f", "arguments": '{"a":1}', "status": "completed"}
    thought = {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    asked = {"model": "acme/model", "stream": True, "input": "hi", "max_output_tokens": 20}
    _, wire = every.ask(json.dumps(asked).encode(), "/v1/responses")
    every.engine.send(HEAD + chunked(*told_twice("completed", thought, text, call)))
    events = named_events(answers(wire.out)[0].body)
    deltas = [(name, data["output_index"], data["delta"]) for name, data in events if str(name).endswith(".delta")]
    assert deltas == [
        ("response.reasoning_text.delta", 0, "hm"),
        ("response.output_text.delta", 1, "hello"),
        ("response.function_call_arguments.delta", 2, '{"a":1}'),
    ]
    added = [data["item"]["type"] for name, data in events if name == "response.output_item.added"]
    done = [data["item"]["id"] for name, data in events if name == "response.output_item.done"]
    assert (added, done) == (["reasoning", "message", "function_call"], ["r", "m", "fc_1"])


def test_a_call_of_llama_cpp_is_one_item(every: Core) -> None:
    """Its item has only the id of the call, its arguments only that of the item: they are the same."""
    call = {"type": "function_call", "call_id": "fc_1", "name": "f", "arguments": "", "status": "in_progress"}
    done = {**call, "arguments": "{}", "status": "completed"}
    usage = {"input_tokens": 5, "output_tokens": 4, "total_tokens": 9}
    sent: list[dict[str, Any]] = [
        {"type": "response.output_item.added", "item": call},
        {"type": "response.function_call_arguments.delta", "delta": "{}", "item_id": "fc_1"},
        {"type": "response.output_item.done", "item": done},
        {"type": "response.completed", "response": {"status": "completed", "output": [done], "usage": usage}},
    ]
    asked = {"model": "acme/model", "stream": True, "input": "hi", "max_output_tokens": 20}
    _, wire = every.ask(json.dumps(asked).encode(), "/v1/responses")
    every.engine.send(HEAD + chunked(*(b"data: %b\n\n" % json.dumps(each).encode() for each in sent)))
    events = named_events(answers(wire.out)[0].body)
    assert [(name, data.get("output_index")) for name, data in events] == [
        ("response.created", None),
        ("response.in_progress", None),
        ("response.output_item.added", 0),
        ("response.function_call_arguments.delta", 0),
        ("response.output_item.done", 0),
        ("response.completed", None),
    ]
    assert events[2][1]["item"]["id"] == events[3][1]["item_id"] == "fc_1"


# --- the real engine

STAR = {"10813": 10}  # the sample model's first token of an emoji: it then answers with stars


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Llama]:
    server = Llama(tmp_path_factory.mktemp("llama"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def real(tmp_path: Path, llama: Llama, valkey: redis.Redis, valkey_server: Valkey) -> Iterator[GatewayProcess]:
    world = World()
    world.route("acme/model", llama.port, context_length=1024, endpoints=EVERY, extra_fields=("logit_bias",))
    world.publish(valkey)
    process = GatewayProcess(tmp_path, world, valkey_server.url).start()
    yield process
    process.kill()
    process.check_log()


@pytest.mark.parametrize("most", [12, 2])
def test_the_real_engine_begins_with_an_emoji(real: GatewayProcess, valkey: redis.Redis, most: int) -> None:
    """All of it, and cut off within the first character."""
    base = f"http://127.0.0.1:{real.port}"
    say = "🌟" if most > 2 else ""
    bias: dict[str, Any] = {"logit_bias": STAR, "temperature": 0}
    with openai.OpenAI(api_key=real.world.token, base_url=f"{base}/v1", max_retries=0) as client:
        chat = client.chat.completions.create(
            model="acme/model",
            messages=HELLO,
            stream=True,
            max_tokens=most,
            **bias,  # type: ignore[call-overload]
        )
        deltas = [chunk.choices[0].delta for chunk in chat]
        assert deltas[0].role == "assistant"
        assert "".join(delta.content or "" for delta in deltas).startswith(say)
        with client.responses.stream(
            model="acme/model", input="hi", max_output_tokens=most, temperature=0, extra_body={"logit_bias": STAR}
        ) as stream:
            seen = list(stream)
    kinds = [event.type for event in seen]
    text = "".join(event.delta for event in seen if event.type == "response.output_text.delta")
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds.count("response.created") == kinds.count("response.in_progress") == 1
    assert kinds[-1] == "response.incomplete"
    assert text.startswith(say)
    asked = {"model": "acme/model", "messages": HELLO, "max_tokens": most, "stream": True, **bias}
    events = named_events(post(real.port, "/v1/messages", asked, real.world.token).body)
    assert (events[0][0], events[-1][0]) == ("message_start", "message_stop")
    assert "".join(block["text"] for block in rebuilt(events)).startswith(say)
    settled = Ingester(valkey).until(3)
    assert {(e.outcome, e.counted_by, e.completion_tokens) for e in settled} == {(Outcome.OK, CountedBy.ENGINE, most)}
