"""What embeddings, rerank, responses, messages and audio admit, and what an engine then gets."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth_gateway.errors import Refusal
from berth_gateway.fields import NEVER, Use
from berth_gateway.multipart import Part, read_form, write_form
from berth_gateway.surface import ENDPOINTS, Prepared, prepare, read
from tests.gateway.harness import World
from tests.gateway.test_surface import ENGINE_FIELDS

WORLD = World()
LLAMACPP = WORLD.route("acme/model", 1, extra_fields=("dry_multiplier", "grammar"))
VLLM = WORLD.route("acme/big", 2, engine="vllm")
EMBEDDINGS, RERANK = ENDPOINTS["/v1/embeddings"], ENDPOINTS["/v1/rerank"]
RESPONSES, MESSAGES = ENDPOINTS["/v1/responses"], ENDPOINTS["/v1/messages"]
COUNT, AUDIO = ENDPOINTS["/v1/messages/count_tokens"], ENDPOINTS["/v1/audio/transcriptions"]
HELLO = [{"role": "user", "content": "hi"}]
BASE: dict[str, dict[str, Any]] = {
    "embeddings": {"model": "acme/model", "input": "a"},
    "rerank": {"model": "acme/model", "query": "q", "documents": ["a"]},
    "responses": {"model": "acme/model", "input": "a"},
    "messages": {"model": "acme/model", "max_tokens": 5, "messages": HELLO},
    "messages/count_tokens": {"model": "acme/model", "messages": HELLO},
}
JSON_ENDPOINTS = [EMBEDDINGS, RERANK, RESPONSES, MESSAGES, COUNT]


def prepared(data: Any, endpoint: Any, route: Any = LLAMACPP) -> Prepared:
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    return prepare(endpoint, read(endpoint, raw), route)


def sent(data: Any, endpoint: Any, route: Any = LLAMACPP) -> dict[str, Any]:
    return json.loads(prepared(data, endpoint, route).body)  # type: ignore[no-any-return]


def refused(data: Any, endpoint: Any, route: Any = LLAMACPP) -> Refusal:
    with pytest.raises(Refusal) as caught:
        prepared(data, endpoint, route)
    assert caught.value.status == 400
    return caught.value


# Fields of the engines' own schemas for these endpoints, beside those of a generation.
MORE_FIELDS = [
    "truncate_prompt_tokens", "add_special_tokens", "embd_normalize", "normalize", "pooling", "use_activation", "softmax",
    "rank_fields", "instruction", "activation", "enable_response_messages", "previous_input_messages", "request_id",
    "chat_template_kwargs", "extra_body", "include_stop_str_in_output", "image_url", "embed_dtype", "endianness",
]  # fmt: skip


@pytest.mark.threat("G3")
@pytest.mark.parametrize("route", [LLAMACPP, VLLM], ids=["llamacpp", "vllm"])
@pytest.mark.parametrize("endpoint", JSON_ENDPOINTS, ids=lambda e: e.name)
def test_an_engines_own_fields_reach_it_only_by_the_table(endpoint: Any, route: Any) -> None:
    base = BASE[endpoint.name]
    plain = set(sent(base, endpoint, route))
    for name in [*ENGINE_FIELDS, *MORE_FIELDS]:
        if name in base:
            continue
        field = endpoint.fields.get(name)
        for value in (1, 0.5, "x", True, ["x"], {"a": True}):
            try:
                body = sent({**base, name: value}, endpoint, route)
            except Refusal as refusal:
                assert (refusal.status, refusal.param) == (400, name)
                assert field is not None or refusal.code == "unknown_parameter" or name in route.extra_fields
            else:
                extra = name in route.extra_fields and name not in NEVER
                assert extra or (field is not None and field.use is not Use.REFUSE), f"{name} was let through"
                assert set(body) <= plain | {name}


@pytest.mark.threat("G3")
@pytest.mark.parametrize("endpoint", JSON_ENDPOINTS, ids=lambda e: e.name)
@pytest.mark.parametrize("raw", [b"", b"[]", b"\xff", b"[" * 100_000, b'{"a":' * 100_000, b'{"model":5}'])
def test_what_is_not_a_request_is_400(endpoint: Any, raw: bytes) -> None:
    refused(raw, endpoint)


@pytest.mark.parametrize("endpoint", JSON_ENDPOINTS, ids=lambda e: e.name)
def test_null_is_absent_and_what_belongs_to_the_platform_is_stripped(endpoint: Any) -> None:
    base = BASE[endpoint.name]
    nulls = dict.fromkeys(name for name, field in endpoint.fields.items() if not field.required)
    assert sent({**base, **nulls}, endpoint) == sent(base, endpoint)
    for name, field in endpoint.fields.items():
        if field.use is Use.STRIP:
            for value in ("x", True, {"a": "b"}, ["a"]):
                try:
                    assert sent({**base, name: value}, endpoint) == sent(base, endpoint)
                except Refusal as refusal:
                    assert refusal.param == name


# --- embeddings


@pytest.mark.parametrize(
    ("given_", "count"),
    [("a", 1), (["a", "b"], 2), ([1, 2, 3], 1), ([[1], [2, 3]], 2), (list(range(5000)), 1), (["a"] * 2048, 2048)],
)
def test_every_form_of_input_passes_as_it_is(given_: Any, count: int) -> None:
    made = prepared({"model": "acme/model", "input": given_, "encoding_format": "base64"}, EMBEDDINGS)
    assert json.loads(made.body) == {"model": "engine-name", "input": given_}
    assert (made.prompts, made.most_tokens, made.notes) == (count, 0, "base64")


@pytest.mark.threat("G4")
@pytest.mark.parametrize(
    "input_",
    ["", [], [""], ["a", ""], ["a"] * 2049, [True], [-1], [2**40], ["a", 1], [[]], [[1], "a"], [[1.5]], 5, {}, [[1]] * 2049],
)  # fmt: skip
def test_an_input_out_of_bounds_is_named(input_: Any) -> None:
    assert refused({"model": "acme/model", "input": input_}, EMBEDDINGS).param == "input"


@pytest.mark.threat("G4")
@pytest.mark.parametrize(
    ("field", "value"), [("dimensions", 0), ("dimensions", 10**9), ("encoding_format", "hex"), ("user", "u" * 1025)]
)
def test_other_fields_of_embeddings_are_bounded(field: str, value: Any) -> None:
    assert refused({"model": "m", "input": "a", field: value}, EMBEDDINGS, VLLM).param == field


def test_dimensions_are_for_engines_that_have_them() -> None:
    assert sent({"model": "m", "input": "a", "dimensions": 64}, EMBEDDINGS, VLLM)["dimensions"] == 64
    assert refused({"model": "m", "input": "a", "dimensions": 64}, EMBEDDINGS).code == "unsupported_parameter"


# --- rerank


def test_documents_are_texts_and_the_query_counts_with_each() -> None:
    asked = {"model": "m", "query": "qq", "documents": ["a", {"text": "b"}], "top_n": 1, "return_documents": True}
    made = prepared(asked, RERANK)
    assert json.loads(made.body) == {"model": "engine-name", "query": "qq", "documents": ["a", "b"]}
    assert (made.prompts, made.notes) == (2, (["a", "b"], 1))
    assert made.size == len(made.body) + 2
    assert ENDPOINTS["/v2/rerank"] is RERANK


@pytest.mark.threat("G4")
@pytest.mark.parametrize(
    ("field", "value"),
    [("documents", []), ("documents", ["a"] * 2049), ("documents", [""]), ("documents", [5]), ("query", ""), ("top_n", 0),
     ("documents", [{"text": "a", "image": "b"}])],
)  # fmt: skip
def test_a_ranking_out_of_bounds_is_named(field: str, value: Any) -> None:
    assert refused({**BASE["rerank"], field: value}, RERANK).param == field


# --- responses


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("previous_response_id", "resp_1", "previous_response_not_found"),
        ("conversation", "conv_1", "unsupported_parameter"),
        ("background", True, "unsupported_value"),
        ("truncation", "auto", "unsupported_value"),
        ("prompt", {"id": "pmpt_1"}, "unsupported_parameter"),
        ("input", [{"type": "item_reference", "id": "msg_1"}], "unsupported_value"),
        ("tools", [{"type": "web_search"}], "invalid_value"),
    ],
)
def test_what_needs_a_store_is_refused(field: str, value: Any, code: str) -> None:
    refusal = refused({**BASE["responses"], field: value}, RESPONSES)
    assert (refusal.code, refusal.param) == (code, field)


def test_a_response_is_never_stored_and_always_bounded() -> None:
    body = sent(
        {**BASE["responses"], "store": True, "background": False, "include": ["reasoning.encrypted_content"]}, RESPONSES
    )
    assert body == {
        "model": "engine-name", "input": "a", "stream": True, "store": False, "max_output_tokens": 2048, "timings_per_token": True
    }  # fmt: skip
    assert sent({**BASE["responses"], "max_output_tokens": 9}, RESPONSES)["max_output_tokens"] == 9


def test_a_conversation_goes_on_with_the_items_of_its_answers() -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "x"}, {"type": "input_image", "image_url": "data:image/png;base64,A"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
         "content": [{"type": "output_text", "text": "y", "annotations": [], "logprobs": []}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "id": "fc_1", "status": "completed"},
        {"type": "function_call_output", "call_id": "c", "output": "5"},
    ]  # fmt: skip
    assert sent({"model": "m", "input": items}, RESPONSES)["input"] == [{"type": "message", **items[0]}, *items[1:]]


def test_llama_cpp_is_told_in_the_words_that_it_does_not_ignore() -> None:
    form = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    asked = {**BASE["responses"], "text": {"format": form}, "reasoning": {"effort": "low", "summary": "auto"}}
    body = sent(asked, RESPONSES)
    assert body["response_format"] == {
        "type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True}
    }  # fmt: skip
    assert body["reasoning_effort"] == "low"
    assert not {"text", "reasoning"} & set(body)
    assert sent(asked, RESPONSES, VLLM)["text"] == {"format": form}


def test_a_thought_without_its_text_is_left_out_where_the_engine_refuses_it() -> None:
    items = [
        {"role": "user", "content": "a", "type": "message"},
        {"type": "reasoning", "id": "r", "encrypted_content": "x"},
    ]
    assert sent({"model": "m", "input": items}, RESPONSES)["input"] == items[:1]
    assert sent({"model": "m", "input": items}, RESPONSES, VLLM)["input"] == items


@pytest.mark.threat("G3")
@pytest.mark.parametrize(
    "item",
    [
        {"role": "user", "content": "a", "cache_salt": "x"},
        {"role": "user", "content": [{"type": "input_image", "image_url": "http://169.254.169.254/"}]},
        {"role": "user", "content": [{"type": "input_file", "file_url": "http://a"}]},
        {"type": "computer_call", "id": "x"},
        {"type": ["message"], "role": "user", "content": "a"},
        {"role": "tool", "content": "a"},
        {
            "type": "function_call_output",
            "call_id": "c",
            "output": [{"type": "input_image", "image_url": "file:///etc"}],
        },
    ],
)
def test_an_item_is_read_as_strictly_as_a_field(item: dict[str, Any]) -> None:
    refusal = refused({"model": "m", "input": [item]}, RESPONSES)
    assert refusal.param == "input"
    assert b"169.254" not in refusal.body()


@pytest.mark.threat("G5")
def test_schemas_are_bounded_everywhere() -> None:
    hostile = {"anyOf": [{"const": i} for i in range(3000)]}
    tool = {"type": "function", "name": "f", "parameters": hostile}
    assert refused({**BASE["responses"], "tools": [tool]}, RESPONSES).param == "tools"
    wanted = {"format": {"type": "json_schema", "name": "n", "schema": hostile}}
    assert refused({**BASE["responses"], "text": wanted}, RESPONSES).param == "text"
    assert refused({**BASE["messages"], "tools": [{"name": "f", "input_schema": hostile}]}, MESSAGES).param == "tools"
    asked = {"format": {"type": "json_schema", "schema": hostile}}
    assert refused({**BASE["messages"], "output_config": asked}, MESSAGES).param == "output_config"


@pytest.mark.threat("G4")
@pytest.mark.parametrize(
    ("field", "value"),
    [("max_output_tokens", 0), ("max_output_tokens", -1), ("temperature", 3), ("top_p", 2), ("stream", "yes"),
     ("metadata", {"a": "b" * 513}),
     ("input", []), ("tools", [{"type": "function", "name": "f"}] * 129), ("reasoning", {"effort": "extreme"})],
)  # fmt: skip
def test_bounds_of_responses(field: str, value: Any) -> None:
    assert refused({**BASE["responses"], field: value}, RESPONSES).param == field


# --- messages


def test_a_message_is_the_chat_that_it_means() -> None:
    asked = {
        "model": "acme/model", "max_tokens": 9, "stream": True, "temperature": 0.5, "top_k": 4, "stop_sequences": ["END"],
        "system": [{"type": "text", "text": "Be", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "kind."}],
        "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True}, "thinking": {"type": "adaptive"},
        "output_config": {"effort": "max"}, "metadata": {"user_id": "u"},
        "messages": [
            {"role": "user", "content": [
                {"type": "text", "text": "look"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}},
            ]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "I call"},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "5"}]},
                {"type": "text", "text": "and?"},
            ]},
        ],
    }  # fmt: skip
    assert prepared(asked, MESSAGES).path == "/v1/chat/completions"
    assert sent(asked, MESSAGES) == {
        "model": "engine-name", "max_tokens": 9, "stream": True, "stream_options": {"include_usage": True}, "timings_per_token": True,
        "temperature": 0.5, "top_k": 4, "stop": ["END"], "reasoning_effort": "high",
        "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}],
        "tool_choice": "required", "parallel_tool_calls": False,
        "messages": [
            {"role": "system", "content": "Be\nkind."},
            {"role": "user", "content": [
                {"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
            ]},
            {"role": "assistant", "content": "I call", "reasoning_content": "hm",
             "tool_calls": [{"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}]},
            {"role": "tool", "tool_call_id": "t1", "content": "5"},
            {"role": "user", "content": "and?"},
        ],
    }  # fmt: skip


def test_tokens_are_counted_by_the_engine_that_would_read_them() -> None:
    made = prepared({**BASE["messages/count_tokens"], "system": "s"}, COUNT)
    assert made.path == "/v1/chat/completions/input_tokens"
    assert json.loads(made.body)["messages"] == [{"role": "system", "content": "s"}, *HELLO]
    assert prepared(BASE["messages/count_tokens"], COUNT, VLLM).path == "/tokenize"
    with pytest.raises(Refusal) as caught:
        prepared(BASE["messages/count_tokens"], COUNT, WORLD.route("acme/onnx", 3, engine="onnx"))
    assert caught.value.code == "unsupported_endpoint"


@pytest.mark.threat("G4")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0), ("max_tokens", None), ("temperature", 3), ("stop_sequences", ["a"] * 5), ("messages", []),
        ("tools", [{"name": "f", "input_schema": {}}] * 129), ("tools", [{"type": "web_search_20250305", "name": "w"}]),
        ("tool_choice", {"type": "tool"}), ("mcp_servers", [{"url": "http://a"}]), ("container", "c"),
        ("messages", [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://a"}}]}]),
        ("messages", [{"role": "user", "content": [{"type": "document", "source": {}}]}]),
        ("messages", [{"role": "user", "content": [{"type": "text", "text": "a", "id_slot": 1}]}]),
        ("system", [{"type": "image"}]), ("thinking", {"type": "enabled", "budget_tokens": 0}),
    ],
)  # fmt: skip
def test_bounds_of_messages(field: str, value: Any) -> None:
    assert refused({**BASE["messages"], field: value}, MESSAGES).param == field


# --- audio


def form(*parts: tuple[str, str | bytes], file: str = "speech.wav") -> bytes:
    out = b""
    for name, value in parts:
        data = value if isinstance(value, bytes) else value.encode()
        more = f'; filename="{file}"\r\nContent-Type: audio/wav' if isinstance(value, bytes) else ""
        out += f'--XX\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + data + b"\r\n"
    return out + b"--XX--\r\n"


@pytest.mark.threat("G3")
def test_a_form_is_written_anew_with_what_is_admitted() -> None:
    sound = b"RIFF\r\n--X\r\n\x00\xff" * 1000
    asked = form(("file", sound), ("language", "en"), ("timestamp_granularities[]", "word"), ("temperature", "0.5"),
                 ("model", "acme/model"),
                 ("response_format", "verbose_json"), file='../../etc/pass"wd.WAV'.replace('"', ""))  # fmt: skip
    made = prepared(asked, AUDIO, VLLM)
    boundary = made.content_type.partition("boundary=")[2].encode()
    assert made.body.startswith(b"--" + boundary)
    assert {(p.name, p.filename, p.data) for p in read_form(made.body)} == {
        ("model", None, b"engine-name"), ("response_format", None, b"verbose_json"), ("language", None, b"en"),
        ("temperature", None, b"0.5"), ("timestamp_granularities[]", None, b"word"), ("file", "audio.wav", sound),
    }  # fmt: skip


@pytest.mark.threat("G3")
@pytest.mark.parametrize(
    ("parts", "param"),
    [
        ([("model", "m")], "file"),
        ([("file", b"x")], "model"),
        ([("file", b"x"), ("model", "m"), ("vllm_xargs", "{}")], "vllm_xargs"),
        ([("file", b"x"), ("model", "m"), ("other", b"y")], "file"),
        ([("file", "x"), ("model", "m")], "file"),
        ([("file", b"x"), ("model", "m"), ("stream", "true")], "stream"),
        ([("file", b"x"), ("model", "m"), ("temperature", "9")], "temperature"),
        ([("file", b"x"), ("model", "m"), ("response_format", "srt")], "response_format"),
        ([("file", b"x"), ("model", "m"), ("language", "e" * 17)], "language"),
        ([("file", b""), ("model", "m")], "file"),
    ],
)
def test_a_form_is_read_as_strictly_as_a_body(parts: Any, param: str) -> None:
    assert refused(form(*parts), AUDIO, VLLM).param == param


def test_a_file_needs_a_kind_that_engines_know() -> None:
    assert refused(form(("file", b"x"), ("model", "m"), file="a.exe"), AUDIO, VLLM).param == "file"


@pytest.mark.threat("G3")
@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300), st.integers(0, 400), st.binary(max_size=6))
def test_a_damaged_form_is_400_or_means_what_it_says(data: bytes, at: int, inserted: bytes) -> None:
    whole = form(("model", "m"), ("file", data))
    for damaged in (data, whole[:at] + inserted + whole[at + 1 :]):
        try:
            prepared(damaged, AUDIO, VLLM)
        except Refusal as refusal:
            assert refusal.status == 400


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["a", "b[]"]), st.text(max_size=50)), max_size=5), st.binary(max_size=200))
def test_what_is_written_is_what_is_read(fields: list[tuple[str, str]], data: bytes) -> None:
    body, kind = write_form(fields, Part("file", "audio.wav", data))
    assert kind.startswith("multipart/form-data; boundary=")
    assert [(p.name, p.data) for p in read_form(body)] == [*((n, v.encode()) for n, v in fields), ("file", data)]
