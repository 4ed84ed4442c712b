"""The official client against the gateway in front of the real llama.cpp with the real small model."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import redis

from berth.host.valkey import Valkey
from berth_gateway.contract import CountedBy, Outcome
from tests.gateway.harness import (
    PATIENCE,
    GatewayProcess,
    Ingester,
    World,
    chat,
    get,
    post,
    raw_post,
    request,
    wait_for,
)  # fmt: skip
from tests.gateway.llama import Llama


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Llama]:
    server = Llama(tmp_path_factory.mktemp("llama"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def real(tmp_path: Path, llama: Llama, valkey: redis.Redis, valkey_server: Valkey) -> Iterator[GatewayProcess]:
    """A gateway in front of it."""
    world = World()
    world.route("acme/model", llama.port, context_length=1024)
    world.publish(valkey)
    process = GatewayProcess(tmp_path, world, valkey_server.url).start()
    yield process
    process.kill()
    process.check_log()


@pytest.fixture
def client(real: GatewayProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key=real.world.token, base_url=f"http://127.0.0.1:{real.port}/v1", max_retries=0) as made:
        yield made


HELLO: Any = [{"role": "user", "content": "Say hello."}]


def test_chat_plain(client: openai.OpenAI, valkey: redis.Redis) -> None:
    answer = client.chat.completions.create(model="acme/model", messages=HELLO, max_tokens=8, temperature=0)
    assert answer.model == "acme/model"
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("length", "stop")
    assert answer.usage is not None
    assert 0 < answer.usage.completion_tokens <= 8
    (event,) = Ingester(valkey).until(1)
    assert (event.prompt_tokens, event.completion_tokens) == (
        answer.usage.prompt_tokens,
        answer.usage.completion_tokens,
    )
    assert (event.counted_by, event.outcome, event.stream) == (CountedBy.ENGINE, Outcome.OK, False)
    assert str(answer._request_id).removeprefix("req_") == event.event_id.replace("-", "")


def test_chat_stream(client: openai.OpenAI, valkey: redis.Redis) -> None:
    chunks = list(
        client.chat.completions.create(
            model="acme/model",
            messages=HELLO,
            max_tokens=8,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert {chunk.model for chunk in chunks} == {"acme/model"}
    assert len({(chunk.id, chunk.created) for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert [
        chunk.choices[0].finish_reason for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason
    ] != []
    (usage,) = [chunk.usage for chunk in chunks if chunk.usage is not None]
    (event,) = Ingester(valkey).until(1)
    assert (event.prompt_tokens, event.completion_tokens) == (usage.prompt_tokens, usage.completion_tokens)
    assert event.first_token_ms is not None
    quiet = list(client.chat.completions.create(model="acme/model", messages=HELLO, max_tokens=4, stream=True))
    assert all(chunk.usage is None and chunk.choices for chunk in quiet)


def test_completions_both_ways(client: openai.OpenAI) -> None:
    ask: dict[str, Any] = {
        "model": "acme/model",
        "prompt": "The capital of France is",
        "max_tokens": 1,
        "temperature": 0,
    }
    plain = client.completions.create(**ask)
    assert plain.choices[0].text == " Paris"
    assert plain.usage is not None
    assert plain.usage.completion_tokens == 1
    stream = list(client.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in stream if chunk.choices) == " Paris"
    assert stream[-1].choices == []
    assert stream[-1].usage is not None
    assert stream[-1].usage.completion_tokens == 1


def test_models_and_errors_as_the_client_sees_them(client: openai.OpenAI, real: GatewayProcess) -> None:
    assert [model.id for model in client.models.list()] == ["acme/model"]
    assert client.models.retrieve("acme/model").owned_by == "acme"
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="acme/none", messages=HELLO)
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.AuthenticationError) as wrong:
        client.with_options(api_key="wrong-key-wrong").models.list()
    assert wrong.value.code == "invalid_api_key"
    assert str(wrong.value.request_id).startswith("req_")
    with pytest.raises(openai.BadRequestError) as unknown:
        client.chat.completions.create(model="acme/model", messages=HELLO, extra_body={"grammar": "root ::= x"})
    assert unknown.value.code == "unknown_parameter"


def test_a_prompt_that_is_too_long_is_told_so_that_clients_understand(
    client: openai.OpenAI, valkey: redis.Redis
) -> None:
    for stream in (True, False):
        with pytest.raises(openai.BadRequestError) as long:
            client.chat.completions.create(
                model="acme/model", messages=[{"role": "user", "content": "word " * 3000}], stream=stream
            )
        assert (long.value.code, long.value.param) == ("context_length_exceeded", "messages")
        assert "maximum context length is 1024 tokens" in long.value.message
    assert {(e.outcome, e.prompt_tokens, e.status) for e in Ingester(valkey).until(2)} == {(Outcome.REJECTED, 0, 400)}


def test_logprobs_stop_seed_and_json_schema_pass(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="acme/model", messages=HELLO, max_tokens=3, logprobs=True, top_logprobs=2, seed=1, stop=["\n\n\n"]
    )
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.content
    assert len(answer.choices[0].logprobs.content[0].top_logprobs) == 2
    schema = {
        "type": "object",
        "properties": {"n": {"type": "boolean"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    shaped = client.chat.completions.create(
        model="acme/model",
        messages=HELLO,
        max_tokens=40,
        temperature=0,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}},
    )
    assert isinstance(json.loads(shaped.choices[0].message.content or "")["n"], bool)


@pytest.mark.threat("B4")
@pytest.mark.parametrize("stream", [True, False])
def test_leaving_stops_llama_cpp_and_is_counted_exactly(
    real: GatewayProcess, llama: Llama, valkey: redis.Redis, stream: bool
) -> None:
    body = json.dumps(chat(stream=stream, max_tokens=900, ignore_eos=True)).encode()
    with socket.create_connection(("127.0.0.1", real.port), timeout=PATIENCE) as sock:
        sock.sendall(raw_post("/v1/chat/completions", body, real.world.token))
        got = b""
        while stream and got.count(b'"content"') < 12:
            got += sock.recv(65536)
        if not stream:
            wait_for(lambda: llama.busy() == 1, "llama.cpp to begin")
            threading.Event().wait(0.5)
    wait_for(lambda: llama.busy() == 0, "llama.cpp to stop", patience=5)
    (event,) = Ingester(valkey).until(1)
    assert event.outcome is Outcome.CLIENT_CLOSED
    assert event.counted_by is CountedBy.ENGINE_RUNNING
    assert 0 < event.completion_tokens < 900
    assert event.prompt_tokens > 0
    if stream:
        # The role's empty content is no token; each of the others is at least one.
        assert event.completion_tokens >= got.count(b'"content"') - 1


@pytest.mark.threat("G5")
def test_what_kills_llama_cpp_is_refused_and_it_lives(real: GatewayProcess, llama: Llama) -> None:
    nested = "(" * 60_000 + "a" + ")" * 60_000
    for fields in (
        {"grammar": "root ::= " + nested},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "string", "pattern": nested}}}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "array", "minItems": 10**9}}}},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"$ref": "http://a/b"}}}]},
    ):
        answer = post(real.port, "/v1/chat/completions", chat(max_tokens=1, **fields), real.world.token)
        assert answer.status == 400
        assert answer.error["param"]
    assert post(real.port, "/v1/chat/completions", chat(max_tokens=1), real.world.token).status == 200
    assert llama.process is not None
    assert llama.process.poll() is None


@pytest.mark.threat("G5")
def test_an_engine_killed_in_mid_stream(tmp_path: Path, real: GatewayProcess, valkey: redis.Redis) -> None:
    doomed = Llama(tmp_path)
    doomed.start()
    world = real.world
    world.route("acme/doomed", doomed.port, context_length=1024)
    world.next().publish(valkey)
    wait_for(lambda: len(get(real.port, "/v1/models", world.token).json["data"]) == 2, "the second model")
    with openai.OpenAI(api_key=world.token, base_url=f"http://127.0.0.1:{real.port}/v1", max_retries=0) as client:
        stream = client.chat.completions.create(
            model="acme/doomed", messages=HELLO, max_tokens=900, stream=True, extra_body={"ignore_eos": True}
        )
        text = ""
        with pytest.raises(openai.APIError) as broken:
            for chunk in stream:
                text += chunk.choices[0].delta.content or ""
                if len(text) > 20:
                    doomed.kill()
        assert broken.value.code == "upstream_error"
        with pytest.raises(openai.InternalServerError) as down:
            client.chat.completions.create(model="acme/doomed", messages=HELLO)
        assert down.value.status_code == 503
        assert client.chat.completions.create(model="acme/model", messages=HELLO, max_tokens=1).choices
    events = sorted(Ingester(valkey).until(2), key=lambda e: e.accepted_at)
    assert [e.outcome for e in events] == [Outcome.UPSTREAM_ERROR, Outcome.OK], "what no engine got was not accepted"
    assert events[0].completion_tokens > 0


def test_a_large_body_with_expect_continue_and_in_chunks(real: GatewayProcess) -> None:
    text = json.dumps({"model": "acme/model", "prompt": "a", "max_tokens": 1, "metadata": {"k": "v" * 500}}).encode()

    def pieces() -> Iterator[bytes]:
        for at in range(0, len(text), 7):
            yield text[at : at + 7]

    with httpx.Client() as client:
        headers = {"Authorization": f"bearer {real.world.token}"}
        answer = client.post(f"http://127.0.0.1:{real.port}/v1/completions", content=pieces(), headers=headers)
    assert answer.status_code == 200
    with_curl = request(
        real.port, "POST", "/v1/completions", text, real.world.token, content_type="application/x-www-form-urlencoded"
    )
    assert with_curl.status == 200
