"""OpenAI's responses, without any state: nothing is stored, so nothing stored can be named. Relayed where the engine has them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from berth_gateway import schema
from berth_gateway.contract import Route
from berth_gateway.endpoint import Answers, Body, Endpoint, Prepared, make
from berth_gateway.errors import Refusal
from berth_gateway.fields import LLAMACPP, Field, Json, Name, Note, Use, number, text, whole
from berth_gateway.surfaces.common import adapter_fields, admitted_extras, answer_limit, cache_fields, pass_fields

Id = Annotated[str, Meta(max_length=256)]
Status = Literal["in_progress", "completed", "incomplete"]


class _Strict(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Anything inside the request."""


class InputText(_Strict, tag_field="type", tag="input_text", kw_only=True):
    text: str


class InputImage(_Strict, tag_field="type", tag="input_image", kw_only=True):
    image_url: str
    detail: Annotated[str, Meta(max_length=16)] | None = None


class OutputText(_Strict, tag_field="type", tag="output_text", kw_only=True):
    text: str
    annotations: Annotated[list[Any], Meta(max_length=256)] | None = None
    logprobs: list[Any] | None = None


class RefusalText(_Strict, tag_field="type", tag="refusal", kw_only=True):
    refusal: str


class ReasoningText(_Strict, tag_field="type", tag="reasoning_text", kw_only=True):
    text: str


class SummaryText(_Strict, tag_field="type", tag="summary_text", kw_only=True):
    text: str


class Said(_Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[InputText | InputImage | OutputText | RefusalText], Meta(max_length=1024)]
    type: Literal["message"] | None = None
    id: Id | None = None
    status: Status | None = None
    phase: Annotated[str, Meta(max_length=32)] | None = None


class Call(_Strict, kw_only=True):
    type: Literal["function_call"]
    call_id: Id
    name: Name
    arguments: str
    id: Id | None = None
    status: Status | None = None


class CallOutput(_Strict, kw_only=True):
    type: Literal["function_call_output"]
    call_id: Id
    output: str | Annotated[list[InputText | InputImage], Meta(max_length=1024)]
    id: Id | None = None
    status: Status | None = None


class Reasoning(_Strict, kw_only=True):
    type: Literal["reasoning"]
    id: Id | None = None
    summary: Annotated[list[SummaryText], Meta(max_length=1024)] | None = None
    content: Annotated[list[ReasoningText], Meta(max_length=1024)] | None = None
    encrypted_content: str | None = None
    status: Status | None = None


_ITEMS: dict[str, type[_Strict]] = {
    "message": Said,
    "function_call": Call,
    "function_call_output": CallOutput,
    "reasoning": Reasoning,
}


class Tool(_Strict, kw_only=True):
    type: Literal["function"]
    name: Name
    description: Annotated[str, Meta(max_length=16_384)] | None = None
    parameters: Json | None = None
    strict: bool | None = None


class ToolChoice(_Strict, kw_only=True):
    type: Literal["function"]
    name: Name


class Format(_Strict, kw_only=True):
    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str, Meta(max_length=128)] | None = None
    description: Annotated[str, Meta(max_length=4096)] | None = None
    schema: Json | None = None
    strict: bool | None = None


class Text(_Strict):
    format: Format | None = None
    verbosity: Annotated[str, Meta(max_length=16)] | None = None


class Effort(_Strict):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    summary: Annotated[str, Meta(max_length=16)] | None = None
    generate_summary: Annotated[str, Meta(max_length=16)] | None = None


class StreamOptions(_Strict):
    include_obfuscation: bool | None = None


TABLE = (
    Field("model", str, Use.OWN, required=True),
    Field("input", str | Annotated[list[Json], Meta(min_length=1, max_length=10_000)], required=True),
    Field("instructions", str),
    Field("max_output_tokens", Annotated[int, Meta(ge=1)], Use.OWN),
    Field("stream", bool, Use.OWN),
    Field("stream_options", StreamOptions, Use.STRIP),
    Field("temperature", number(0, 2)),
    Field("top_p", number(0, 1)),
    Field("tools", Annotated[list[Tool], Meta(max_length=128)]),
    Field("tool_choice", Literal["none", "auto", "required"] | ToolChoice),
    Field("parallel_tool_calls", bool),
    Field("text", Text),
    Field("reasoning", Effort),
    Field("top_k", whole(-1, 1_000_000)),
    Field("min_p", number(0, 1)),
    Field("seed", whole(-(1 << 63), (1 << 63) - 1)),
    # What belongs to a platform, not to an engine.
    Field("store", bool, Use.STRIP),
    Field("metadata", Annotated[dict[str, Note], Meta(max_length=16)], Use.STRIP),
    Field("user", text(1024), Use.STRIP),
    Field("safety_identifier", text(1024), Use.STRIP),
    Field("prompt_cache_key", text(1024), Use.STRIP),
    Field("prompt_cache_retention", text(64), Use.STRIP),
    Field("service_tier", text(64), Use.STRIP),
    Field("moderation", Json, Use.STRIP),
    Field("include", Annotated[list[Note], Meta(max_length=16)], Use.STRIP),
    # What would need a store, or tools that are not the client's.
    Field("background", bool, Use.OWN),
    Field("conversation", Json | text(256), Use.OWN),
    Field("previous_response_id", text(256), Use.OWN),
    Field("truncation", text(16), Use.OWN),
    Field("prompt", Json, Use.REFUSE),
    Field("max_tool_calls", int, Use.REFUSE),
    Field("context_management", list[Any], Use.REFUSE),
    Field("top_logprobs", int, Use.REFUSE),
)

