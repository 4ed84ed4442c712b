"""All tiers, engines and weight formats against a demand: the cheapest that meets it, what else would do, and why the rest would not.

Pure and deterministic. What does not fit, does not divide or is not supported is never chosen, pinned or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal

import msgspec

from berth.catalog.facts import ModelFacts
from berth.planner.assess import Assessed, assess
from berth.planner.demand import Demand
from berth.planner.explain import Reason, reason
from berth.planner.market import Station, stations
from berth.planner.options import Option, options, place

NATIVE_SCHEMES = {"mxfp4": "MXFP4", "fp8": "FP8", "gptq": "GPTQ-Int4", "awq": "AWQ-INT4", "nvfp4": "NVFP4"}
FAR_DEARER = 2  # times the price of the cheapest plan: beyond it nothing is weighed in detail
NEVER_FORCED = frozenset(
    {
        "memory_short", "context_too_long", "context_too_long_for_memory", "capability_too_low", "engine_hardware", "format_unsupported",
        "moe_unsupported", "attention_unsupported", "cache_unsupported", "heads_not_divisible", "one_device", "feature_missing",
    }
)  # fmt: skip


class Fixed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Choices taken out of the planner's hands."""

    engine: str | None = None
    scheme: str | None = None
    tier: str | None = None
    devices: int | None = None
    kv_bits: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name in self.__struct_fields__ if getattr(self, name) is not None)


class Turned(msgspec.Struct, frozen=True):
    """An option that is not chosen, with the first reason."""

    option: Option
    why: Reason

    @property
    def forcible(self) -> bool:
        """Whether it would run at all: only wishes speak against it, not memory or hardware."""
        return self.why.code not in NEVER_FORCED


class Survey(msgspec.Struct, frozen=True):
    demand: Demand
    model: ModelFacts
    chosen: Assessed | None
    fits: tuple[Assessed, ...]  # all that meet the demand, best first
    turned: tuple[Turned, ...]
    fixed: Fixed = Fixed()

    @property
    def pareto(self) -> tuple[Assessed, ...]:
        """Those that no other beats in price, quality, speed and first token together; cheapest first."""
        kept: list[Assessed] = []
        for one in self.fits:
            if not any(_beats(other, one) for other in kept):
                kept.append(one)
        return tuple(kept)


def survey(
    model: ModelFacts,
    demand: Demand,
    *,
    fixed: Fixed | None = None,
    market: Sequence[Station] | None = None,
    existing: Iterable[str] = (),
    losses: Mapping[str, float] | None = None,
) -> Survey:
    """`market`: the tiers to plan on; none given: those of data/tiers.toml. `existing`: the weight formats that the model is there
    in. `losses`: what was measured of this very model by format, instead of what others lost."""
    asked = fixed or Fixed()
    everywhere = stations() if market is None else tuple(market)
    fits: list[Assessed] = []
    turned: list[Turned] = []
    cheapest: Decimal | None = None
    for option in options(everywhere, _formats(model, existing)):
        if cheapest is not None and (option.least is None or option.least > FAR_DEARER * cheapest):
            turned.append(Turned(option, _far_dearer(option, cheapest)))
            continue
        for tried, found in _tries(option, model, demand, asked, losses or {}):
            if isinstance(found, Assessed):
                fits.append(found)
                if found.per_hour is not None:
                    cheapest = found.per_hour if cheapest is None else min(cheapest, found.per_hour)
            else:
                turned.append(Turned(tried, found))
    fits.sort(key=preference)
    if not fits:
        return Survey(demand, model, None, (), tuple(turned), asked)
    best = fits[0]
    turned += [Turned(other.option, _why_not(other, best)) for other in fits[1:]]
    return Survey(demand, model, best, tuple(fits), tuple(turned), asked)


def _formats(model: ModelFacts, existing: Iterable[str]) -> frozenset[str]:
    """With the one that the model was published in."""
    published = NATIVE_SCHEMES.get(model.native_quantization, "BF16")
    return frozenset(existing) | {published}


def _far_dearer(option: Option, cheapest: Decimal) -> Reason:
    if option.least is None:
        return reason("price_unknown", f"{option.station.key} has no price, and others that have one do.")
    return reason(
        "far_dearer",
        f"It would cost at least ${option.least} an hour; what does costs ${cheapest}.",
        price=option.least,
        chosen=cheapest,
    )


