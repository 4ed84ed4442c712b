"""What an endpoint is, and what a request to it becomes. Types only; the endpoints themselves are in `surfaces`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import Struct

from berth_gateway.contract import Route
from berth_gateway.fields import Field, body_type

JSON = "application/json"


class Answers(Enum):
    """The form of an answer, which says who reads the engine's and writes ours (`relays`)."""

    CHOICES = auto()
    RESPONSE = auto()
    MESSAGE = auto()
    TOKEN_COUNT = auto()
    VECTORS = auto()
    RANKING = auto()
    TRANSCRIPT = auto()


class Prepared(Struct, frozen=True):
    """A request ready to go upstream. `most_tokens`: completion tokens that all choices together may have.

    `branches`: one request for each choice, of an engine that gives one a request; `choices` of each prompt in a row.
    `prompts`: sequences in the request, each of which may fill the context. `prompt_bytes`: of all that becomes prompt, where
    that is more than the body. `whole`: choices are asked for in one piece. `notes`: what the answer's writer must know of
    the request, by endpoint.
    """

    body: bytes
    stream: bool
    include_usage: bool
    choices: int
    most_tokens: int
    path: str
    content_type: str = JSON
    prompts: int = 1
    prompt_bytes: int = 0
    whole: bool = False
    notes: Any = None
    branches: tuple[Prepared, ...] = ()

    @property
    def size(self) -> int:
        """Bytes that become prompt, at most."""
        return self.prompt_bytes or len(self.body)


class Body:
    """A decoded body and the fields that only some deployments admit."""

    __slots__ = ("extras", "values")

    def __init__(self, values: Any, extras: dict[str, Any]) -> None:
        self.values = values
        self.extras = extras

    @property
    def model(self) -> str:
        return self.values.model  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Endpoint:
    """One thing to ask of a model. `name` is what usage events call it, `served_as` what routes call what it needs.

    `other_kind`: a model that does not serve it is of another kind (400 unsupported_model), rather than on an engine
    without it (404 unsupported_endpoint).
    """

    name: str
    path: str
    served_as: str
    fields: dict[str, Field]
    body: type[Struct]
    decoder: msgspec.json.Decoder[Any]
    every_field: Callable[[Any], tuple[Any, ...]]  # values of a body in the order of `fields`
    prepare: Callable[[Endpoint, Body, Route], Prepared]
    answers: Answers
    id_prefix: str
    answer_object: str
    chunk_object: str
    aliases: tuple[str, ...] = ()
    other_kind: bool = False
    multipart: bool = False
    prompt_field: str = "input"

    @property
    def chat(self) -> bool:
        """Whether a chat template is put around the prompt."""
        return "messages" in self.fields or self.answers is Answers.RESPONSE

    @property
    def anthropic(self) -> bool:
        return self.answers in (Answers.MESSAGE, Answers.TOKEN_COUNT)


def make(
    name: str,
    table: tuple[Field, ...],
    prepare: Callable[[Endpoint, Body, Route], Prepared],
    answers: Answers,
    *,
    id_prefix: str = "",
    answer_object: str = "",
    chunk_object: str = "",
    served_as: str | None = None,
    aliases: tuple[str, ...] = (),
    other_kind: bool = False,
    multipart: bool = False,
    prompt_field: str = "input",
) -> Endpoint:
    """An endpoint with its strict type."""
    body = body_type(name.title().replace("/", ""), table)
    return Endpoint(
        name=name,
        path=f"/v1/{name}",
        served_as=served_as or name,
        fields={f.name: f for f in table},
        body=body,
        decoder=msgspec.json.Decoder(body),
        every_field=attrgetter(*(f.name for f in table)),
        prepare=prepare,
        answers=answers,
        id_prefix=id_prefix,
        answer_object=answer_object,
        chunk_object=chunk_object,
        aliases=aliases,
        other_kind=other_kind,
        multipart=multipart,
        prompt_field=prompt_field,
    )
