"""From an engine's stream to the client's: what is cut, what is kept, what is counted, through every split of the bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth_gateway.account import Facts
from berth_gateway.admit import Caller
from berth_gateway.chunks import ChunkReader, EngineFault
from berth_gateway.endpoint import Prepared
from berth_gateway.meter import Counts
from berth_gateway.relay import Relay, Relayed
from berth_gateway.surface import ENDPOINTS
from tests.gateway.harness import World, chat_chunk, chat_events, completion_events, event, timings, usage

WORLD = World()
ROUTE = WORLD.route("acme/model", 1)
CHAT, COMPLETIONS = ENDPOINTS["/v1/chat/completions"], ENDPOINTS["/v1/completions"]


def relay(*, stream: bool = True, include_usage: bool = False, endpoint: Any = CHAT) -> Relay:
    return Relay(
        Facts(
            request_id="req_0",
            event_id="01a22de6-8dfc-709a-b8f9-4b6ea958fae8",
            caller=Caller(WORLD.keys[0], WORLD.org),
            route=ROUTE,
            endpoint=endpoint,
            prepared=Prepared(b"{}", stream, include_usage, 1, 100, endpoint.path),
            accepted_at=1_800_000_000.5,
            started=0.0,
        )
    )


def run(made: Relay, pieces: list[bytes]) -> tuple[bytes, Relayed]:
    out = b""
    for piece in pieces:
        step = made.feed(piece)
        out += b"".join(step.out)
        if step.done or step.fault:
            return out, step
    return out, made.finish()


def data_of(stream: bytes) -> list[dict[str, Any]]:
    return [json.loads(block[6:]) for block in stream.decode().split("\n\n") if block and block != "data: [DONE]"]


words = st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12), min_size=1, max_size=6)


@settings(max_examples=80, deadline=None)
@given(words, st.lists(st.integers(0, 4000), max_size=10))
def test_any_split_gives_the_same_relay_and_the_same_usage(text: list[str], points: list[int]) -> None:
    data = b"".join(chat_events(text))
    marks = sorted({p % len(data) for p in points})
    pieces = [data[a:b] for a, b in zip([0, *marks], [*marks, len(data)], strict=True)]
    torn, whole = relay(), relay()
    got, end = run(torn, pieces)
    wanted, _ = run(whole, [data])
    assert (got, end.done, end.fault) == (wanted, True, False)
    assert torn.reader.final == whole.reader.final == Counts(11, 3, len(text), 0)
    assert torn.reader.pieces == len(text)
    chunks = data_of(run(relay(), [data])[0])
    assert "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks) == "".join(text)


@settings(max_examples=60, deadline=None)
@given(words, st.booleans())
def test_the_answer_put_together_equals_the_stream(text: list[str], chat: bool) -> None:
    data = b"".join(chat_events(text) if chat else completion_events(text))
    endpoint = CHAT if chat else COMPLETIONS
    plain = relay(stream=False, endpoint=endpoint)
    _, end = run(plain, [data])
    assert end.done
    assert not end.fault
    answer = json.loads(plain.answer(plain.reader.final or Counts()) or b"")
    streamed = data_of(run(relay(endpoint=endpoint), [data])[0])
    choice = answer["choices"][0]
    if chat:
        assert choice["message"]["content"] == "".join(c["choices"][0]["delta"].get("content") or "" for c in streamed)
    else:
        assert choice["text"] == "".join(c["choices"][0]["text"] for c in streamed)
    assert choice["finish_reason"] == streamed[-1]["choices"][0]["finish_reason"] == "stop"
    assert (answer["id"], answer["created"], answer["model"]) == tuple(
        streamed[0][k] for k in ("id", "created", "model")
    )
    assert answer["usage"]["completion_tokens"] == len(text)


@pytest.mark.threat("G7")
@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
def test_nothing_of_the_engine_but_choices_reaches_the_client(endpoint: Any) -> None:
    events = chat_events(["a", "b", "c"]) if endpoint is CHAT else completion_events(["a", "b", "c"])
    out, _ = run(relay(endpoint=endpoint), events)
    assert data_of(out)
    for chunk in data_of(out):
        assert set(chunk) == {"id", "object", "created", "model", "choices"}
        assert chunk["model"] == "acme/model"
        assert chunk["id"].endswith("01a22de68dfc709ab8f94b6ea958fae8")
    for secret in (b"secret-path", b"b0-unknown", b"timings", b"usage", b"3CiOehSmOqbGam9GneuLoegEGDihpjb3"):
        assert secret not in out


@pytest.mark.threat("G7")
def test_extras_of_an_engine_inside_choices_and_beside_them_are_dropped_in_every_chunk() -> None:
    def chunk(word: str, finish: str | None) -> bytes:
        choice = {"index": 0, "delta": {"content": word}, "finish_reason": finish, "token_ids": [1], "stop_reason": "x"}
        return event({"id": "x", "choices": [choice], "prompt_token_ids": [1, 2], "kv_transfer_params": {"a": 1}})

    out, end = run(relay(), [chunk("a", None), chunk("b", None), chunk("c", "stop"), event("[DONE]")])
    assert end.done
    assert len(data_of(out)) == 3
    for secret in (b"token_ids", b"kv_transfer", b"stop_reason"):
        assert secret not in out


def vllm(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    head = {"id": "chatcmpl-x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return event({**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}], **more})


def test_running_usage_on_every_chunk_is_counted_and_never_shown() -> None:
    made = relay()
    out = b""
    for n, word in enumerate(["a", "b", "c"], 1):
        out += b"".join(made.feed(vllm({"content": word}, **usage(7, n))).out)
    assert made.reader.running() == Counts(7, 0, 3, 0)
    assert made.reader.final is None
    assert b"usage" not in out
    assert [c["choices"][0]["delta"]["content"] for c in data_of(out)] == ["a", "b", "c"]


def test_text_that_looks_like_framing_is_only_text() -> None:
    nasty = [
        '","finish_reason":null}]',
        ',"timings":{"predicted_n":999}',
        '"usage":{"prompt_tokens":9}',
        "data: [DONE]\n\n",
        '{"error":1}',
        "]}",
    ]
    made = relay()
    out, end = run(made, chat_events(nasty))
    assert end.done
    assert "".join(c["choices"][0]["delta"].get("content") or "" for c in data_of(out)) == "".join(nasty)
    assert made.reader.running() == Counts(11, 3, len(nasty), 0)


def test_usage_is_shown_only_when_asked_for_and_then_as_openai_does() -> None:
    for endpoint, events in ((CHAT, chat_events(["a"])), (COMPLETIONS, completion_events(["a"]))):
        asked = relay(include_usage=True, endpoint=endpoint)
        assert b"usage" not in run(asked, events)[0]
        last = asked.last_events(asked.reader.final or Counts())
        assert last.endswith(b"data: [DONE]\n\n")
        shown = data_of(last)[0]
        assert shown["choices"] == []
        assert shown["usage"]["total_tokens"] == shown["usage"]["prompt_tokens"] + 1
        assert relay().last_events(Counts()) == b"data: [DONE]\n\n"


def test_tool_calls_are_joined_by_their_index() -> None:
    def call(index: int, arguments: str, **first: Any) -> dict[str, Any]:
        return {"index": index, **first, "function": {**({"name": "look_up"} if first else {}), "arguments": arguments}}

    deltas = [
        {"role": "assistant", "content": None, "tool_calls": [call(0, "", id="call_a", type="function")]},
        {"tool_calls": [call(0, '{"q":')]},
        {"tool_calls": [call(1, '{"x"', id="call_b", type="function")]},
        {"tool_calls": [call(0, '"tea"}'), call(1, ":1}")]},
    ]
    events = [event(chat_chunk(d)) for d in deltas] + [event(chat_chunk({}, "tool_calls")), event("[DONE]")]
    made = relay(stream=False)
    assert run(made, events)[1].done
    message = json.loads(made.answer(Counts()) or b"")["choices"][0]["message"]
    assert message["content"] is None
    assert [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in message["tool_calls"]] == [
        ("call_a", "look_up", '{"q":"tea"}'),
        ("call_b", "look_up", '{"x":1}'),
    ]


def test_reasoning_and_logprobs_are_put_together_too() -> None:
    def piece(**delta: str) -> bytes:
        chunk = chat_chunk(delta)
        chunk["choices"][0]["logprobs"] = {"content": [{"token": next(iter(delta.values())), "logprob": -0.5}]}
        return event(chunk)

    made = relay(stream=False)
    run(
        made,
        [
            piece(reasoning_content="hm"),
            piece(reasoning_content="m"),
            piece(content="yes"),
            event(chat_chunk({}, "stop")),
            event("[DONE]"),
        ],
    )
    choice = json.loads(made.answer(Counts()) or b"")["choices"][0]
    assert choice["message"]["reasoning_content"] == "hmm"
    assert choice["message"]["content"] == "yes"
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == ["hm", "m", "yes"]
    assert made.reader.pieces == 3


@pytest.mark.parametrize(
    "data",
    [
        b'{"error":{"message":"the prompt was: SECRET","code":500}}',
        b'{"object":"error","message":"SECRET"}',
        b"error: SECRET",
        b"[]",
        b'{"choices":5}',
        b'{"choices":[{"index":"0"}]}',
        b'{"choices":[{"index":0,"delta":{},"finish_reason":"error"}]}',
        b'{"choices":[{"index":0,"delta":{},"finish_reason":"abort"}]}',
        b'{"choices":[{"index":0,"delta":{},"finish_reason":7}]}',
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_what_is_not_a_chunk_is_a_fault_and_not_shown(data: bytes) -> None:
    with pytest.raises(EngineFault):
        ChunkReader().read(data)
    for stream in (True, False):
        out, end = run(relay(stream=stream), [event(chat_chunk({"content": "Hello"})), b"data: " + data + b"\n\n"])
        assert end.fault
        assert b"SECRET" not in out


def test_done_without_a_finish_reason_is_a_fault() -> None:
    assert run(relay(), [event(chat_chunk({"content": "Hello"})), event("[DONE]")])[1].fault


def test_running_counts_are_those_of_the_last_chunk() -> None:
    reader = ChunkReader()
    for n in (1, 2, 3):
        reader.read(event(chat_chunk({"content": "\N{PARTY POPPER}"}, **timings(31, n * 4, 30)))[6:-2])
    assert reader.pieces == 3
    assert reader.running() == Counts(31, 30, 12, 0)
