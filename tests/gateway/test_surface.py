"""What of a body is admitted, how it is refused, and what an engine then gets."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth_gateway import schema
from berth_gateway.errors import KINDS, Refusal
from berth_gateway.fields import NEVER, Use
from berth_gateway.surface import ENDPOINTS, prepare, read
from tests.gateway.harness import World

WORLD = World()
LLAMACPP = WORLD.route(
    "acme/model", 1, extra_fields=("dry_multiplier", "grammar", "chat_template_kwargs.enable_thinking")
)
VLLM = WORLD.route("acme/big", 2, engine="vllm")
CHAT, COMPLETIONS = ENDPOINTS["/v1/chat/completions"], ENDPOINTS["/v1/completions"]
MESSAGES = [{"role": "user", "content": "hi"}]
TABLE = {**CHAT.fields, **COMPLETIONS.fields}


def sent(data: Any, endpoint: Any = CHAT, route: Any = LLAMACPP) -> dict[str, Any]:
    """What the engine would get."""
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    return json.loads(prepare(endpoint, read(endpoint, raw), route).body)  # type: ignore[no-any-return]


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "acme/model", "messages": MESSAGES, **fields}


def refused(data: Any, endpoint: Any = CHAT, route: Any = LLAMACPP) -> Refusal:
    with pytest.raises(Refusal) as caught:
        sent(data, endpoint, route)
    assert caught.value.status == 400
    return caught.value


# --- what an engine gets

# Every request field of the engines' own schemas, as their sources name them.
ENGINE_FIELDS = [
    "adapter",
    "add_generation_prompt",
    "add_special_tokens",
    "allowed_token_ids",
    "backend_sampling",
    "bad_words",
    "cache_prompt",
    "cache_salt",
    "chat_format",
    "chat_parser",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
    "control_vectors",
    "documents",
    "dry_allowed_length",
    "dry_base",
    "dry_multiplier",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "dynatemp_exponent",
    "dynatemp_range",
    "echo",
    "enable_response_messages",
    "generation_prompt",
    "grammar",
    "grammar_lazy",
    "grammar_triggers",
    "guided_choice",
    "guided_decoding_backend",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "guided_whitespace_pattern",
    "id_slot",
    "ignore_eos",
    "include_reasoning",
    "include_stop_str_in_output",
    "infill",
    "json_schema",
    "kv_transfer_params",
    "length_penalty",
    "logits_processors",
    "lora",
    "min_keep",
    "min_p",
    "min_tokens",
    "mirostat",
    "mirostat_eta",
    "mirostat_tau",
    "mm_processor_kwargs",
    "n_cache_reuse",
    "n_cmpl",
    "n_discard",
    "n_indent",
    "n_keep",
    "n_predict",
    "n_probs",
    "nprobs",
    "parse_tool_calls",
    "post_sampling_probs",
    "preserved_tokens",
    "priority",
    "prompt_embeds",
    "prompt_logprobs",
    "prompt_truncation",
    "reasoning_budget",
    "reasoning_control",
    "reasoning_format",
    "reasoning_in_content",
    "repeat_last_n",
    "repeat_penalty",
    "repetition_detection",
    "repetition_penalty",
    "request_id",
    "response_fields",
    "return_progress",
    "return_token_ids",
    "return_tokens",
    "return_tokens_as_token_ids",
    "samplers",
    "skip_special_tokens",
    "slot_id",
    "spaces_between_special_tokens",
    "speculative.n_max",
    "speculative.n_min",
    "speculative.p_min",
    "sse_ping_interval",
    "stop_token_ids",
    "structural_tag",
    "structured_outputs",
    "t_max_predict_ms",
    "t_max_prompt_ms",
    "thinking_forced_open",
    "timings_per_token",
    "top_k",
    "top_n_sigma",
    "truncate_prompt_tokens",
    "typical_p",
    "use_beam_search",
    "use_audio_in_video",
    "vllm_xargs",
    "xtc_probability",
    "xtc_threshold",
]


@pytest.mark.threat("G3")
@pytest.mark.parametrize("route", [LLAMACPP, VLLM], ids=["llamacpp", "vllm"])
@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS], ids=["chat", "completions"])
def test_an_engines_own_fields_reach_it_only_by_the_table(endpoint: Any, route: Any) -> None:
    base = chat() if endpoint is CHAT else {"model": "acme/model", "prompt": "x"}
    ours = {"stream", "stream_options", "max_tokens", "timings_per_token", "repeat_penalty", "cache_salt"}
    for name in ENGINE_FIELDS:
        field = endpoint.fields.get(name)
        admitted = field is not None and (field.engines is None or route.engine in field.engines)
        admitted = admitted or (name in route.extra_fields and name not in NEVER)
        for value in (1, 0.5, "x", True, ["x"], {"enable_thinking": True}):
            try:
                body = sent({**base, name: value}, endpoint, route)
            except Refusal as refusal:
                assert (refusal.status, refusal.param) == (400, name)
                assert admitted or field is not None or refusal.code == "unknown_parameter"
            else:
                assert admitted, f"{name} was let through"
                assert set(body) <= set(base) | ours | {name}


@pytest.mark.threat("G3")
@settings(max_examples=60, deadline=None)
@given(
    st.text(min_size=1, max_size=30).filter(lambda name: name not in CHAT.fields and name not in LLAMACPP.extra_fields)
)
def test_an_unknown_field_is_refused_by_name(name: str) -> None:
    refusal = refused(chat(**{name: 1}))
    assert (refusal.code, refusal.param) == ("unknown_parameter", name if name.isprintable() else "one of the fields")


def test_a_deployment_may_admit_more_but_never_the_dangerous() -> None:
    assert sent(chat(dry_multiplier=0.5))["dry_multiplier"] == 0.5
    assert sent(chat(chat_template_kwargs={"enable_thinking": False}))["chat_template_kwargs"] == {
        "enable_thinking": False
    }
    assert refused(chat(grammar="root ::= " + "(" * 60_000)).param == "grammar"
    assert refused(chat(chat_template_kwargs={"other": 1})).param == "chat_template_kwargs"
    assert refused(chat(chat_template_kwargs={"enable_thinking": {"a": 1}})).param == "chat_template_kwargs"
    assert refused(chat(dry_multiplier={"a": [{}] * 1}), route=VLLM).code == "unknown_parameter"


def test_admitted_values_keep_their_meaning() -> None:
    parameters = {"type": "object", "properties": {"pattern": {"type": "string"}}}
    fields: dict[str, Any] = {
        "temperature": 0.7, "top_p": 0.9, "seed": -5, "stop": ["a", "b"], "logit_bias": {"5": -100}, "top_k": 40, "min_p": 0.05,
        "logprobs": True, "top_logprobs": 3, "parallel_tool_calls": False, "reasoning_effort": "low",
        "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": parameters}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": {"type": "object"}}},
    }  # fmt: skip
    body = sent(chat(**fields))
    assert {name: body[name] for name in fields} == fields
    history = [
        {"role": "system", "content": "s"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "a"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "t\u0000\U0001f389"},
    ]
    assert sent(chat(messages=history))["messages"] == history


def test_what_clients_echo_of_an_answer_is_accepted_and_dropped() -> None:
    echoed = {
        "role": "assistant",
        "content": "x",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": None,
    }
    assert sent(chat(messages=[echoed]))["messages"] == [{"role": "assistant", "content": "x"}]


def test_what_belongs_to_the_platform_is_accepted_and_stripped() -> None:
    fields = {
        "user": "u",
        "store": True,
        "metadata": {"a": "b"},
        "service_tier": "auto",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
    }
    assert set(sent(chat(**fields))) == {
        "model",
        "messages",
        "stream",
        "stream_options",
        "max_tokens",
        "timings_per_token",
    }


def test_null_is_absent() -> None:
    nulls = dict.fromkeys(name for name, field in CHAT.fields.items() if not field.required)
    assert sent(chat(**nulls)) == sent(chat())


def test_decoys_and_escapes_do_not_change_the_model() -> None:
    raw = b'{"messages":[{"role":"user","content":"\\"model\\":\\"x\\""}],"metadata":{"model":"x"},"mod\\u0065l":"acme/model"}'
    assert read(CHAT, raw).model == "acme/model"
    assert (
        read(CHAT, b'{"model":"x","messages":[{"role":"user","content":"a"}],"model":"acme/model"}').model
        == "acme/model"
    )


def test_lone_surrogates_pass() -> None:
    body = sent(b'{"model":"acme/model","messages":[{"role":"user","content":"a\\ud800b\\\\ud800 \\ud83d\\ude00"}]}')
    assert body["messages"][0]["content"] == "a\ufffdb\\ud800 \U0001f600"


# --- bounds


@pytest.mark.threat("G4")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 10**9), ("n", 0), ("n", 9), ("n", "2"), ("n", 1.5),
        ("top_logprobs", 10**6), ("top_logprobs", -1),
        ("max_tokens", -1), ("max_tokens", 0), ("max_tokens", "5"), ("max_tokens", 1.5), ("max_completion_tokens", 0),
        ("stop", ["a"] * 5), ("stop", ["a" * 513]),
        ("tools", [{"type": "function", "function": {"name": "f"}}] * 129),
        ("temperature", 2.1), ("temperature", -0.1), ("top_p", 1.1), ("frequency_penalty", 3), ("presence_penalty", -3),
        ("logit_bias", {"1": 101}), ("logit_bias", {str(i): 1 for i in range(1025)}),
        ("seed", 2**63), ("stream", "yes"), ("stream", 1), ("messages", []), ("messages", "x"), ("messages", [{}] * 10_001),
        ("top_k", 10**9), ("min_p", 2), ("repeat_last_n", 10**9), ("metadata", {"a": "b" * 513}), ("user", "u" * 1025),
        ("response_format", {"type": "json_schema", "json_schema": {"schema": {"$ref": "http://x"}}}),
        ("reasoning_effort", "extreme"), ("tool_choice", "some"), ("modalities", ["audio"]), ("audio", {}),
        ("stream_options", {"include_usage": True}),
    ],
)  # fmt: skip
def test_what_is_out_of_bounds_is_400_and_names_the_field(field: str, value: Any) -> None:
    assert refused(chat(**{field: value})).param == field


@pytest.mark.threat("G4")
@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("asked", [{}, {"max_tokens": 5}, {"max_tokens": 10**9}, {"max_tokens": None}])
def test_an_engine_always_gets_an_explicit_limit(endpoint: Any, asked: dict[str, Any]) -> None:
    base = chat() if endpoint is CHAT else {"model": "acme/model", "prompt": "x"}
    assert sent({**base, **asked}, endpoint)["max_tokens"] == min(asked.get("max_tokens") or 2048, 2048)


def test_the_smaller_of_both_limits_holds() -> None:
    body = sent(chat(max_tokens=9, max_completion_tokens=7))
    assert body["max_tokens"] == 7
    assert "max_completion_tokens" not in body


@pytest.mark.threat("G4")
def test_what_fills_the_context_itself_is_told_only_what_surely_fits() -> None:
    """vLLM refuses a number above what the prompt leaves, and takes just that where it is told none."""
    bytes_of_chat = len(json.dumps(chat(), separators=(",", ":")))
    for asked in ({}, {"max_tokens": 10**9}):
        told = sent(chat(**asked), route=VLLM)["max_tokens"]
        assert 1024 <= told <= 2048 - bytes_of_chat
    long = chat(messages=[{"role": "user", "content": "x" * 1500}])
    assert "max_tokens" not in sent(long, route=VLLM)
    assert sent({**long, "max_tokens": 100}, route=VLLM)["max_tokens"] == 100
    assert sent(long)["max_tokens"] == 2048


def test_vllm_is_asked_for_running_figures_of_one_choice() -> None:
    both = {"include_usage": True, "continuous_usage_stats": True}
    assert sent(chat(stream=True), route=VLLM)["stream_options"] == both
    assert sent(chat(stream=True, n=2), route=VLLM)["stream_options"] == {"include_usage": True}
    assert "stream_options" not in sent(chat(), route=VLLM)
    assert sent(chat(stream=True))["stream_options"] == {"include_usage": True}


@pytest.mark.threat("G8")
def test_an_organisation_s_prefixes_are_kept_apart_and_by_nobody_s_wish() -> None:
    """vLLM finds a prefix only under the salt it was kept with: two organisations never share one, whoever serves them."""
    world = World()
    ours, again = world.route("acme/a", 1, engine="vllm"), world.route("acme/a", 2, engine="vllm")
    theirs = world.route("rival/a", 1, engine="vllm", deployment_id=ours.deployment_id)
    salts = {}
    for name, route in (("ours", ours), ("theirs", theirs)):
        for endpoint, data in ((CHAT, chat()), (COMPLETIONS, {"model": "m", "prompt": "x"})):
            salts[name, endpoint.name] = sent(data, endpoint, route)["cache_salt"]
        messages = {"model": "m", "messages": MESSAGES, "max_tokens": 5}
        salts[name, "messages"] = sent(messages, ENDPOINTS["/v1/messages"], route)["cache_salt"]
        salts[name, "responses"] = sent({"model": "m", "input": "x"}, ENDPOINTS["/v1/responses"], route)["cache_salt"]
    assert len({salt for (name, _), salt in salts.items() if name == "ours"}) == 1
    assert len(set(salts.values())) == 2
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{32}", salt) for salt in salts.values())
    assert (
        sent(chat(), route=again)["cache_salt"] != salts["ours", CHAT.name]
    )  # another deployment has a cache of its own
    assert "cache_salt" not in sent(chat())
    open_handed = world.route("acme/b", 1, engine="vllm", extra_fields=("cache_salt",))
    assert refused(chat(cache_salt="mine"), route=open_handed).param == "cache_salt"


def test_choices_of_an_engine_that_gives_one_are_asked_for_apart() -> None:
    assert sent(chat(n=1))["n"] == 1
    assert sent(chat(n=2), route=VLLM)["n"] == 2

    def branches(data: Any, endpoint: Any = CHAT) -> list[dict[str, Any]]:
        made = prepare(endpoint, read(endpoint, json.dumps(data).encode()), LLAMACPP)
        assert (made.choices, made.most_tokens) == (len(made.branches), 7 * len(made.branches))
        assert all((each.choices, each.most_tokens) == (1, 7) for each in made.branches)
        return [json.loads(each.body) for each in made.branches]

    many = branches(chat(n=3, seed=5, max_tokens=7))
    assert [each["seed"] for each in many] == [5, 6, 7]
    assert all("n" not in each and each["stream"] is True for each in many)
    assert len({json.dumps(each) for each in branches(chat(n=3, max_tokens=7))}) == 1
    prompts = {"model": "acme/model", "prompt": ["a", "b"], "max_tokens": 7}
    assert [each["prompt"] for each in branches({**prompts, "n": 2}, COMPLETIONS)] == ["a", "a", "b", "b"]
    too_many = {**prompts, "prompt": ["a"] * 17}
    assert (refused(too_many, COMPLETIONS).code, refused(too_many, COMPLETIONS).param) == (
        "unsupported_value",
        "prompt",
    )
    assert sent({"model": "acme/model", "prompt": ["a"]}, COMPLETIONS)["prompt"] == "a"
    assert sent({"model": "acme/model", "prompt": [1, 2]}, COMPLETIONS)["prompt"] == [1, 2]
    for prompt in ([], [True], [[]], [-1], ["a", 1], [2**40], 5):
        assert refused({"model": "acme/model", "prompt": prompt}, COMPLETIONS).param == "prompt"
    for field in ("echo", "best_of", "suffix"):
        assert (
            refused(
                {"model": "m", "prompt": "x", field: 1 if field == "best_of" else "x" if field == "suffix" else True},
                COMPLETIONS,
            ).param
            == field
        )


def test_min_tokens_may_not_be_above_max_tokens() -> None:
    assert refused(chat(min_tokens=9, max_tokens=5), route=VLLM).param == "min_tokens"


@pytest.mark.parametrize(
    "url",
    ["http://169.254.169.254/x.png", "https://a.example/x.png", "file:///etc/passwd", "data:text/html,x", "", "//a/b"],
)
def test_media_come_inside_the_request_only(url: str) -> None:
    content = [{"type": "image_url", "image_url": {"url": url}}]
    assert refused(chat(messages=[{"role": "user", "content": content}])).param == "messages"


# --- what cannot be read


@pytest.mark.threat("G3")
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b'{"model":"m","prompt":"x","messages":[]}x',
        b"\xff",
        b'{"model":"\xff"}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"NaN",
        b'{"model":"x",}',
    ],
)
def test_what_is_not_one_json_object_is_400(raw: bytes) -> None:
    for endpoint in (CHAT, COMPLETIONS):
        assert refused(raw, endpoint).code in ("invalid_json", "unknown_parameter", "invalid_value")


@pytest.mark.threat("G3")
def test_deep_values_in_every_admitted_place_are_400() -> None:
    deep = b"[" * 2000 + b"]" * 2000
    for name in [*CHAT.fields, "unheard_of", "dry_multiplier"]:
        if name not in ("model", "messages"):
            refused(
                b'{"model":"acme/model","messages":[{"role":"user","content":"x"}],"%b":%b}' % (name.encode(), deep)
            )


def test_a_missing_field_is_named() -> None:
    assert (refused({"messages": MESSAGES}).code, refused({"messages": MESSAGES}).param) == (
        "missing_required_parameter",
        "model",
    )
    assert refused({"model": "m"}).param == "messages"
    assert refused({"model": "m"}, COMPLETIONS).param == "prompt"


@pytest.mark.parametrize(
    "data",
    [
        chat(temperature="CANARY"),
        chat(tool_choice="CANARY"),
        chat(messages=[{"role": "CANARY", "content": "x"}]),
        chat(messages=[{"role": "user", "content": 5, "name": "CANARY"}]),
        chat(messages=[{"role": "user", "content": [{"type": "CANARY"}]}]),
        chat(messages=[{"role": "user", "content": "x", "CANARY": 1}]),
        chat(logit_bias={"CANARY": "x"}),
        chat(tools=[{"type": "function", "function": {"name": "f", "parameters": {"CANARY": {"$ref": "CANARY"}}}}]),
        b'{"model":"m","messages":[{"role":"user","content":"CANARY',
    ],
)
def test_no_refusal_quotes_a_value(data: Any) -> None:
    refusal = refused(data)
    assert b"CANARY" not in refusal.body()
    assert refusal.__context__ is None or refusal.__suppress_context__, "decoders keep the document"


# --- the tables themselves


def test_every_refusal_has_the_one_shape_and_the_headers_of_its_kind() -> None:
    for code, kind in KINDS.items():
        refusal = Refusal(code, "m", param="p", allow="GET")
        body = json.loads(refusal.body())
        assert body == {"error": {"message": "m", "type": kind.type, "param": "p", "code": code}}
        headers = refusal.headers().decode()
        assert ("www-authenticate: Bearer" in headers) == (kind.status == 401)
        assert ("retry-after" in headers) == (kind.status == 503)
        assert not (kind.final and "retry-after" in headers)
    assert Refusal("model_loading", "m", retry_after=500).retry_after == 60


def test_the_table_is_consistent() -> None:
    for endpoint in ENDPOINTS.values():
        assert set(endpoint.body.__struct_fields__) == set(endpoint.fields)
        own = {"documents"} if endpoint.name == "rerank" else set()  # what it ranks; a chat template's input elsewhere
        assert not set(endpoint.fields) & (NEVER - own)
        assert all(isinstance(field.use, Use) for field in endpoint.fields.values())


# --- schemas


@pytest.mark.threat("G5")
@pytest.mark.parametrize(
    "hostile",
    [
        {"$ref": "http://a/b"},
        {"properties": {"a": {"$ref": "file:///etc/passwd"}}},
        {"anyOf": [{"const": i} for i in range(3000)]},
        {"enum": list(range(3000))},
        {"minItems": 10**9},
        {"items": {"maxLength": 10**7}},
        {"pattern": "(" * 60_000 + ")" * 60_000},
        {"pattern": "(" * 17 + "a" + ")" * 17},
        {"pattern": "a{100000}"},
        {"properties": {"x": {"description": "y" * 70_000}}},
        json.loads('{"items":' * 40 + "1" + "}" * 40),
    ],
)
def test_hostile_schemas_are_refused(hostile: Any) -> None:
    assert schema.problem(hostile) is not None
    tool = {"type": "function", "function": {"name": "f", "parameters": hostile}}
    assert refused(chat(tools=[tool])).param == "tools"
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": hostile}}
    assert refused(chat(response_format=wanted)).param == "response_format"


def test_ordinary_schemas_pass_also_with_properties_named_like_keywords() -> None:
    ordinary = {
        "type": "object",
        "$defs": {"pattern": {"type": "string", "pattern": "^[a-z]{1,20}(-[0-9]+)?$", "maxLength": 200}},
        "properties": {
            "pattern": {"$ref": "#/$defs/pattern"},
            "enum": {"enum": ["a", "b"]},
            "minItems": {"type": "array", "minItems": 1},
        },
        "required": ["pattern"],
        "additionalProperties": False,
    }
    assert schema.problem(ordinary) is None
    assert schema.problem(msgspec.json.decode(b"{}")) is None
