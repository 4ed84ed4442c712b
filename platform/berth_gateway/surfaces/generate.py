"""chat/completions and completions."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from berth_gateway import checks
from berth_gateway.contract import Route
from berth_gateway.endpoint import Answers, Body, Endpoint, Prepared, make
from berth_gateway.engines import answers_whole
from berth_gateway.errors import Refusal
from berth_gateway.fields import CHAT, COMPLETION, StreamOptions
from berth_gateway.surfaces.common import admitted_extras, clear_own, pass_fields, written


def prepare(endpoint: Endpoint, body: Body, route: Route) -> Prepared:
    """What the engine will be sent. Raises Refusal for what this deployment does not admit. Changes `body`."""
    values = body.values
    extras = admitted_extras(body.extras, route)
    passed = pass_fields(endpoint, values, route)
    stream = values.stream is True
    include_usage = _stream_options(values, stream)
    choices = values.n or 1 if values.n is not UNSET else 1
    prompts = 1
    candidates = max(choices, getattr(values, "best_of", 1) or 1) if "best_of" in passed else choices
    if "messages" in passed:
        checks.check_messages(values.messages)
        checks.check_chat(values, route)
    else:
        prompts = checks.check_prompt(values, route)
    if route.engine not in checks.MANY_PROMPTS and candidates > 1:
        raise Refusal(
            "unsupported_value",
            "This model gives one choice a request: 'n' must be 1. Send several requests.",
            param="n",
        )
    limit = min(_max_tokens(values), route.context_length)
    if "min_tokens" in passed and values.min_tokens > limit:
        raise Refusal("invalid_value", "'min_tokens' must not be above 'max_tokens'.", param="min_tokens")
    more: dict[str, Any] = {"max_tokens": limit}
    if "repetition_penalty" in passed:
        more["repeat_penalty" if route.engine == "llamacpp" else "repetition_penalty"] = values.repetition_penalty
    if route.engine == "llamacpp":
        more["timings_per_token"] = True
    more.update(extras)
    clear_own(endpoint, values, passed)
    values.model = route.engine_model
    whole = not stream and answers_whole(route.engine)
    if not whole:
        values.stream = True
        values.stream_options = StreamOptions(include_usage=True)
    encoded = msgspec.json.encode(values)
    return Prepared(
        body=written(encoded, more),
        stream=stream,
        include_usage=include_usage,
        choices=choices * prompts,
        most_tokens=limit * candidates * prompts,
        path=endpoint.path,
        prompts=prompts,
        whole=whole,
    )


def _stream_options(values: Any, stream: bool) -> bool:
    options = values.stream_options
    if options is UNSET or options is None:
        return False
    if not stream:
        raise Refusal(
            "invalid_value", "'stream_options' is only allowed when 'stream' is true.", param="stream_options"
        )
    return options.include_usage is True


def _max_tokens(values: Any) -> int:
    """The smaller of what was asked for; without either, as much as any number allows."""
    asked = [values.max_tokens, getattr(values, "max_completion_tokens", UNSET)]
    return min((a for a in asked if isinstance(a, int)), default=1 << 62)


ENDPOINTS = (
    make(
        "chat/completions",
        CHAT,
        prepare,
        Answers.CHOICES,
        id_prefix="chatcmpl-",
        answer_object="chat.completion",
        chunk_object="chat.completion.chunk",
        prompt_field="messages",
    ),
    make(
        "completions",
        COMPLETION,
        prepare,
        Answers.CHOICES,
        id_prefix="cmpl-",
        answer_object="text_completion",
        chunk_object="text_completion",
        prompt_field="prompt",
    ),
)
