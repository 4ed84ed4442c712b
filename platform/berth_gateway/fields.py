"""The body fields that are admitted, per endpoint and engine, each with its type and bounds. Data, no behaviour.

A field outside the table is refused by name. What an engine calls differently, or must never be told, is in `Use`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

LLAMACPP = frozenset({"llamacpp"})
VLLM = frozenset({"vllm"})


class Use(Enum):
    """What happens to an admitted field."""

    PASS = auto()  # goes to the engine as it is
    STRIP = auto()  # accepted, because clients send it, but the engine never sees it
    OWN = auto()  # read by the gateway, which writes its own value upstream
    REFUSE = auto()  # known to OpenAI's clients, not served here: 400 unsupported_parameter


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    type: Any
    use: Use = Use.PASS
    engines: frozenset[str] | None = None  # None: every engine
    required: bool = False


def text(limit: int) -> Any:
    return Annotated[str, Meta(max_length=limit)]


def number(low: float, high: float) -> Any:
    return Annotated[float, Meta(ge=low, le=high)]


def whole(low: int, high: int) -> Any:
    return Annotated[int, Meta(ge=low, le=high)]


Bias = Annotated[float, Meta(ge=-100, le=100)]
TokenId = Annotated[int, Meta(ge=0, lt=1 << 31)]
Note = Annotated[str, Meta(max_length=512)]
Scalar = bool | float | int | Annotated[str, Meta(max_length=256)] | None
Name = Annotated[str, Meta(min_length=1, max_length=128)]
Json = dict[str, Any]  # bounded afterwards, by schema.problem


class _Part(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Anything inside a message or a tool."""


class ImageUrl(_Part):
    url: str
    detail: Annotated[str, Meta(max_length=16)] | None = None


class InputAudio(_Part):
    data: str
    format: Annotated[str, Meta(max_length=16)]


class TextPart(Struct, forbid_unknown_fields=True, tag_field="type", tag="text"):
    text: str


class RefusalPart(Struct, forbid_unknown_fields=True, tag_field="type", tag="refusal"):
    refusal: str


class ImagePart(Struct, forbid_unknown_fields=True, tag_field="type", tag="image_url"):
    image_url: ImageUrl


class AudioPart(Struct, forbid_unknown_fields=True, tag_field="type", tag="input_audio"):
    input_audio: InputAudio


class CalledFunction(_Part):
    name: Name
    arguments: str


class ToolCall(_Part):
    function: CalledFunction
    id: Annotated[str, Meta(max_length=256)] | None = None
    type: Literal["function"] | UnsetType = UNSET
    index: Annotated[int, Meta(ge=0, le=1024)] | None = None


class Message(_Part):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: (
        str | Annotated[list[TextPart | RefusalPart | ImagePart | AudioPart], Meta(max_length=1024)] | UnsetType | None
    ) = UNSET
    name: Name | None = None
    tool_calls: Annotated[list[ToolCall], Meta(max_length=128)] | None = None
    tool_call_id: Annotated[str, Meta(max_length=256)] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    # What OpenAI's clients echo of an answer; dropped.
    annotations: Annotated[list[Any], Meta(max_length=256)] | None = None
    audio: None = None
    function_call: None = None
    parsed: None = None


class Function(_Part):
    name: Name
    description: Annotated[str, Meta(max_length=16384)] | None = None
    parameters: Json | None = None
    strict: bool | None = None


class Tool(_Part):
    type: Literal["function"]
    function: Function


class ChosenFunction(_Part):
    name: Name


class ToolChoice(_Part):
    type: Literal["function"]
    function: ChosenFunction


class JsonSchema(_Part):
    name: Annotated[str, Meta(max_length=128)] | None = None
    description: Annotated[str, Meta(max_length=4096)] | None = None
    schema: Json | None = None
    strict: bool | None = None


class ResponseFormat(_Part):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StreamOptions(_Part):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


Stop = str | Annotated[list[Annotated[str, Meta(max_length=512)]], Meta(max_length=4)]

