"""The endpoints, and what becomes of a request body: read strictly, bounded, and written anew for the engine.

An engine only ever gets bytes that were encoded here. Every refusal names the field; none quotes a value.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from berth_gateway import checks, schema
from berth_gateway.contract import Route
from berth_gateway.errors import Refusal
from berth_gateway.fields import (
    CHAT,
    COMPLETION,
    NEVER,
    NEVER_PREFIXES,
    Field,
    StreamOptions,
    Use,
    body_type,
)


@dataclass(frozen=True)
class Endpoint:
    """One way to ask for a generation. `name` is what routes and usage events call it."""

    name: str
    path: str
    id_prefix: str
    answer_object: str
    chunk_object: str
    fields: dict[str, Field]
    body: type[Struct]
    decoder: msgspec.json.Decoder[Any]
    every_field: Callable[[Any], tuple[Any, ...]]  # values of a body in the order of `fields`

    @property
    def chat(self) -> bool:
        return "messages" in self.fields


def _endpoint(name: str, id_prefix: str, answer: str, chunk: str, table: tuple[Field, ...]) -> Endpoint:
    body = body_type(name.title().replace("/", ""), table)
    return Endpoint(
        name=name,
        path=f"/v1/{name}",
        id_prefix=id_prefix,
        answer_object=answer,
        chunk_object=chunk,
        fields={f.name: f for f in table},
        body=body,
        decoder=msgspec.json.Decoder(body),
        every_field=attrgetter(*(f.name for f in table)),
    )


ENDPOINTS = {
    e.path: e
    for e in (
        _endpoint("chat/completions", "chatcmpl-", "chat.completion", "chat.completion.chunk", CHAT),
        _endpoint("completions", "cmpl-", "text_completion", "text_completion", COMPLETION),
    )
}


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request ready to go upstream. `most_tokens`: completion tokens that all choices together may have."""

    body: bytes
    stream: bool
    include_usage: bool
    choices: int
    most_tokens: int


class Body:
    """A decoded body and the fields that only some deployments admit."""

    __slots__ = ("extras", "values")

    def __init__(self, values: Any, extras: dict[str, Any]) -> None:
        self.values = values
        self.extras = extras

    @property
    def model(self) -> str:
        return self.values.model  # type: ignore[no-any-return]


_PATH = re.compile(r" - at `\$\.?([^`]*)`\Z")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `([a-z_]+)`")
_EXPECTED = re.compile(r"Expected `([^`]*)`(?: (?:of length )?(?:[<>]=?|==) -?[0-9.e+]+)?")
_ESCAPES = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)


def read(endpoint: Endpoint, data: bytes) -> Body:
    """Decodes a body. Raises Refusal."""
    try:
        return Body(endpoint.decoder.decode(data), {})
    except msgspec.ValidationError as fault:
        text = str(fault)
    except (msgspec.DecodeError, RecursionError):
        repaired = _ESCAPES.sub(lambda m: b"\\ufffd" if m[1] else m[0], data) if b"\\u" in data else data
        if repaired != data:
            return read(endpoint, repaired)
        raise _bad_json() from None
    if _UNKNOWN.match(text) and not _PATH.search(text):
        return _read_with_extras(endpoint, data)
    raise _invalid(text)


def _read_with_extras(endpoint: Endpoint, data: bytes) -> Body:
    """A body with fields outside the table: they are set aside until the deployment is known."""
    try:
        whole = msgspec.json.decode(data, type=dict[str, Any])
        extras = {name: whole.pop(name) for name in list(whole) if name not in endpoint.fields}
        return Body(msgspec.convert(whole, endpoint.body), extras)
    except msgspec.ValidationError as fault:
        text = str(fault)
    except (msgspec.DecodeError, RecursionError):
        raise _bad_json() from None
    raise _invalid(text)


def _bad_json() -> Refusal:
    return Refusal("invalid_json", "The body could not be read as JSON in UTF-8. Send one JSON object.")