_ECHOED = ("instructions", "temperature", "top_p", "tools", "tool_choice", "parallel_tool_calls", "text", "reasoning")


def prepare(endpoint: Endpoint, body: Body, route: Route) -> Prepared:
    """A request that streams, whatever the client wants: only so an engine notices that the client has left."""
    values = body.values
    metadata = values.metadata if isinstance(values.metadata, dict) else {}
    extras = admitted_extras(body.extras, route)
    passed = pass_fields(endpoint, values, route)
    _refuse_state(values, passed)
    if not isinstance(values.input, str):
        items = [_item(item) for item in values.input]
        values.input = [item for item in items if not (route.engine in LLAMACPP and _is_empty(item))]
    _check_schemas(values, passed)
    asked = values.max_output_tokens if "max_output_tokens" in passed else None
    body_fields = {name: getattr(values, name) for name in passed if endpoint.fields[name].use is Use.PASS}
    sent = {"model": route.engine_model, **body_fields, "stream": True, "store": False}
    limit, told = answer_limit(route, asked, len(msgspec.json.encode(sent)))
    if told is not None:
        sent["max_output_tokens"] = told
    if route.engine in LLAMACPP:
        sent |= {"timings_per_token": True, **_as_chat(sent)}
    echoed = {name: body_fields[name] for name in _ECHOED if name in body_fields}
    return Prepared(
        body=msgspec.json.encode(sent | cache_fields(route) | adapter_fields(route) | extras),
        stream=values.stream is True,
        include_usage=True,
        choices=1,
        most_tokens=limit,
        path=endpoint.path,
        notes=msgspec.to_builtins({**echoed, "max_output_tokens": asked, "metadata": metadata}),
    )


def _refuse_state(values: Any, passed: frozenset[str]) -> None:
    if "previous_response_id" in passed:
        raise Refusal(
            "previous_response_not_found",
            "Berth stores no responses; send the whole input.",
            param="previous_response_id",
        )
    if "conversation" in passed:
        raise Refusal(
            "unsupported_parameter", "Berth stores no conversations; send the whole input.", param="conversation"
        )
    if "background" in passed and values.background:
        raise Refusal(
            "unsupported_value",
            "Berth runs no requests in the background; leave 'background' out and keep the connection.",
            param="background",
        )
    if "truncation" in passed and values.truncation != "disabled":
        raise Refusal(
            "unsupported_value", "Berth never shortens an input; 'truncation' must be 'disabled'.", param="truncation"
        )


def _item(given: Json) -> _Strict:
    """One item of the input, strictly. Raises Refusal."""
    kind = given.get("type", "message")
    if kind == "item_reference":
        raise Refusal("unsupported_value", "Berth stores no items; send the whole item.", param="input")
    type_ = _ITEMS.get(kind) if isinstance(kind, str) else None
    if type_ is None:
        raise Refusal("unsupported_value", "'input' has an item of a type that is not served here.", param="input")
    try:
        item = msgspec.convert(given, type_)
    except (msgspec.ValidationError, RecursionError):
        raise Refusal(
            "invalid_value",
            "'input' has an item with a field that is missing, unknown or of a wrong type.",
            param="input",
        ) from None
    if isinstance(item, Said):
        item.type = "message"
    content = getattr(item, "output", None) if isinstance(item, CallOutput) else getattr(item, "content", None)
    for part in content if isinstance(content, list) else ():
        if isinstance(part, InputImage) and not part.image_url.startswith("data:image/"):
            raise Refusal("invalid_value", "Images must be sent inside the request, as a data: URL.", param="input")
    return item


def _as_chat(sent: dict[str, Any]) -> dict[str, Any]:
    """What llama.cpp knows only by a chat's names, and ignores without a word otherwise. Taken out of `sent`."""
    said: Text | None = sent.pop("text", None)
    thinks: Effort | None = sent.pop("reasoning", None)
    out: dict[str, Any] = {}
    wanted = said.format if said is not None else None
    if wanted is not None and wanted.type == "json_schema":
        given = {"name": wanted.name, "schema": wanted.schema, "strict": wanted.strict}
        out["response_format"] = {
            "type": "json_schema",
            "json_schema": {name: value for name, value in given.items() if value is not None},
        }
    elif wanted is not None:
        out["response_format"] = {"type": wanted.type}
    if thinks is not None and thinks.effort is not None:
        out["reasoning_effort"] = thinks.effort
    return out


def _is_empty(item: _Strict) -> bool:
    """A thought that only its summary, or somebody else's cipher, is left of: llama.cpp refuses it."""
    return isinstance(item, Reasoning) and not item.content


def _check_schemas(values: Any, passed: frozenset[str]) -> None:
    found = [("tools", tool.parameters) for tool in values.tools] if "tools" in passed else []
    if "text" in passed and values.text.format is not None:
        found.append(("text", values.text.format.schema))
    for param, value in found:
        fault = schema.problem(value)
        if fault is not None:
            raise Refusal("invalid_value", f"A JSON schema in '{param}' {fault}.", param=param)


ENDPOINTS = (make("responses", TABLE, prepare, Answers.RESPONSE, id_prefix="resp_"),)
