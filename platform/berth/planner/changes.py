"""When nothing fits: single changes of what was asked, each of which was tried and makes a plan possible."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from berth.planner.explain import Reason, number, reason, size
from berth.planner.foresight import first_of, speed_of
from berth.planner.memory import memory_need
from berth.planner.needs import MIN_CONTEXT, Pins, Quality
from berth.planner.shapes import Candidate, Question

Possible = Callable[[Question], bool]


def suggest_changes(question: Question, possible: Possible) -> tuple[Reason, ...]:
    """`possible` says whether a question has a plan."""
    found: list[Reason] = []
    for search in (
        _shorter_context,
        _fewer_at_once,
        _lower_quality,
        _higher_ceiling,
        _less_speed,
        _later_first,
        _allow_licence,
        _unpin,
    ):
        found.extend(search(question, possible))
    return tuple(found) or tuple(_more_memory(question))


def _with_needs(question: Question, **fields: Any) -> Question:
    return msgspec.structs.replace(question, needs=msgspec.structs.replace(question.needs, **fields))


def _with_pins(question: Question, **fields: Any) -> Question:
    return msgspec.structs.replace(question, pins=msgspec.structs.replace(question.pins, **fields))


def _most(low: int, high: int, works: Callable[[int], bool]) -> int | None:
    """The largest value in [low, high] that works, given that whatever is smaller works too."""
    if high < low or not works(low):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if works(middle) else (low, middle - 1)
    return low


def _shorter_context(question: Question, possible: Possible) -> Iterator[Reason]:
    asked = question.pins.context_length or question.needs.context_length
    change = _with_pins if question.pins.context_length else _with_needs
    value = _most(
        MIN_CONTEXT,
        min(asked - 1 if asked else question.model.context_length, question.model.context_length),
        lambda context: possible(change(question, context_length=context)),
    )
    if value is not None:
        yield reason(
            "shorter_context", f"Ask for at most {value:,} tokens of context.", field="context_length", value=value
        )


def _fewer_at_once(question: Question, possible: Possible) -> Iterator[Reason]:
    pinned = question.pins.slots
    asked = pinned or question.needs.concurrency

    def works(slots: int) -> bool:
        changed = _with_pins(question, slots=slots) if pinned else _with_needs(question, concurrency=slots)
        return possible(changed)

    value = _most(1, asked - 1, works)
    if value is not None:
        yield reason(
            "fewer_at_once",
            f"Ask for at most {value} requests at the same time.",
            field="slots" if pinned else "concurrency",
            value=value,
        )


def _lower_quality(question: Question, possible: Possible) -> Iterator[Reason]:
    for quality in (Quality.GOOD, Quality.ANY):
        if quality != question.needs.quality and possible(_with_needs(question, quality=quality)):
            yield reason("lower_quality", f"Accept quality “{quality}”.", field="quality", value=str(quality))
            return


def _higher_ceiling(question: Question, possible: Possible) -> Iterator[Reason]:
    if question.needs.max_price_per_hour is None:
        return
    prices = sorted({tier.price_per_hour for tier in question.tiers if tier.price_per_hour is not None})
    for price in prices:
        if possible(_with_needs(question, max_price_per_hour=price)):
            yield reason(
                "higher_ceiling", f"Raise the ceiling to {price} an hour.", field="max_price_per_hour", value=price
            )
            return
    if possible(_with_needs(question, max_price_per_hour=None)):
        yield reason(
            "no_ceiling", "Drop the price ceiling: what fits has no price.", field="max_price_per_hour", value=None
        )


def _less_speed(question: Question, possible: Possible) -> Iterator[Reason]:
    if question.needs.tokens_per_second is None:
        return
    context = question.pins.context_length or question.needs.context_length or question.model.context_length
    slots = question.pins.slots or question.needs.concurrency
    speeds = [
        estimate.value
        for artefact in question.artefacts
        for engine in artefact.engines
        for tier in question.tiers
        if (estimate := speed_of(question, Candidate(artefact, engine, tier), context_length=context, slots=slots))
    ]
    for speed in sorted(speeds, reverse=True):
        if speed > 0 and possible(_with_needs(question, tokens_per_second=speed)):
            yield reason(
                "less_speed", f"Accept {number(speed)} tokens a second.", field="tokens_per_second", value=speed
            )
            return


def _later_first(question: Question, possible: Possible) -> Iterator[Reason]:
    if question.needs.ttft_ms is None:
        return
    firsts = [
        estimate.value
        for artefact in question.artefacts
        for engine in artefact.engines
        for tier in question.tiers
        if (estimate := first_of(question, Candidate(artefact, engine, tier)))
    ]
    for first in sorted(firsts):
        if possible(_with_needs(question, ttft_ms=first)):
            yield reason("later_first", f"Accept a first token after {number(first)} ms.", field="ttft_ms", value=first)
            return


def _allow_licence(question: Question, possible: Possible) -> Iterator[Reason]:
    allowed = question.needs.licences
    if not allowed or not possible(_with_needs(question, licences=())):
        return
    if question.licence:
        yield reason(
            "allow_licence",
            f"Allow the licence {question.licence}.",
            field="licences",
            value=[*allowed, question.licence],
            licence=question.licence,
        )
    else:
        yield reason("any_licence", "Allow any licence: this model's is not known here.", field="licences", value=[])


def _unpin(question: Question, possible: Possible) -> Iterator[Reason]:
    for field in Pins.__struct_fields__:
        if getattr(question.pins, field) is not None and possible(_with_pins(question, **{field: None})):
            yield reason(
                "unpin", f"Do not pin the {field.replace('_', ' ').removesuffix(' id')}.", field=field, value=None
            )


def _more_memory(question: Question) -> Iterator[Reason]:
    """When no change of what was asked helps: the smallest machine that would."""
    context = question.pins.context_length or question.needs.context_length or MIN_CONTEXT
    slots = question.pins.slots or question.needs.concurrency
    needs = [
        memory_need(question.model, artefact.facts, context_length=context, slots=slots, available=0).total
        for artefact in question.artefacts
    ]
    most = max((tier.usable_memory for tier in question.tiers), default=0)
    if needs and min(needs) > most:
        yield reason(
            "more_memory",
            f"Use a machine that has {size(min(needs))} for a replica; the largest here has {size(most)}.",
            needed=min(needs),
            available=most,
        )
