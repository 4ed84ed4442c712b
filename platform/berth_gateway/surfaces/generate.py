"""chat/completions and completions."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from berth_gateway import checks
from berth_gateway.contract import Route
from berth_gateway.endpoint import Answers, Body, Endpoint, Prepared, make
from berth_gateway.engines import answers_whole
from berth_gateway.errors import Refusal
from berth_gateway.fields import CHAT, COMPLETION
from berth_gateway.surfaces.common import (
    admitted_extras,
    answer_limit,
    chat_fields,
    clear_own,
    pass_fields,
    stream_options,
    written,
)

MOST_BRANCHES = 16  # choices of one request that are asked for one by one
MOST_BRANCH_BYTES = 64 * 1024 * 1024


class _Shape(NamedTuple):
    """How much one request asks for. `candidates`: sequences for each prompt, of which `choices` are shown. `apart`: each is asked
    for in a request of its own."""

    choices: int
    candidates: int
    prompts: int
    apart: bool


def prepare(endpoint: Endpoint, body: Body, route: Route) -> Prepared:
    """What the engine will be sent. Raises Refusal for what this deployment does not admit. Changes `body`."""
    values = body.values
    extras = admitted_extras(body.extras, route)
    passed = pass_fields(endpoint, values, route)
    stream = values.stream is True
    include_usage = _stream_options(values, stream)
    shape = _shape(values, passed, route)
    sequences = shape.candidates * shape.prompts
    asked = _max_tokens(values)
    if "min_tokens" in passed and values.min_tokens > min(asked or route.context_length, route.context_length):
        raise Refusal("invalid_value", "'min_tokens' must not be above 'max_tokens'.", param="min_tokens")
    more: dict[str, Any] = {}
    if "repetition_penalty" in passed:
        more["repeat_penalty" if route.engine == "llamacpp" else "repetition_penalty"] = values.repetition_penalty
    more.update(chat_fields(route))
    more.update(extras)
    clear_own(endpoint, values, passed)
    values.model = route.engine_model
    whole = not stream and not shape.apart and answers_whole(route.engine)
    if not whole:
        values.stream = True
        values.stream_options = stream_options(route, 1 if shape.apart else sequences)
    encoded = msgspec.json.encode(values)
    limit, told = answer_limit(route, asked, len(encoded))
    if told is not None:
        more = {"max_tokens": told, **more}
    made = Prepared(
        body=b"" if shape.apart else written(encoded, more),
        stream=stream,
        include_usage=include_usage,
        choices=shape.choices * shape.prompts,
        most_tokens=limit * sequences,
        path=endpoint.path,
        prompts=shape.prompts,
        whole=whole,
    )
    return _apart(values, more, made) if shape.apart else made


def _shape(values: Any, passed: frozenset[str], route: Route) -> _Shape:
    choices = values.n if "n" in passed else 1
    candidates = max(choices, values.best_of) if "best_of" in passed else choices
    if "messages" in passed:
        prompts = 1
        checks.check_messages(values.messages)
        checks.check_chat(values, route)
    else:
        prompts = checks.check_prompt(values)
    apart = route.engine not in checks.MANY_PROMPTS and candidates * prompts > 1
    if apart and candidates * prompts > MOST_BRANCHES:
        raise Refusal(
            "unsupported_value",
            f"This model gives at most {MOST_BRANCHES} choices a request, over all prompts. Send several requests.",
            param="n" if prompts == 1 else "prompt",
        )
    return _Shape(choices, candidates, prompts, apart)


def _apart(values: Any, more: dict[str, Any], asked: Prepared) -> Prepared:
    """A request for each choice, of an engine that gives one a request. A seed is raised by one for each, or all would be alike."""
    prompts = values.prompt if asked.prompts > 1 else [None]
    choices, seed = asked.choices // asked.prompts, values.seed
    values.n = UNSET
    bodies: list[bytes] = []
    size = 0
    for prompt in prompts:
        if prompt is not None:
            values.prompt = prompt
        for number in range(choices):
            if number == 0 or seed is not UNSET:
                if seed is not UNSET:
                    values.seed = min(seed + number, (1 << 63) - 1)
                body = written(msgspec.json.encode(values), more)
            size += len(body) if number == 0 else 0
            bodies.append(body)
    if sum(map(len, set(bodies))) > MOST_BRANCH_BYTES:
        raise Refusal(
            "request_too_large", "The request is too large for so many choices. Ask for fewer, or without a seed."
        )
    one = msgspec.structs.replace(
        asked, stream=True, include_usage=False, choices=1, prompts=1, most_tokens=asked.most_tokens // asked.choices
    )
    return msgspec.structs.replace(
        asked,
        body=bodies[0],
        prompt_bytes=size,
        branches=tuple(msgspec.structs.replace(one, body=body) for body in bodies),
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


def _max_tokens(values: Any) -> int | None:
    """The smaller of what was asked for; None without either."""
    asked = [values.max_tokens, getattr(values, "max_completion_tokens", UNSET)]
    return min((a for a in asked if isinstance(a, int)), default=None)


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
