"""Reading a request: what is asked for, or why it is refused. Pure; no message of a refusal holds a value of the request."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from berth_runtime.servers.openai.decoder import Decoder, Refusal, Sampling

_MAX_STOPS: Final = 8
_DEFAULT_COMPLETION_TOKENS: Final = 16  # as OpenAI's, for completions alone


class StreamOptions(Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class _Schema(Struct):
    schema: dict[str, Any] | None = None
    name: str | None = None
    strict: bool | None = None


class ResponseFormat(Struct):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: _Schema | None = None


class _Common(Struct, kw_only=True, forbid_unknown_fields=True):
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    n: Annotated[int, Meta(ge=1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=1_000_000)] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    min_p: float | None = None
    logit_bias: dict[str, float] | None = None
    ignore_eos: bool | None = None
    response_format: ResponseFormat | None = None
    user: str | None = None


class ChatBody(_Common):
    messages: Annotated[list[dict[str, Any]], Meta(min_length=1)]
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None


class CompletionBody(_Common):
    prompt: str | list[Any]
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    cache_prompt: bool | None = None  # llama.cpp's word; there is no such cache here


class Ask(Struct, frozen=True):
    """One sequence that is wanted."""

    chat: bool
    prompt: tuple[int, ...]
    sampling: Sampling
    stops: tuple[str, ...]
    stream: bool
    usage: bool  # told at the end of a stream
    running_usage: bool  # told with each chunk


def decode_body(raw: bytes, chat: bool) -> ChatBody | CompletionBody:
    """Raises Refusal."""
    try:
        return msgspec.json.decode(raw, type=ChatBody if chat else CompletionBody)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # The decoder's own words quote the request.
        raise Refusal(
            "The body is not a valid request: it is no JSON, or a field is unknown or has a wrong type."
        ) from None


def read_ask(body: ChatBody | CompletionBody, decoder: Decoder, default_tokens: int | None = None) -> Ask:
    """Raises Refusal."""
    _refuse_what_is_missing(body)
    chat = isinstance(body, ChatBody)
    prompt = _chat_prompt(body, decoder) if isinstance(body, ChatBody) else _prompt(body, decoder)
    if not prompt:
        raise Refusal("The prompt has no tokens.", "messages" if chat else "prompt")
    room = decoder.context - len(prompt)
    if room < 1:
        raise Refusal(
            f"The prompt has {len(prompt)} tokens, and this model's maximum context length is {decoder.context} tokens.",
            "messages" if chat else "prompt",
            "context_length_exceeded",
            n_prompt_tokens=len(prompt),
            n_ctx=decoder.context,
        )
    options = body.stream_options or StreamOptions()
    return Ask(
        chat=chat,
        prompt=tuple(prompt),
        sampling=_sampling(body, decoder, room, default_tokens),
        stops=_stops(body.stop),
        stream=body.stream is True,
        usage=options.include_usage is True,
        running_usage=options.continuous_usage_stats is True,
    )


def _refuse_what_is_missing(body: ChatBody | CompletionBody) -> None:
    """Nothing that is asked for is silently left out."""
    if body.n not in (None, 1):
        raise Refusal("This engine gives one choice a request.", "n", "unsupported_value")
    for name in ("frequency_penalty", "presence_penalty", "min_p"):
        if getattr(body, name):
            raise Refusal(f"This engine has no {name}.", name, "unsupported_parameter")
    if body.logit_bias:
        raise Refusal("This engine has no logit_bias.", "logit_bias", "unsupported_parameter")
    if isinstance(body, ChatBody) and body.tools and body.tool_choice != "none":
        raise Refusal("This engine calls no tools.", "tools", "unsupported_parameter")


def _chat_prompt(body: ChatBody, decoder: Decoder) -> list[int]:
    options = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        options.setdefault("reasoning_effort", body.reasoning_effort)
    return decoder.encode(decoder.render([_message(message) for message in body.messages], options), template=True)


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """With its content as one text. What a template makes of anything else would be chance."""
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str):
        raise Refusal("Each message needs a role.", "messages")
    if isinstance(content, list):
        parts = [
            part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in content
        ]
        if not all(isinstance(part, str) for part in parts):
            raise Refusal("This model reads text only.", "messages", "unsupported_value")
        content = "".join(str(part) for part in parts)
    if content is None and role == "assistant":
        content = ""
    if not isinstance(content, str):
        raise Refusal("Each message needs a content.", "messages")
    return {**message, "content": content}


def _prompt(body: CompletionBody, decoder: Decoder) -> list[int]:
    prompt = body.prompt
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return decoder.encode(prompt, template=False)
    if all(type(token) is int and 0 <= token < decoder.vocabulary for token in prompt):
        return prompt
    raise Refusal("The prompt must be one string or one list of token ids.", "prompt")


def _sampling(body: ChatBody | CompletionBody, decoder: Decoder, room: int, default: int | None) -> Sampling:
    if isinstance(body, ChatBody):
        limits = [limit for limit in (body.max_tokens, body.max_completion_tokens) if limit is not None]
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
    else:
        limits = [body.max_tokens or default or _DEFAULT_COMPLETION_TOKENS]
        logprobs = body.logprobs
    return Sampling(
        max_tokens=min([*limits, room]),
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=max(body.top_k or 0, 0),
        seed=None if body.seed is None else body.seed & 0x7FFFFFFF,
        repetition_penalty=body.repetition_penalty or 1.0,
        ignore_eos=body.ignore_eos is True,
        logprobs=logprobs,
        guidance=_guidance(body.response_format, decoder),
    )


def _guidance(wanted: ResponseFormat | None, decoder: Decoder) -> tuple[str, str] | None:
    if wanted is None or wanted.type == "text":
        return None
    if not decoder.guides:
        raise Refusal("This engine does not hold an answer to a format.", "response_format", "unsupported_parameter")
    schema: dict[str, Any] = {"type": "object"}
    if wanted.type == "json_schema":
        if wanted.json_schema is None or wanted.json_schema.schema is None:
            raise Refusal("A json_schema needs a schema.", "response_format")
        schema = wanted.json_schema.schema
    return "json_schema", json.dumps(schema)


def _stops(given: str | list[str] | None) -> tuple[str, ...]:
    stops = (given,) if isinstance(given, str) else tuple(given or ())
    if len(stops) > _MAX_STOPS or not all(stops):
        raise Refusal(f"There may be up to {_MAX_STOPS} stop strings, none of them empty.", "stop")
    return stops
