"""What would have to change: the nearest plans when nothing meets a demand, and what a pin costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, Final

import msgspec

from berth.catalog.facts import ModelFacts
from berth.planner.assess import Assessed
from berth.planner.demand import QUALITY, Demand
from berth.planner.explain import Reason, number, reason
from berth.planner.survey import Survey, survey_on

MOST_REPLICAS: Final = 256


class Remedy(msgspec.Struct, frozen=True):
    """One change of what was asked, and the plan that it makes possible."""

    change: Reason
    plan: Assessed


def remedies(found: Survey) -> tuple[Remedy, ...]:
    """Of a survey in which nothing fits: single changes, each of which was tried; cheapest first. Empty: no single one helps."""
    helps = []
    for change, other in _changes(found.model, found.demand):
        planned = survey_on(found.basis, found.model, other, found.fixed).chosen
        if planned is not None:
            helps.append(Remedy(change(planned), planned))
    for name in found.fixed.names:
        planned = _freed(found, name)
        if planned is not None:
            text = f"Do not pin the {name.replace('_', ' ')}: {planned.option.label}."
            helps.append(Remedy(reason("unpin", text, field=name, label=planned.option.label), planned))
    return tuple(
        sorted(helps, key=lambda each: (each.plan.per_hour is None, each.plan.per_hour or Decimal(0), each.change.code))
    )


def _freed(found: Survey, name: str) -> Assessed | None:
    """The plan without one of the pins."""
    fixed = msgspec.structs.replace(found.fixed, **{name: None})
    return survey_on(found.basis, found.model, found.demand, fixed).chosen


Change = tuple[Callable[[Assessed], Reason], Demand]


def _changes(model: ModelFacts, demand: Demand) -> Iterator[Change]:
    """The need is dropped to learn what can be had; the sentence then says how much is enough."""

    def without(**fields: Any) -> Demand:
        return msgspec.structs.replace(demand, **fields)

    if demand.ttft_ms is not None:
        yield _first, without(ttft_ms=None)
    if demand.tokens_per_second is not None:
        yield _speed, without(tokens_per_second=None)
    if demand.reply_seconds is not None:
        yield _reply, without(reply_seconds=None)
    if demand.most_per_hour is not None or demand.most_per_interaction is not None:
        yield _price, without(most_per_hour=None, most_per_interaction=None)
    if demand.loss < QUALITY["economy"]:
        yield _quality, without(quality="economy", most_loss=None)
    yield from _contexts(model, demand)
    if demand.engines or demand.tiers or demand.regions:
        yield _anywhere, without(engines=(), tiers=(), regions=())
    if demand.licences:
        yield _licence, without(licences=())
    if demand.most_replicas < MOST_REPLICAS:
        yield _replicas, without(most_replicas=MOST_REPLICAS)


def _contexts(model: ModelFacts, demand: Demand) -> Iterator[Change]:
    asked, usual = demand.context(model.context_length), demand.prompt_tokens + demand.reply_tokens
    for share in (2, 4, 8):
        shorter = max(256, min(asked, model.context_length) // share)
        if usual <= shorter < asked:
            yield _context(shorter), msgspec.structs.replace(demand, context_length=shorter)
    if asked > model.context_length >= usual:
        yield _context(model.context_length), msgspec.structs.replace(demand, context_length=model.context_length)


def _first(plan: Assessed) -> Reason:
    value = 1e3 * plan.speed.first * (1 + plan.first_margin)
    return _accept("later_first_token", f"Accept a first token after {number(value)} ms", plan, "ttft_ms", round(value))


def _speed(plan: Assessed) -> Reason:
    value = 1 / (plan.speed.tpot * (1 + plan.speed_margin))
    text = f"Accept {number(value)} tokens a second for each user"
    return _accept("less_speed", text, plan, "tokens_per_second", round(value, 1))


def _reply(plan: Assessed) -> Reason:
    value = plan.flow.in_flight / max(1e-9, plan.flow.rate) * (1 + plan.speed_margin)
    return _accept("later_reply", f"Accept {value:.1f} s for a whole reply", plan, "reply_seconds", round(value, 2))


def _price(plan: Assessed) -> Reason:
    text = f"Raise the ceiling to ${plan.per_hour} an hour"
    return _accept("higher_ceiling", text, plan, "most_per_hour", plan.per_hour)


def _quality(plan: Assessed) -> Reason:
    text = f"Accept a loss of {100 * plan.loss:.1f} %"
    return _accept("lower_quality", text, plan, "most_loss", round(plan.loss, 4))


def _context(length: int) -> Callable[[Assessed], Reason]:
    def change(plan: Assessed) -> Reason:
        text = f"Lower the context to {length:,} tokens"
        return _accept("shorter_context", text, plan, "context_length", length)

    return change


def _anywhere(plan: Assessed) -> Reason:
    return _accept("more_tiers", "Allow other tiers and engines", plan, "tiers", plan.option.station.key)


def _licence(plan: Assessed) -> Reason:
    return _accept("any_licence", "Allow the model's licence", plan, "licences", [])


def _replicas(plan: Assessed) -> Reason:
    return _accept("more_replicas", f"Allow {plan.replicas} replicas", plan, "most_replicas", plan.replicas)


def _accept(code: str, text: str, plan: Assessed, field: str, value: Any) -> Reason:
    """A sentence that ends with what would then run."""
    return reason(code, f"{text}: {plan.option.label}.", field=field, value=value, label=plan.option.label)


class PinCost(msgspec.Struct, frozen=True):
    pin: str
    value: str
    per_hour: Decimal | None  # more than the plan without this pin; None: not both have a price


def pin_costs(found: Survey) -> tuple[PinCost, ...]:
    """What each pin adds to the price of the plan."""
    costs = []
    for name in found.fixed.names:
        freed, more = _freed(found, name), None
        if freed and found.chosen and freed.per_hour is not None and found.chosen.per_hour is not None:
            more = found.chosen.per_hour - freed.per_hour
        costs.append(PinCost(name, str(getattr(found.fixed, name)), more))
    return tuple(costs)
