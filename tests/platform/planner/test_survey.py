"""Promises of the survey for any demand: it fits, it divides, it is supported."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.planner.capability import capabilities, dividing, unsupported
from berth.planner.catalogue import known_models, model_by_name
from berth.planner.demand import Demand, flow
from berth.planner.market import stations
from berth.planner.remedies import pin_costs, remedies
from berth.planner.report import as_plain, lines
from berth.planner.survey import Fixed, Survey, survey

quick = settings(max_examples=8, deadline=None)
SMALL = tuple(
    each for each in stations() if each.key in ("cpu-48", "t4", "l4", "a10g", "rtx-4090", "h100", "mi300x", "b200")
)
MODELS = (
    "llama-3.1-8b", "llama-2-7b", "qwen2.5-0.5b", "qwen2.5-72b", "mixtral-8x7b", "gemma-3-27b", "deepseek-v3", "gpt-oss-120b", "phi-2",
    "falcon-7b", "qwen3-next-80b-a3b",
)  # fmt: skip

models = st.sampled_from(MODELS)
demands = st.builds(
    Demand,
    users=st.integers(1, 3_000),
    think_seconds=st.floats(0, 120),
    prompt_tokens=st.integers(1, 6_000),
    reply_tokens=st.integers(1, 1_500),
    ttft_ms=st.none() | st.floats(50, 5_000),
    tokens_per_second=st.none() | st.floats(1, 150),
    quality=st.sampled_from(["best", "balanced", "economy"]),
)


def planned(name: str, demand: Demand, **more: Any) -> Survey:
    model = model_by_name(name)
    assert model is not None
    return survey(model, demand, market=SMALL, **more)


@given(name=models, demand=demands)
@quick
def test_whatever_fits_fits_divides_and_is_supported(name: str, demand: Demand) -> None:
    found = planned(name, demand)
    for one in found.fits:
        place, gpu = one.place, one.option.station.gpu
        assert (
            one.memory.weights + one.memory.cache + one.memory.overhead
            <= one.memory.usable
            <= gpu.usable
            < gpu.memory * 1.1
        )
        assert dividing(place.model, place.tensor_parallel) is None
        assert place.devices == one.option.devices
        assert one.option.devices in one.option.station.counts
        assert (
            unsupported(capabilities()[one.option.engine], one.option.scheme, gpu, place.model, place.kv_bits) is None
        )
        assert demand.context(place.model.context_length) <= place.model.context_length
        assert one.loss <= demand.loss + 1e-9
        if demand.tokens_per_second is not None:
            assert 1 / (one.speed.tpot * (1 + one.speed_margin)) >= demand.tokens_per_second * 0.999
        if demand.ttft_ms is not None:
            assert 1e3 * one.speed.first * (1 + one.first_margin) <= demand.ttft_ms * 1.001


@given(name=models, demand=demands)
@quick
def test_every_option_is_chosen_or_turned_down_with_a_reason(name: str, demand: Demand) -> None:
    found = planned(name, demand)
    everything = {each.option for each in found.turned} | ({found.chosen.option} if found.chosen else set())
    assert len(everything) == len(found.turned) + (found.chosen is not None)
    assert all(each.why.code and each.why.message.endswith(".") for each in found.turned)
    for engine, capability in capabilities().items():
        for station in SMALL:
            assert any(option.engine == engine and option.station is station for option in everything), (
                engine,
                capability,
            )


@given(name=models, demand=demands)
@quick
def test_the_same_question_has_the_same_answer(name: str, demand: Demand) -> None:
    model = model_by_name(name)
    assert model is not None
    once, again = survey(model, demand, market=SMALL), survey(model, demand, market=tuple(reversed(SMALL)))
    assert [one.option.label for one in once.fits] == [one.option.label for one in again.fits]
    assert (once.chosen and once.chosen.per_hour) == (again.chosen and again.chosen.per_hour)


@given(
    name=models,
    demand=demands,
    ceiling=st.decimals(Decimal("0.1"), Decimal(20), places=2),
    more=st.decimals(0, 40, places=2),
)
@quick
def test_a_higher_ceiling_never_makes_a_plan_dearer(name: str, demand: Demand, ceiling: Decimal, more: Decimal) -> None:
    low = planned(name, msgspec.structs.replace(demand, most_per_hour=ceiling)).chosen
    high = planned(name, msgspec.structs.replace(demand, most_per_hour=ceiling + more)).chosen
    if low is None:
        return
    assert high is not None
    assert low.per_hour is not None
    assert high.per_hour is not None
    assert high.per_hour <= low.per_hour <= ceiling


@given(
    name=models,
    demand=demands,
    engine=st.sampled_from(["vllm", "llamacpp"]),
    tier=st.sampled_from([each.key for each in SMALL]),
)
@quick
def test_pins_are_kept_and_never_make_what_does_not_fit_fit(name: str, demand: Demand, engine: str, tier: str) -> None:
    free, pinned = planned(name, demand), planned(name, demand, fixed=Fixed(engine=engine, tier=tier))
    if pinned.chosen is None:
        return
    assert (pinned.chosen.option.engine, pinned.chosen.option.station.key) == (engine, tier)
    assert free.chosen is not None
    assert free.chosen.per_hour is not None
    assert pinned.chosen.per_hour is not None
    assert pinned.chosen.per_hour >= free.chosen.per_hour


FIELD = Demand(
    users=200, think_seconds=40, prompt_tokens=200, reply_tokens=80, ttft_ms=180, tokens_per_second=45, reply_seconds=2,
    most_per_interaction=Decimal("0.001"), context_length=4096,
)  # fmt: skip
ELSEWHERE = ("pinned", "tier_not_allowed")
A10G_CLASS = ("a10g", "l4", "rtx-3090", "rtx-4090")


def at_four_bits(name: str, demand: Demand, **fields: Any) -> Survey:
    model = model_by_name(name)
    assert model is not None
    return survey(model, msgspec.structs.replace(demand, **fields), fixed=Fixed(scheme="Q4_K_M"))


def test_the_example_of_the_field_holds_for_people_who_think() -> None:
    found = at_four_bits("mistral-7b", FIELD).chosen
    assert found is not None
    assert found.option.station.key in A10G_CLASS
    assert (found.replicas, found.option.devices) == (1, 1)
    assert found.per_interaction is not None
    assert found.per_interaction < Decimal("0.001")
    assert 3 < found.flow.in_flight < 20
    on_it = at_four_bits("mistral-7b", FIELD, tiers=("a10g",)).chosen
    assert on_it is not None
    assert on_it.per_interaction is not None
    assert on_it.per_interaction * 10 < Decimal("0.001")  # and still at a tenth of the load


def test_two_hundred_streams_at_once_are_another_question_with_another_answer() -> None:
    people = at_four_bits("mistral-7b", FIELD, tiers=("a10g",)).chosen
    streams = at_four_bits("mistral-7b", FIELD, tiers=("a10g",), users=None, streams=200)
    assert people is not None
    assert streams.chosen is not None
    assert streams.chosen.replicas >= 10 * people.replicas
    alone = at_four_bits("mistral-7b", FIELD, tiers=("a10g",), users=None, streams=200, most_replicas=1)
    assert alone.chosen is None or alone.chosen.option.devices > 1
    why = next(
        each.why
        for each in alone.turned
        if each.option.devices == 1 and each.option.engine == "llamacpp" and each.why.code not in ELSEWHERE
    )
    assert why.code in ("too_many_at_once", "cache_short")
    assert why.params["in_flight"] == pytest.approx(200)


def test_full_multi_head_attention_is_told_why_it_has_no_room() -> None:
    """A Llama-2-7B keeps four times the cache of a grouped-query model of its size."""
    slow = {
        "tokens_per_second": 15.0,
        "ttft_ms": 1_000.0,
        "reply_seconds": None,
        "think_seconds": 20.0,
        "tiers": ("a10g",),
        "most_replicas": 1,
    }
    grouped = at_four_bits("mistral-7b", FIELD, **slow)
    full = at_four_bits("llama-2-7b", FIELD, **slow)
    assert any(one.option.engine == "llamacpp" and one.option.devices == 1 for one in grouped.fits)
    why = next(
        each.why
        for each in full.turned
        if each.option.engine == "llamacpp" and each.option.devices == 1 and each.why.code not in ELSEWHERE
    )
    assert why.code == "cache_short"
    assert "full multi-head attention, 32 KV heads" in why.message
    assert why.params["each"] == 2 << 30


def test_littles_law_is_what_turns_people_into_requests() -> None:
    assert flow(Demand(users=200, think_seconds=38.2), 1.8).rate == pytest.approx(5.0)
    assert flow(Demand(users=200, think_seconds=38.2), 1.8).in_flight == pytest.approx(9.0)
    assert flow(Demand(requests_per_second=5.0), 1.8).in_flight == pytest.approx(9.0)
    assert flow(Demand(streams=9), 1.8).rate == pytest.approx(5.0)


def test_when_nothing_fits_single_changes_that_were_tried_are_named() -> None:
    demand = Demand(users=5, ttft_ms=1.0, tiers=("t4",))
    model = model_by_name("llama-3.1-8b")
    assert model is not None
    found = survey(model, demand)
    assert found.chosen is None
    helps = remedies(found)
    assert {"later_first_token"} <= {one.change.code for one in helps}
    for one in helps:
        assert one.plan.option.label in one.change.message
    later = next(one for one in helps if one.change.code == "later_first_token")
    assert (
        survey(model, msgspec.structs.replace(demand, ttft_ms=float(later.change.params["value"]) + 1)).chosen
        is not None
    )


def test_what_was_measured_of_this_very_model_goes_before_what_others_lost() -> None:
    model = model_by_name("mistral-7b")
    assert model is not None
    fixed, best = Fixed(scheme="Q4_K_M"), Demand(users=2, quality="best")
    assert survey(model, best, fixed=fixed).chosen is None
    found = survey(model, best, fixed=fixed, losses={"Q4_K_M": 0.004}).chosen
    assert found is not None
    assert found.loss == 0.004


def test_a_region_leaves_out_what_is_not_known_to_be_there() -> None:
    model = model_by_name("mistral-7b")
    assert model is not None
    found = survey(model, Demand(users=2, regions=("us-east",)))
    assert found.chosen is not None
    assert "us-east" in found.chosen.option.station.regions
    assert any("no region that is known" in each.why.message for each in found.turned)


def test_a_pin_says_what_it_costs_against_the_free_plan() -> None:
    model = model_by_name("mistral-7b")
    assert model is not None
    found = survey(model, FIELD, fixed=Fixed(tier="a10g"))
    (cost,) = pin_costs(found)
    free = survey(model, FIELD).chosen
    assert found.chosen is not None
    assert free is not None
    assert cost.per_hour == (found.chosen.per_hour or 0) - (free.per_hour or 0)


def test_eight_bit_floats_are_never_planned_before_their_hardware() -> None:
    found = planned("llama-3.1-8b", Demand(users=10))
    old = [
        each
        for each in found.turned
        if each.option.scheme == "FP8" and each.option.station.key == "a10g" and each.option.engine == "vllm"
    ]
    assert old
    assert all(each.why.code in ("capability_too_low", "far_dearer") for each in old)
    assert any("8.6 < 8.9" in each.why.message for each in old)


@pytest.mark.parametrize("name", known_models())
def test_every_known_model_gets_an_answer_and_a_report(name: str) -> None:
    model = model_by_name(name)
    assert model is not None
    found = survey(model, Demand(users=20, prompt_tokens=128, reply_tokens=64), market=SMALL)
    assert found.chosen is not None or found.turned
    if name in MODELS:
        plain = as_plain(found, turned=3)
        assert plain["fits"] == (found.chosen is not None)
        assert len(lines(found)) > 5
