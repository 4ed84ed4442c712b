"""Responses and Anthropic's messages on the real llama.cpp: what it must take, and what it must not ignore."""

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
from tests.gateway.harness import GatewayProcess, Ingester, World, post
from tests.gateway.llama import Llama
from tests.gateway.test_endpoints_relay import named_events, rebuilt


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Llama]:
    server = Llama(tmp_path_factory.mktemp("llama"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def real(tmp_path: Path, llama: Llama, valkey: redis.Redis, valkey_server: Valkey) -> Iterator[GatewayProcess]:
    world = World()
    world.route("acme/model", llama.port, context_length=1024, endpoints=("chat/completions", "responses", "messages"))
    world.publish(valkey)
    process = GatewayProcess(tmp_path, world, valkey_server.url).start()
    yield process
    process.kill()
    process.check_log()


def message(**fields: Any) -> dict[str, Any]:
    return {
        "model": "acme/model",
        "max_tokens": 60,
        "temperature": 0,
        "messages": [{"role": "user", "content": "A number"}],
        **fields,
    }


def test_a_conversation_goes_on(real: GatewayProcess, valkey: redis.Redis) -> None:
    """With tools and their results in it: the sample model calls none, but its engine must take them."""
    tool = {
        "name": "f",
        "description": "d",
        "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
    }
    turns = [
        {"role": "user", "content": "What is 1 + 1?"},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "2"}, {"type": "text", "text": "So?"}],
        },
    ]
    for choice in ("auto", "none", "any"):
        asked = message(messages=turns, tools=[tool], tool_choice={"type": choice}, max_tokens=5)
        answer = post(real.port, "/v1/messages", asked, real.world.token)
        assert (answer.status, answer.json["content"][0]["type"]) == (200, "text")
    items = [
        {"role": "user", "content": "What is 1 + 1?"},
        {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "2"},
    ]
    flat = {"type": "function", "name": "f", "parameters": tool["input_schema"]}
    asked = {
        "model": "acme/model",
        "input": items,
        "tools": [flat],
        "max_output_tokens": 5,
        "reasoning": {"effort": "low"},
    }
    assert post(real.port, "/v1/responses", asked, real.world.token).status == 200
    events = Ingester(valkey).until(4)
    assert {(e.outcome, e.counted_by) for e in events} == {(Outcome.OK, CountedBy.ENGINE)}


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_in_the_form_of_a_schema(real: GatewayProcess, stream: bool) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "maximum": 9}},
        "required": ["n"],
        "additionalProperties": False,
    }
    with openai.OpenAI(api_key=real.world.token, base_url=f"http://127.0.0.1:{real.port}/v1", max_retries=0) as client:
        form: Any = {"format": {"type": "json_schema", "name": "a", "schema": schema, "strict": True}}
        made = client.responses.create(
            model="acme/model", input="A number", text=form, max_output_tokens=60, temperature=0
        )
    assert set(json.loads(made.output_text)) == {"n"}
    asked = message(
        tools=None, tool_choice=None, output_config={"format": {"type": "json_schema", "schema": schema}}, stream=stream
    )
    answer = post(real.port, "/v1/messages", asked, real.world.token)
    blocks = rebuilt(named_events(answer.body)) if stream else answer.json["content"]
    assert set(json.loads(blocks[-1]["text"])) == {"n"}
