"""What it would take to run a model that is in the catalogue, on any tier there is: also on those that are not here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeVar

import msgspec

from berth.catalog.facts import ModelFacts
from berth.planner.demand import QUALITY, Demand
from berth.planner.hardware import gpu_by_name
from berth.planner.learning import Factor, Key
from berth.planner.market import Station, stations
from berth.planner.needs import BadNeeds, Needs, Quality
from berth.planner.quality import MeasuredQuality
from berth.planner.report import as_plain
from berth.planner.survey import Fixed, Survey, survey

T = TypeVar("T", Demand, Fixed)
_LOSS = {Quality.ANY: 1.0, Quality.GOOD: QUALITY["balanced"], Quality.HIGH: QUALITY["best"]}


def read_demand(raw: Mapping[str, Any] | None) -> Demand:
    """Raises BadNeeds."""
    demand = _read(raw, Demand, "demand")
    if demand.quality not in QUALITY:
        raise BadNeeds("demand.quality", f"Quality is one of {', '.join(QUALITY)}.")
    for name in ("most_per_hour", "most_per_interaction"):
        price: Decimal | None = getattr(demand, name)
        if price is not None and (not price.is_finite() or price < 0):
            raise BadNeeds(f"demand.{name}", "A price ceiling is a number of at least 0.")
    return demand


def read_fixed(raw: Mapping[str, Any] | None) -> Fixed:
    """Raises BadNeeds."""
    return _read(raw, Fixed, "pins")


def _read(raw: Mapping[str, Any] | None, kind: type[T], name: str) -> T:
    try:
        return msgspec.convert(dict(raw or {}), kind)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$.")
        raise BadNeeds(f"{name}.{path.rstrip('`')}" if path else name, f"{text}.") from None


def demand_of(needs: Needs) -> Demand:
    """What a deployment's needs are as a demand: its concurrency is streams, and nothing is asked that was not said."""
    return Demand(
        streams=needs.concurrency,
        ttft_ms=None,
        tokens_per_second=needs.tokens_per_second,
        context_length=needs.context_length,
        most_loss=_LOSS[needs.quality],
        most_per_hour=needs.max_price_per_hour,
    )


def losses_of(measured: Mapping[str, MeasuredQuality | None]) -> dict[str, float]:
    """By weight format, of the artefacts that were measured: what a survey takes instead of what others lost."""
    return {name: found.loss for name, found in measured.items() if found is not None}


def station_here(key: str, hardware: str, devices: int, price: Decimal | None) -> Station | None:
    """A provider's offer as a station, where the planner knows the hardware."""
    gpu = gpu_by_name(hardware)
    if gpu is None:
        return None
    return Station(key, gpu, tuple(sorted({1, devices})), price, "offered by this installation", here=True)


def what_it_takes(
    model: ModelFacts,
    demand: Demand,
    fixed: Fixed,
    *,
    formats: Iterable[str] = (),
    here: Sequence[Station] = (),
    losses: Mapping[str, float] | None = None,
    factors: Mapping[Key, Factor] | None = None,
    licence: str = "",
    rejected: int = 50,
) -> dict[str, Any]:
    """`formats`: what the model is there in ("Q4_K_M", "BF16"). `here`: stations of this installation beside those of the market.
    `losses`: measured of this model by format, from 0 to 1. `factors`: what measured deployments teach of the tiers here. `licence`: of
    the model, empty where it is not known. `rejected`: how many of the options that were turned down are told,
    nearest first."""
    found: Survey = survey(
        model,
        demand,
        fixed=fixed,
        market=(*here, *stations()),
        existing=formats,
        losses=losses,
        factors=factors,
        licence=licence,
    )
    return as_plain(found, turned=rejected) | {"considered": len(found.turned) + (found.chosen is not None)}
