"""embeddings: strings or token ids to vectors."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET

from berth_gateway.contract import Route
from berth_gateway.endpoint import Answers, Body, Endpoint, Prepared, make
from berth_gateway.errors import Refusal
from berth_gateway.fields import VLLM, Field, Use, text, whole
from berth_gateway.surfaces.common import admitted_extras, pass_fields, written

MAX_INPUTS = 2048
MAX_TOKEN_ID = 1 << 31

TABLE = (
    Field("model", str, Use.OWN, required=True),
    Field("input", str | list[Any], required=True),
    Field("encoding_format", Literal["float", "base64"], Use.OWN),
    Field("dimensions", whole(1, 65_536), engines=VLLM),
    Field("user", text(1024), Use.STRIP),
)


def prepare(endpoint: Endpoint, body: Body, route: Route) -> Prepared:
    """One answer for all inputs. The engine is asked in the encoding that every engine has; the gateway packs what it gets."""
    values = body.values
    extras = admitted_extras(body.extras, route)
    passed = pass_fields(endpoint, values, route)
    count = count_inputs(values.input)
    encoding = values.encoding_format if "encoding_format" in passed else "float"
    values.model = route.engine_model
    values.encoding_format = UNSET
    return Prepared(
        body=written(msgspec.json.encode(values), extras),
        stream=False,
        include_usage=False,
        choices=1,
        most_tokens=0,
        path=endpoint.path,
        prompts=count,
        notes=encoding,
    )


def count_inputs(given: Any) -> int:
    """Of a string, strings, one list of token ids or several. Raises Refusal."""
    if isinstance(given, str):
        given = [given]
    if not given or (len(given) > MAX_INPUTS and not _are_tokens(given)):
        raise Refusal("invalid_value", f"'input' must have 1 to {MAX_INPUTS} items.", param="input")
    if _are_tokens(given):
        return 1
    if all(isinstance(item, str) for item in given):
        if not all(given):
            raise Refusal("invalid_value", "'input' must not have empty strings.", param="input")
    elif not all(isinstance(item, list) and item and _are_tokens(item) for item in given):
        raise Refusal("invalid_type", "'input' must be a string, strings, or lists of token ids.", param="input")
    return len(given)


def _are_tokens(items: list[Any]) -> bool:
    return all(type(item) is int and 0 <= item < MAX_TOKEN_ID for item in items)


ENDPOINTS = (make("embeddings", TABLE, prepare, Answers.VECTORS, other_kind=True),)
