"""What every endpoint does with its table: fields that pass, fields that do not, and what a deployment admits beyond it."""

from __future__ import annotations

import base64
import hashlib
import hmac
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from berth_gateway import schema
from berth_gateway.contract import Route
from berth_gateway.cost import prompt_bound
from berth_gateway.endpoint import Endpoint
from berth_gateway.engines import ADAPTERS_BY_NUMBER, COUNTS_CONTINUOUSLY, FILLS_CONTEXT, SALTED
from berth_gateway.errors import Refusal
from berth_gateway.fields import NEVER, NEVER_PREFIXES, Use

if TYPE_CHECKING:
    from berth_gateway.admit import Caller


def pass_fields(endpoint: Endpoint, values: Any, route: Route) -> frozenset[str]:
    """Names of the fields that are set. Nulls and what the engine must not see are unset; refusals are raised."""
    present = []
    found = zip(endpoint.fields, endpoint.every_field(values), strict=True)
    for name, value in [each for each in found if each[1] is not UNSET]:
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


def clear_own(endpoint: Endpoint, values: Any, present: frozenset[str]) -> None:
    for name in present:
        if endpoint.fields[name].use is Use.OWN and name != "model":
            setattr(values, name, UNSET)


def written(body: bytes, more: dict[str, Any]) -> bytes:
    """An encoded object with further members."""
    return body[:-1] + b"," + msgspec.json.encode(more)[1:] if more else body


def answer_limit(route: Route, asked: int | None, prompt_bytes: int) -> tuple[int, int | None]:
    """The most tokens an answer can have, and what the engine is told of it; None: nothing.

    No answer is longer than what the prompt leaves of the context. Only its engine knows how much that is; one that refuses
    more than that is told a number that surely fits, or, where that would cut an answer short, none: it then takes the rest.
    """
    context = route.context_length
    limit = min(asked or context, context)
    if route.engine not in FILLS_CONTEXT or (asked is not None and asked < context):
        return limit, limit
    surely = context - prompt_bound(prompt_bytes, chat=True, context_length=context)
    return limit, surely if surely >= context // 2 else None


def stream_options(route: Route, choices: int) -> dict[str, bool]:
    """What a stream is to tell of its tokens."""
    running = choices == 1 and route.engine in COUNTS_CONTINUOUSLY
    return {"include_usage": True, "continuous_usage_stats": True} if running else {"include_usage": True}


def for_caller(route: Route, caller: Caller) -> Route:
    """The route by which a request of this key is prepared."""
    return msgspec.structs.replace(route, apart_for=caller.key.key_id) if caller.org.keys_apart else route


def cache_fields(route: Route) -> dict[str, Any]:
    """What keeps an organisation's prefixes apart from any other's in an engine's cache, whatever else that engine serves, and a key's
    from another key's where the organisation wishes. Clients cannot send it (`fields.NEVER`)."""
    if route.engine in SALTED:
        return {"cache_salt": _salt(route.deployment_id, route.org_id, route.apart_for)}
    # No salt, but it can be told to read the whole prompt anew.
    return {"cache_prompt": False} if route.apart_for and route.engine == "llamacpp" else {}


@lru_cache(maxsize=4096)
def _salt(deployment_id: str, org_id: str, key_id: str) -> str:
    """32 characters of [A-Za-z0-9_-]. Never stored; engines are told, clients are not."""
    whose = f"{org_id}:{key_id}" if key_id else org_id
    made = hmac.new(f"berth cache salt v1:{deployment_id}".encode(), whose.encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(made).decode()[:32]


def adapter_fields(route: Route) -> dict[str, Any]:
    """What reaches an adapter on an engine that does not look at the model's name."""
    if route.engine not in ADAPTERS_BY_NUMBER:
        return {}
    if route.adapter is not None:
        return {"lora": [{"id": route.adapter, "scale": 1.0}]}
    # Where no adapter is named at all, the engine goes on from a prefix that it has read with one.
    return {"lora": [{"id": 0, "scale": 0.0}]} if route.carries else {}


def chat_fields(route: Route) -> dict[str, Any]:
    """What the gateway adds to every chat or text completion, behind `max_tokens`."""
    running: dict[str, Any] = {"timings_per_token": True} if route.engine == "llamacpp" else {}
    return running | cache_fields(route) | adapter_fields(route)


def admitted_extras(extras: dict[str, Any], route: Route) -> dict[str, Any]:
    if not extras:
        return extras
    for name, value in extras.items():
        if name in NEVER or name.startswith(NEVER_PREFIXES) or name not in route.extra_fields:
            shown = name if len(name) <= 64 and name.isprintable() else "one of the fields"
            raise Refusal("unknown_parameter", f"Unknown parameter: '{shown}'.", param=shown)
        fault = schema.problem(value)
        if fault is not None:
            raise Refusal("invalid_value", f"'{name}' {fault}.", param=name)
    return {name: value for name, value in extras.items() if value is not None}
