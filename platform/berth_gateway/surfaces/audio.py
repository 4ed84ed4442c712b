"""audio/transcriptions and audio/translations: a recording in a form, text out.

The form is held in memory like any other body and never on disk; so fields may stand before or behind the file.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated, Any, Literal

from msgspec import Meta

from berth_gateway.contract import Route
from berth_gateway.endpoint import Answers, Body, Endpoint, Prepared, make
from berth_gateway.errors import Refusal
from berth_gateway.fields import VLLM, Field, Use, number, text, whole
from berth_gateway.multipart import Part, write_form
from berth_gateway.surfaces.common import admitted_extras, pass_fields

_KINDS = frozenset({"flac", "m4a", "mp3", "mp4", "mpeg", "mpga", "ogg", "opus", "wav", "webm"})

TABLE = (
    Field("model", str, Use.OWN, required=True),
    Field("file", Any, Use.OWN, required=True),
    Field("prompt", text(16_384)),
    Field("response_format", Literal["json", "verbose_json"], Use.OWN),
    Field("temperature", number(0, 1)),
    Field("stream", bool, Use.OWN),
    Field("seed", whole(-(1 << 63), (1 << 63) - 1), engines=VLLM),
    Field("user", text(1024), Use.STRIP),
)

TRANSCRIPTION = (
    *TABLE,
    Field("language", text(16)),
    Field("timestamp_granularities", Annotated[list[Literal["word", "segment"]], Meta(max_length=2)]),
    Field("include", Annotated[list[str], Meta(max_length=4)], Use.REFUSE),
    Field("chunking_strategy", str, Use.REFUSE),
    Field("known_speaker_names", list[str], Use.REFUSE),
    Field("known_speaker_references", list[str], Use.REFUSE),
)
TRANSLATION = TABLE


def prepare(endpoint: Endpoint, body: Body, route: Route) -> Prepared:
    """A new form with what is admitted. The answer is JSON in any case: no engine's text goes out unread."""
    values = body.values
    extras = admitted_extras(body.extras, route)
    passed = pass_fields(endpoint, values, route)
    if "stream" in passed and values.stream:
        raise Refusal("unsupported_value", "Transcripts are not streamed: leave 'stream' out.", param="stream")
    verbose = "response_format" in passed and values.response_format == "verbose_json"
    fields = [("model", route.engine_model), ("response_format", "verbose_json" if verbose else "json")]
    for name in sorted(passed):
        if endpoint.fields[name].use is Use.PASS:
            value = getattr(values, name)
            pairs = [(f"{name}[]", str(one)) for one in value] if isinstance(value, list) else [(name, str(value))]
            fields += pairs
    fields += [(name, str(value)) for name, value in extras.items()]
    file: Part = values.file
    if not file.data:
        raise Refusal("invalid_value", "'file' is empty.", param="file")
    kind = PurePath(file.filename or "").suffix[1:].lower()
    if kind not in _KINDS:
        raise Refusal(
            "invalid_value", f"'file' must have a name that ends in one of: {', '.join(sorted(_KINDS))}.", param="file"
        )
    form, content_type = write_form(fields, Part("file", f"audio.{kind}", file.data))
    return Prepared(
        body=form,
        stream=False,
        include_usage=False,
        choices=1,
        most_tokens=route.context_length,
        path=endpoint.path,
        content_type=content_type,
        notes=verbose,
    )


def _make(name: str, table: tuple[Field, ...]) -> Endpoint:
    return make(name, table, prepare, Answers.TRANSCRIPT, other_kind=True, multipart=True, prompt_field="file")


ENDPOINTS = (_make("audio/transcriptions", TRANSCRIPTION), _make("audio/translations", TRANSLATION))