def _tries(
    option: Option, model: ModelFacts, demand: Demand, fixed: Fixed, losses: Mapping[str, float]
) -> Iterator[tuple[Option, Assessed | Reason]]:
    """With a 16-bit cache, and with an 8-bit one where the cache was what was short."""
    against = _left_out(option, demand, fixed)
    if against is not None:
        yield option, against
        return
    wanted = fixed.kv_bits or 16
    first = msgspec.structs.replace(option, kv_bits=wanted) if wanted != 16 else option
    found = _try(first, model, demand, losses)
    yield first, found
    if (
        fixed.kv_bits is None
        and isinstance(found, Reason)
        and found.code in ("context_too_long_for_memory", "memory_short")
    ):
        smaller = msgspec.structs.replace(option, kv_bits=8)
        again = _try(smaller, model, demand, losses)
        if isinstance(again, Assessed):
            yield smaller, again


def _try(option: Option, model: ModelFacts, demand: Demand, losses: Mapping[str, float]) -> Assessed | Reason:
    placed = place(option, model)
    return placed if isinstance(placed, Reason) else assess(option, placed, demand, losses.get(option.scheme))


def _left_out(option: Option, demand: Demand, fixed: Fixed) -> Reason | None:
    for name, wanted, offered in (
        ("engine", fixed.engine, option.engine),
        ("weight format", fixed.scheme, option.scheme),
        ("tier", fixed.tier, option.station.key),
        ("number of devices", fixed.devices, option.devices),
    ):
        if wanted is not None and wanted != offered:
            return reason("pinned", f"Another {name} is pinned ({wanted}).", pin=name, value=wanted)
    if demand.engines and option.engine not in demand.engines:
        return reason(
            "engine_not_allowed", f"{option.engine} is not among the engines that are allowed.", engine=option.engine
        )
    if demand.regions and not set(demand.regions) & set(option.station.regions):
        told = ", ".join(option.station.regions) or "no region that is known"
        return reason("elsewhere", f"{option.station.key} is offered in {told}, not in {', '.join(demand.regions)}.")
    if demand.tiers and option.station.key not in demand.tiers:
        return reason(
            "tier_not_allowed",
            f"{option.station.key} is not among the tiers that are allowed.",
            tier=option.station.key,
        )
    return None


_SIMPLEST = {"llamacpp": 0, "vllm": 1, "ollama": 2, "onnxruntime": 3, "tensorrt_llm": 4}


def preference(one: Assessed) -> tuple[bool, Decimal, float, int, bool, int, float, tuple[str, int, str, str, int]]:
    """Cheapest first (what has no price comes last), then least loss, fewest devices, simplest engine, fastest."""
    return (
        one.per_hour is None,
        one.per_hour or Decimal(0),
        round(one.loss, 3),
        one.devices,
        one.option.made,
        _SIMPLEST.get(one.option.engine, 9),
        round(one.speed.tpot, 6),
        one.option.order,
    )


def _beats(one: Assessed, other: Assessed) -> bool:
    """No worse in anything that people compare."""
    if (one.per_hour is None) != (other.per_hour is None):
        return False
    return (
        (one.per_hour or 0) <= (other.per_hour or 0)
        and one.loss <= other.loss
        and one.speed.tpot <= other.speed.tpot
        and one.speed.first <= other.speed.first
    )


def _why_not(other: Assessed, best: Assessed) -> Reason:
    if other.per_hour != best.per_hour:
        if other.per_hour is None or best.per_hour is None:
            return reason("price_unknown", f"It fits, but {other.option.station.key} has no price.")
        return reason(
            "dearer", f"It fits, but costs ${other.per_hour} an hour; {best.option.label} costs ${best.per_hour}.",
            price=other.per_hour, chosen=best.per_hour,
        )  # fmt: skip
    if round(other.loss, 3) != round(best.loss, 3):
        return reason(
            "lower_quality", f"It fits at the same price, but loses {100 * other.loss:.1f} % of quality, not {100 * best.loss:.1f} %.",
            loss=round(other.loss, 4), chosen=round(best.loss, 4),
        )  # fmt: skip
    return reason("no_better", "It fits at the same price and quality, and is no simpler.")
