"""All tiers, engines and weight formats against a demand: the cheapest that meets it, what else would do, and why the rest would not.

Pure and deterministic. What does not fit, does not divide or is not supported is never chosen, pinned or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal

import msgspec

from berth.catalog.facts import ModelFacts
from berth.planner.assess import Assessed, assess
from berth.planner.capability import capabilities
from berth.planner.demand import Demand
from berth.planner.explain import Reason, reason
from berth.planner.learning import Factor, Key
from berth.planner.licences import allowed
from berth.planner.market import Station, stations
from berth.planner.options import Option, Order, options, place

NATIVE_SCHEMES = {"mxfp4": "MXFP4", "fp8": "FP8", "gptq": "GPTQ-Int4", "awq": "AWQ-INT4", "nvfp4": "NVFP4"}
FAR_DEARER = 2  # times the price of the cheapest plan: beyond it nothing is weighed in detail
NEVER_FORCED = frozenset(
    {
        "memory_short", "context_too_long", "context_too_long_for_memory", "capability_too_low", "engine_hardware", "format_unsupported",
        "moe_unsupported", "attention_unsupported", "cache_unsupported", "heads_not_divisible", "one_device", "feature_missing",
        "memory_unknown", "licence_not_allowed", "licence_unknown",
    }
)  # fmt: skip
ELSEWISE = frozenset(  # where an 8-bit cache, or attention that is not split, could help
    {
        "context_too_long_for_memory", "cache_short", "too_slow", "first_token_late", "reply_late", "saturated",
        "too_many_at_once", "price_too_high", "interaction_too_dear",
    }
)  # fmt: skip


class Basis(msgspec.Struct, frozen=True):
    """What a survey stands on beside the demand. `market`: the tiers to plan on; None: those of data/tiers.toml. `existing`: the weight
    formats that the model is there in. `losses`: what was measured of this very model by format, from 0 to 1, instead of what others lost.
    `factors`: what measured deployments teach. `licence`: of the model; empty: not known."""

    market: tuple[Station, ...] | None = None
    existing: tuple[str, ...] = ()
    losses: Mapping[str, float] = {}
    factors: Mapping[Key, Factor] = {}
    licence: str = ""

    @property
    def stations(self) -> tuple[Station, ...]:
        return stations() if self.market is None else self.market


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
    basis: Basis = Basis()

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
    factors: Mapping[Key, Factor] | None = None,
    licence: str = "",
) -> Survey:
    """See `Basis` for what the names mean."""
    basis = Basis(None if market is None else tuple(market), tuple(existing), losses or {}, factors or {}, licence)
    return survey_on(basis, model, demand, fixed or Fixed())


def survey_on(basis: Basis, model: ModelFacts, demand: Demand, asked: Fixed) -> Survey:
    fits: list[Assessed] = []
    turned: list[Turned] = []
    cheapest: Decimal | None = None
    licensed = allowed(basis.licence, demand.licences)
    for option in options(basis.stations, _formats(model, basis.existing)):
        if licensed is not None:
            turned.append(Turned(option, licensed))
            continue
        if cheapest is not None and (option.least is None or option.least > FAR_DEARER * cheapest):
            turned.append(Turned(option, _far_dearer(option, cheapest)))
            continue
        for tried, found in _tries(option, model, demand, asked, basis, cheapest):
            if isinstance(found, Assessed):
                fits.append(found)
                if found.per_hour is not None:
                    cheapest = found.per_hour if cheapest is None else min(cheapest, found.per_hour)
            else:
                turned.append(Turned(tried, found))
    fits.sort(key=preference)
    if not fits:
        return Survey(demand, model, None, (), tuple(turned), asked, basis)
    best = fits[0]
    turned += [Turned(other.option, _why_not(other, best)) for other in fits[1:]]
    return Survey(demand, model, best, tuple(fits), tuple(turned), asked, basis)


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
    option: Option, model: ModelFacts, demand: Demand, fixed: Fixed, basis: Basis, cheapest: Decimal | None
) -> Iterator[tuple[Option, Assessed | Reason]]:
    """As it is usual; and where that fails or takes more than one replica, also with an 8-bit cache and with attention that is whole on
    each device. What one replica does, nothing of the same price does with fewer."""
    against = _left_out(option, demand, fixed)
    if against is not None:
        yield option, against
        return
    first = msgspec.structs.replace(option, kv_bits=fixed.kv_bits) if fixed.kv_bits not in (None, 16) else option
    found = _try(first, model, demand, basis)
    yield first, found
    if found.code not in ELSEWISE if isinstance(found, Reason) else found.replicas == 1 + found.spare:
        return
    if cheapest is not None and (option.least is None or option.least > cheapest):
        return  # even one replica would be dearer than what is found already
    for other in _variants(first, model, fixed):
        again = _try(other, model, demand, basis)
        if isinstance(again, Assessed):
            yield other, again


def _variants(option: Option, model: ModelFacts, fixed: Fixed) -> Iterator[Option]:
    bits = (option.kv_bits,) if fixed.kv_bits is not None or option.kv_bits == 8 else (option.kv_bits, 8)
    spreads = option.devices > 1 and model.experts and not model.experts % option.devices
    for spread in (False, True) if spreads and capabilities()[option.engine].attention_parallel else (False,):
        for each in bits:
            if spread or each != option.kv_bits:
                yield msgspec.structs.replace(option, kv_bits=each, spread=spread)


def _try(option: Option, model: ModelFacts, demand: Demand, basis: Basis) -> Assessed | Reason:
    placed = place(option, model)
    if isinstance(placed, Reason):
        return placed
    return assess(option, placed, demand, basis.losses.get(option.scheme), basis.factors)


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
        return reason(
            "elsewhere", f"{option.station.key} is offered in {told}, not in {', '.join(demand.regions)}.",
            tier=option.station.key, asked=", ".join(demand.regions),
        )  # fmt: skip
    if demand.tiers and option.station.key not in demand.tiers:
        return reason(
            "tier_not_allowed",
            f"{option.station.key} is not among the tiers that are allowed.",
            tier=option.station.key,
        )
    return None


_SIMPLEST = {"llamacpp": 0, "vllm": 1, "ollama": 2, "onnxruntime": 3, "tensorrt_llm": 4}


def preference(one: Assessed) -> tuple[bool, Decimal, float, bool, int, bool, bool, int, float, Order]:
    """Cheapest first (what has no price comes last), then least loss (a full cache before an 8-bit one), fewest devices, files that are
    there, attention as usual, simplest engine, fastest."""
    return (
        one.per_hour is None,
        one.per_hour or Decimal(0),
        round(one.loss, 3),
        one.option.kv_bits < 16,
        one.devices,
        one.option.made,
        one.option.spread,
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
            loss=round(100 * other.loss, 2), chosen=round(100 * best.loss, 2),
        )  # fmt: skip
    return reason("no_better", "It fits at the same price and quality, and is no simpler.")
