"""rerank: documents by how relevant they are to a query."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Struct

from berth_gateway.contract import Route
from berth_gateway.endpoint import Answers, Body, Endpoint, Prepared, make
from berth_gateway.errors import Refusal
from berth_gateway.fields import Field, Use, text, whole
from berth_gateway.surfaces.common import admitted_extras, pass_fields, written

MAX_DOCUMENTS = 2048


class Document(Struct, forbid_unknown_fields=True):
    text: str


TABLE = (
    Field("model", str, Use.OWN, required=True),
    Field("query", Annotated[str, Meta(min_length=1)], required=True),
    Field("documents", Annotated[list[str | Document], Meta(min_length=1, max_length=MAX_DOCUMENTS)], required=True),
    Field("top_n", whole(1, 1 << 31), Use.OWN),
    Field("return_documents", bool, Use.OWN),
    Field("user", text(1024), Use.STRIP),
)


def prepare(endpoint: Endpoint, body: Body, route: Route) -> Prepared:
    """The engine ranks all of them; the best are chosen, and shown if wanted, here."""
    values = body.values
    extras = admitted_extras(body.extras, route)
    passed = pass_fields(endpoint, values, route)
    documents = [item if isinstance(item, str) else item.text for item in values.documents]
    if not all(documents):
        raise Refusal("invalid_value", "'documents' must not have empty texts.", param="documents")
    top = values.top_n if "top_n" in passed else len(documents)
    shown = documents if values.return_documents is True else None
    values.model, values.documents = route.engine_model, documents
    values.top_n = values.return_documents = UNSET
    encoded = written(msgspec.json.encode(values), extras)
    return Prepared(
        body=encoded,
        stream=False,
        include_usage=False,
        choices=1,
        most_tokens=0,
        path=endpoint.path,
        prompts=len(documents),
        # Each document is read with the query before it.
        prompt_bytes=len(encoded) + (len(documents) - 1) * len(values.query.encode()),
        notes=(shown, top),
    )


ENDPOINTS = (
    make("rerank", TABLE, prepare, Answers.RANKING, aliases=("/v2/rerank",), other_kind=True, prompt_field="documents"),
)