_COMMON = (
    Field("model", str, Use.OWN, required=True),
    Field("stream", bool, Use.OWN),
    Field("stream_options", StreamOptions, Use.OWN),
    Field("max_tokens", Annotated[int, Meta(ge=1)], Use.OWN),
    Field("n", whole(1, 8)),
    Field("temperature", number(0, 2)),
    Field("top_p", number(0, 1)),
    Field("frequency_penalty", number(-2, 2)),
    Field("presence_penalty", number(-2, 2)),
    Field("seed", whole(-(1 << 63), (1 << 63) - 1)),
    Field("stop", Stop),
    Field("logit_bias", Annotated[dict[str, Bias], Meta(max_length=1024)]),
    # The usual samplers of the engines.
    Field("top_k", whole(-1, 1_000_000)),
    Field("min_p", number(0, 1)),
    Field("repetition_penalty", number(0, 10), Use.OWN),  # llama.cpp: repeat_penalty
    Field("ignore_eos", bool),
    Field("typical_p", number(0, 1), engines=LLAMACPP),
    Field("repeat_penalty", number(0, 10), engines=LLAMACPP),
    Field("repeat_last_n", whole(-1, 1_000_000), engines=LLAMACPP),
    Field("min_tokens", Annotated[int, Meta(ge=0)], engines=VLLM),
    Field("stop_token_ids", Annotated[list[TokenId], Meta(max_length=64)], engines=VLLM),
    Field("skip_special_tokens", bool, engines=VLLM),
    Field("include_stop_str_in_output", bool, engines=VLLM),
    # What belongs to a platform, not to an engine.
    Field("user", text(1024), Use.STRIP),
    Field("safety_identifier", text(1024), Use.STRIP),
    Field("store", bool, Use.STRIP),
    Field("metadata", Annotated[dict[str, Note], Meta(max_length=16)], Use.STRIP),
    Field("service_tier", text(64), Use.STRIP),
    Field("prompt_cache_key", text(1024), Use.STRIP),
    Field("prompt_cache_retention", text(64), Use.STRIP),
    Field("moderation", Json, Use.STRIP),
)

CHAT = (
    *_COMMON,
    Field("messages", Annotated[list[Message], Meta(min_length=1, max_length=10_000)], required=True),
    Field("max_completion_tokens", Annotated[int, Meta(ge=1)], Use.OWN),
    Field("logprobs", bool),
    Field("top_logprobs", whole(0, 20)),
    Field("response_format", ResponseFormat),
    Field("tools", Annotated[list[Tool], Meta(max_length=128)]),
    Field("tool_choice", Literal["none", "auto", "required"] | ToolChoice),
    Field("parallel_tool_calls", bool),
    Field("reasoning_effort", Literal["none", "minimal", "low", "medium", "high", "xhigh"]),
    Field("chat_template_kwargs", Annotated[dict[str, Scalar], Meta(max_length=16)]),
    Field("modalities", Annotated[list[str], Meta(max_length=4)], Use.OWN),
    Field("audio", Json, Use.REFUSE),
    Field("web_search_options", Json, Use.REFUSE),
    Field("prediction", Json, Use.REFUSE),
    Field("verbosity", str, Use.REFUSE),
    Field("functions", list[Any], Use.REFUSE),
    Field("function_call", Any, Use.REFUSE),
)

COMPLETION = (
    *_COMMON,
    Field("prompt", str | list[Any], required=True),
    Field("logprobs", whole(0, 20)),
    Field("best_of", whole(1, 8), engines=VLLM),
    Field("echo", bool, engines=VLLM),
    Field("suffix", str, Use.REFUSE),
)

# Never admitted, whatever a deployment lists: they reach other requests, files, memory or the engine's life.
NEVER = frozenset(
    {
        "adapter",
        "cache_prompt",
        "cache_salt",
        "chat_template",
        "documents",
        "grammar",
        "grammar_lazy",
        "grammar_triggers",
        "id_slot",
        "json_schema",
        "kv_transfer_params",
        "lora",
        "mm_processor_kwargs",
        "n_predict",
        "priority",
        "prompt_embeds",
        "return_tokens",
        "slot_id",
        "structured_outputs",
        "timings_per_token",
        "vllm_xargs",
    }
)
NEVER_PREFIXES = ("guided_", "speculative")


def body_type(name: str, table: tuple[Field, ...]) -> type[Struct]:
    """The strict type of a body: what the table lists and nothing else."""
    return msgspec.defstruct(
        name,
        [
            (f.name, f.type) if f.required else (f.name, f.type | None | UnsetType, UNSET)
            for f in sorted(table, key=lambda f: not f.required)
        ],
        forbid_unknown_fields=True,
    )
