"""What somebody asks of a deployment, and what they insist on."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Final, TypeVar

import msgspec

DEFAULT_CONCURRENCY: Final = 4
DEFAULT_CONTEXT: Final = 8_192  # asked for when nobody says anything, as far as the model and the memory go
MIN_CONTEXT: Final = 256  # engines hand out context in steps of this
MAX_CONTEXT: Final = 1 << 24
MAX_CONCURRENCY: Final = 512
MAX_REPLICAS: Final = 16
MAX_LICENCES: Final = 32

_Context = Annotated[int, msgspec.Meta(ge=MIN_CONTEXT, le=MAX_CONTEXT)]
_Slots = Annotated[int, msgspec.Meta(ge=1, le=MAX_CONCURRENCY)]
_Licence = Annotated[str, msgspec.Meta(min_length=1, max_length=80)]
_Quantization = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,30}\Z")]
_Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")]


class Quality(StrEnum):
    """The least quality that quantization may leave, by bits that the file really has for each weight."""

    ANY = "any"
    GOOD = "good"  # 4 bits and more: small losses
    HIGH = "high"  # 8 bits and more: losses that are hard to measure


MOST_LOSS: Final = {
    Quality.ANY: 1.0,
    Quality.GOOD: 0.04,
    Quality.HIGH: 0.01,
}  # of a score, where an artefact was measured
LEAST_BITS: Final = {Quality.ANY: 0.0, Quality.GOOD: 4.0, Quality.HIGH: 8.0}


class Needs(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=False):
    """Absent means: no demand, and a sensible value is chosen."""

    context_length: _Context | None = None  # tokens, prompt and completion together
    concurrency: _Slots = DEFAULT_CONCURRENCY  # requests at the same time
    quality: Quality = Quality.ANY
    max_price_per_hour: Annotated[Decimal, msgspec.Meta()] | None = None  # for one replica
    tokens_per_second: Annotated[float, msgspec.Meta(gt=0, le=100_000)] | None = (
        None  # for each of the concurrent requests
    )
    ttft_ms: Annotated[float, msgspec.Meta(gt=0, le=3_600_000)] | None = (
        None  # to the first token of a prompt of 512 tokens; what scaling keeps to
    )
    licences: Annotated[tuple[_Licence, ...], msgspec.Meta(max_length=MAX_LICENCES)] = ()  # allowed; none named: all

    def allows(self, licence: str) -> bool:
        """Whether a model of this licence may run. One whose licence is not known may not, once any is named."""
        return not self.licences or licence.casefold() in {each.casefold() for each in self.licences}


class Pins(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Choices taken out of the planner's hands. What does not fit is not planned because it is pinned."""

    artefact_id: _Name | None = None
    quantization: _Quantization | None = None  # "Q4_K_M"; made first where it is not there and can be
    engine: _Name | None = None
    tier: _Name | None = None
    context_length: _Context | None = None
    slots: _Slots | None = None


class BadNeeds(Exception):
    """Needs or pins that mean nothing. `field` is the path in the request."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field, self.message = field, message


T = TypeVar("T", Needs, Pins)


def read_needs(raw: Mapping[str, Any] | None) -> Needs:
    """Raises BadNeeds."""
    needs = _read(raw, Needs, "needs")
    price = needs.max_price_per_hour
    if price is not None and (not price.is_finite() or price < 0):
        raise BadNeeds("needs.max_price_per_hour", "A price ceiling is a number of at least 0.")
    return needs


def read_pins(raw: Mapping[str, Any] | None) -> Pins:
    """Raises BadNeeds."""
    return _read(raw, Pins, "pins")


def _read(raw: Mapping[str, Any] | None, kind: type[T], name: str) -> T:
    try:
        return msgspec.convert(dict(raw or {}), kind)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$.")
        field = f"{name}.{path.rstrip('`')}" if path else name
        raise BadNeeds(field, f"{text}.") from None