def _invalid(text: str) -> Refusal:
    """The decoder's complaint in our words. Only names of our own fields and types are taken from it."""
    where = _PATH.search(text)
    path = where[1] if where else ""
    param = re.split(r"[.\[]", path, maxsplit=1)[0] or None
    missing = _MISSING.match(text)
    if missing:
        name = f"{path}.{missing[1]}" if path else missing[1]
        return Refusal(
            "missing_required_parameter", f"Missing required parameter: '{name}'.", param=param or missing[1]
        )
    if _UNKNOWN.match(text):
        return Refusal("unknown_parameter", f"'{path}' has a field that is not known here.", param=param)
    expected = _EXPECTED.match(text)
    if param is None:
        return Refusal("invalid_json", "The body must be one JSON object.")
    if expected is None:
        return Refusal(
            "invalid_value", f"Invalid value for '{path}': it is not one of the allowed values.", param=param
        )
    bounded = expected[0] != f"Expected `{expected[1]}`"
    wanted = expected[0].removeprefix("Expected ").replace("`", "")
    return Refusal(
        "invalid_value" if bounded else "invalid_type", f"Invalid value for '{path}': expected {wanted}.", param=param
    )


def prepare(endpoint: Endpoint, body: Body, route: Route) -> Prepared:
    """What the engine will be sent. Raises Refusal for what this deployment does not admit. Changes `body`."""
    values = body.values
    extras = _admitted_extras(body.extras, route)
    passed = _pass_fields(endpoint, values, route)
    stream = values.stream is True
    include_usage = _stream_options(values, stream)
    choices = values.n or 1 if values.n is not UNSET else 1
    candidates = max(choices, getattr(values, "best_of", 1) or 1) if "best_of" in passed else choices
    if "messages" in passed:
        checks.check_messages(values.messages)
        checks.check_chat(values, route)
    else:
        checks.check_prompt(values)
    if route.engine == "llamacpp" and candidates > 1:
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
    _clear_own(endpoint, values, passed)
    values.model = route.engine_model
    values.stream = True
    values.stream_options = StreamOptions(include_usage=True)
    encoded = msgspec.json.encode(values)
    return Prepared(
        body=encoded[:-1] + b"," + msgspec.json.encode(more)[1:],
        stream=stream,
        include_usage=include_usage,
        choices=choices,
        most_tokens=limit * candidates,
    )


def _pass_fields(endpoint: Endpoint, values: Any, route: Route) -> frozenset[str]:
    """Names of the fields that are set. Nulls and what the engine must not see are unset; refusals are raised."""
    present = []
    for name, value in zip(endpoint.fields, endpoint.every_field(values), strict=True):
        if value is UNSET:
            continue
        field = endpoint.fields[name]
        if value is None or field.use is Use.STRIP:
            setattr(values, name, UNSET)
            continue
        if field.use is Use.REFUSE:
            raise Refusal("unsupported_parameter", f"'{name}' is not supported by this model.", param=name)
        if field.engines is not None and route.engine not in field.engines:
            raise Refusal("unsupported_parameter", f"'{name}' is not supported by this model's engine.", param=name)
        present.append(name)
    return frozenset(present)


def _clear_own(endpoint: Endpoint, values: Any, present: frozenset[str]) -> None:
    for name in present:
        if endpoint.fields[name].use is Use.OWN and name != "model":
            setattr(values, name, UNSET)


def _admitted_extras(extras: dict[str, Any], route: Route) -> dict[str, Any]:
    for name, value in extras.items():
        if name in NEVER or name.startswith(NEVER_PREFIXES) or name not in route.extra_fields:
            shown = name if len(name) <= 64 and name.isprintable() else "one of the fields"
            raise Refusal("unknown_parameter", f"Unknown parameter: '{shown}'.", param=shown)
        fault = schema.problem(value)
        if fault is not None:
            raise Refusal("invalid_value", f"'{name}' {fault}.", param=name)
    return {name: value for name, value in extras.items() if value is not None}


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
