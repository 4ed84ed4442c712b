"""Promises of the planner, for any model, machine and wish; and its choices in cases one can check by hand."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.catalog.facts import AttentionGroup, ModelFacts
from berth.planner.capabilities import ENGINES
from berth.planner.judge import candidates
from berth.planner.memory import kv_bytes, memory_need
from berth.planner.needs import LEAST_BITS, Needs, Pins, Quality
from berth.planner.plan import plan
from berth.planner.shapes import Plan, PlanArtefact, Question
from berth.planner.tiers import Tier
from tests.platform.planner import worlds
from tests.platform.planner.worlds import CPU, GIB, SMOLLM2, artefact

quick = settings(max_examples=150, deadline=None)
questions = st.builds(
    Question,
    model=worlds.models,
    artefacts=worlds.artefacts.map(tuple),
    needs=worlds.needs,
    tiers=worlds.tiers.map(tuple),
    pins=st.just(Pins()) | worlds.pins,
    replicas=st.integers(1, 4),
)


def asked(question: Question) -> Plan:
    return plan(
        question.model, question.artefacts, question.needs, question.tiers, question.pins, replicas=question.replicas
    )


@given(question=questions)
@quick
def test_what_is_chosen_fits_and_meets_every_need(question: Question) -> None:
    choice = asked(question).choice
    if choice is None:
        return
    needs, pins = question.needs, question.pins
    tier = next(tier for tier in question.tiers if tier.key == choice.tier)
    files = next(each for each in question.artefacts if each.id == choice.artefact_id)
    need = memory_need(
        question.model,
        files.facts,
        context_length=choice.context_length,
        slots=choice.slots,
        available=tier.usable_memory,
    )
    assert choice.memory == need
    assert need.total <= tier.usable_memory < tier.memory_bytes
    assert choice.context_length <= question.model.context_length
    assert choice.slots == (pins.slots or needs.concurrency)
    assert 1 <= choice.threads <= max(1, tier.cores - 1)
    assert tier.kind in ENGINES[choice.engine].kinds
    assert files.facts.tensor_bytes * 8 / question.model.parameters >= LEAST_BITS[needs.quality]
    if needs.max_price_per_hour is not None:
        assert tier.price_per_hour is not None
        assert tier.price_per_hour <= needs.max_price_per_hour
    if needs.tokens_per_second is not None:
        assert choice.predicted.tokens_per_second is not None
        assert choice.predicted.tokens_per_second.value >= needs.tokens_per_second
    if needs.ttft_ms is not None:
        assert choice.predicted.ttft_ms is not None
        assert choice.predicted.ttft_ms.value <= needs.ttft_ms
    wanted_context = pins.context_length or needs.context_length
    assert wanted_context is None or choice.context_length == wanted_context


@given(question=questions)
@quick
def test_pins_are_kept(question: Question) -> None:
    choice = asked(question).choice
    if choice is None:
        return
    for pin, chosen in (
        (question.pins.artefact_id, choice.artefact_id),
        (question.pins.engine, choice.engine),
        (question.pins.tier, choice.tier),
    ):
        assert pin is None or pin == chosen


@given(question=questions)
@quick
def test_every_candidate_is_either_chosen_or_rejected_with_a_reason(question: Question) -> None:
    found = asked(question)
    everything = sorted((each.engine, each.artefact.id, each.tier.key) for each in candidates(question))
    named = [(each.engine, each.artefact_id, each.tier) for each in found.rejected]
    if found.choice is not None:
        named.append((found.choice.engine, found.choice.artefact_id, found.choice.tier))
    assert sorted(named) == everything
    assert found.fits == (found.choice is not None)
    assert all(each.code and each.message.endswith(".") for each in found.rejected)


@given(question=questions, order=st.randoms(use_true_random=False))
@quick
def test_the_same_question_has_the_same_answer_in_any_order(question: Question, order: Any) -> None:
    shuffled = {}
    for field in ("artefacts", "tiers"):
        values = list(getattr(question, field))
        order.shuffle(values)
        shuffled[field] = tuple(values)
    assert asked(msgspec.structs.replace(question, **shuffled)) == asked(question)


@given(question=questions, more=st.integers(1, 64 * GIB))
@quick
def test_more_memory_never_takes_a_plan_away(question: Question, more: int) -> None:
    if not asked(question).fits:
        return
    larger = tuple(msgspec.structs.replace(tier, memory_bytes=tier.memory_bytes + more) for tier in question.tiers)
    assert asked(msgspec.structs.replace(question, tiers=larger)).fits


@given(model=worlds.models, low=st.integers(1, 1 << 18), more=st.integers(0, 1 << 18), slots=st.integers(1, 64))
@quick
def test_more_context_and_more_slots_never_need_less(model: ModelFacts, low: int, more: int, slots: int) -> None:
    def total(context: int, count: int) -> int:
        return memory_need(model, worlds.Q4_1, context_length=context, slots=count, available=0).total

    assert total(low + more, slots) >= total(low, slots)
    assert total(low, slots + 1) > total(low, slots)


@given(question=questions)
@quick
def test_each_suggested_change_alone_makes_it_fit(question: Question) -> None:
    found = asked(question)
    assert not (found.fits and found.changes)
    for change in found.changes:
        if change.code == "more_memory":
            continue
        field, value = change.params["field"], change.params["value"]
        in_pins = field in Pins.__struct_fields__ and getattr(question.pins, field) is not None
        target = question.pins if in_pins else question.needs
        if field == "max_price_per_hour" and value is not None:
            value = Decimal(value)
        if field == "quality":
            value = Quality(value)
        changed = msgspec.structs.replace(target, **{field: value})
        assert asked(msgspec.structs.replace(question, **{"pins" if in_pins else "needs": changed})).fits


# By hand


def ask(
    model: ModelFacts = SMOLLM2,
    files: list[PlanArtefact] | None = None,
    tier: Tier = CPU,
    pins: Pins | None = None,
    **needs: Any,
) -> Plan:
    return plan(model, [artefact()] if files is None else files, Needs(**needs), [tier], pins)


def test_the_sample_on_a_small_machine() -> None:
    choice = ask().choice
    assert choice is not None
    assert (choice.context_length, choice.slots, choice.threads) == (8192, 4, 1)
    assert choice.memory.weights == 96_576_768
    assert choice.memory.kv == 4 * 8192 * 2 * 30 * 3 * 64 * 2
    assert [reason.code for reason in choice.reasons] == ["fits_memory", "context_default", "one_core_free"]


def test_heads_that_share_keys_need_less_than_heads_that_do_not() -> None:
    """Grouped queries (3 of 9 heads), one shared head, and every head for itself: by heads, not by parameters."""

    def cache(kv_heads: int) -> int:
        return kv_bytes(msgspec.structs.replace(SMOLLM2, attention=(AttentionGroup(30, kv_heads, 64, 64),)), 1000)

    assert cache(9) == 3 * cache(3) == 9 * cache(1)


def test_sliding_layers_stop_growing() -> None:
    window = msgspec.structs.replace(
        SMOLLM2, attention=(AttentionGroup(15, 3, 64, 64, window=1024), AttentionGroup(15, 3, 64, 64))
    )
    full = kv_bytes(SMOLLM2, 8192)
    assert kv_bytes(window, 8192) == full // 2 + full // 2 * (1024 + 512) // 8192


def test_without_room_for_the_default_context_it_shrinks_and_says_so() -> None:
    small = msgspec.structs.replace(CPU, memory_bytes=GIB)
    choice = ask(tier=small).choice
    assert choice is not None
    assert choice.context_length == 4096
    assert "context_shrunk" in [reason.code for reason in choice.reasons]


def test_a_context_that_was_asked_for_is_not_shrunk_but_a_change_is_offered() -> None:
    found = ask(tier=msgspec.structs.replace(CPU, memory_bytes=GIB), context_length=8192)
    assert [each.code for each in found.rejected] == ["memory_short"]
    assert {change.code for change in found.changes} >= {"shorter_context", "fewer_at_once"}


def test_more_bits_win_at_the_same_price_and_the_other_is_told_why() -> None:
    found = ask(files=[artefact("a", "Q4_1"), artefact("b", "Q8_0", 145_000_000)])
    assert found.choice is not None
    assert found.choice.quantization == "Q8_0"
    assert [(each.quantization, each.code) for each in found.rejected] == [("Q4_1", "lower_quality")]


def test_a_cheaper_machine_wins() -> None:
    cheap = msgspec.structs.replace(CPU, key="cheap", price_per_hour=Decimal("0.1"))
    dear = msgspec.structs.replace(CPU, key="dear", price_per_hour=Decimal("0.2"))
    found = plan(SMOLLM2, [artefact()], Needs(), [dear, cheap], replicas=3)
    assert found.choice is not None
    assert (found.choice.tier, found.choice.price_per_hour) == ("cheap", Decimal("0.3"))
    assert [each.code for each in found.rejected] == ["dearer"]


@pytest.mark.parametrize(
    ("code", "needs", "pins"),
    [
        ("context_too_long", {"context_length": 9000}, None),
        ("too_slow", {"tokens_per_second": 10_000.0}, None),
        ("first_token_late", {"ttft_ms": 1.0}, None),
        ("quality_too_low", {"quality": Quality.HIGH}, None),
        ("price_unknown", {"max_price_per_hour": Decimal(1)}, None),
        ("too_many_slots", {"concurrency": 300}, None),
        ("pinned", {}, Pins(engine="vllm")),
    ],
)
def test_each_need_has_its_own_reason_and_a_way_out(code: str, needs: dict[str, Any], pins: Pins | None) -> None:
    found = ask(pins=pins, **needs)
    assert [each.code for each in found.rejected] == [code]
    assert found.changes


def test_what_cannot_be_promised_is_not_planned() -> None:
    recurrent = msgspec.structs.replace(SMOLLM2, recurrent=True)
    assert [each.code for each in ask(recurrent).rejected] == ["memory_unknown"]
    gpu = msgspec.structs.replace(CPU, kind="gpu")
    assert [each.code for each in ask(tier=gpu).rejected] == ["hardware_unknown"]


def test_one_core_is_still_one_thread() -> None:
    choice = ask(tier=msgspec.structs.replace(CPU, cores=1)).choice
    assert choice is not None
    assert choice.threads == 1


def test_a_model_far_too_large_is_told_what_it_would_take() -> None:
    large = msgspec.structs.replace(SMOLLM2, parameters=70_000_000_000, active_parameters=70_000_000_000)
    found = ask(large, [artefact(size=40 * GIB)])
    assert [change.code for change in found.changes] == ["more_memory"]
    assert found.changes[0].params["needed"] > 40 * GIB
