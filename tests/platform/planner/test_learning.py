"""What is learnt from deployments is shrunk, bounded, robust and can be undone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.catalog.facts import ModelFacts
from berth.planner.learning import TPOT, TTFT, Factor, Lesson, corrected, learn
from berth.planner.needs import Needs
from berth.planner.plan import plan
from berth.planner.shapes import PlanArtefact
from berth.planner.tiers import Tier
from tests.platform.planner import worlds

KEY = ("vllm", "FP8", "h100", "tpot")


def lesson(deployment: str, measured: float, *, planned: float = 0.01, count: int = 500) -> Lesson:
    return Lesson(deployment, *KEY[:3], KEY[3], planned, measured, count)


lessons = st.lists(
    st.builds(lesson, st.sampled_from("abcdefgh"), st.floats(1e-5, 10), count=st.integers(1, 1000)), max_size=30
)


@given(told=lessons)
@settings(max_examples=100)
def test_no_factor_goes_beyond_its_bounds_and_order_does_not_matter(told: list[Lesson]) -> None:
    factors = learn(told)
    assert factors == learn(reversed(told))
    for factor in factors.values():
        assert 1 / 1.5 - 1e-9 <= factor.value <= 1.5 + 1e-9
        assert abs(factor.value - 1) <= abs(factor.raw - 1) + 1e-9


def test_one_deployment_moves_a_prediction_a_little_and_many_move_it_nearly_whole() -> None:
    one = learn([lesson("a", 0.012)])[KEY]
    many = learn([lesson(str(number), 0.012) for number in range(30)])[KEY]
    assert 1.03 < one.value < 1.06
    assert 1.17 < many.value < 1.2
    assert one.raw == many.raw == pytest.approx(1.2)


def test_odd_runs_and_few_requests_do_not_count_and_are_visible() -> None:
    told = [lesson(str(number), 0.011) for number in range(9)]
    assert learn([*told, lesson("odd", 1.0)])[KEY].value == learn(told)[KEY].value
    assert learn([*told, lesson("odd", 1.0)])[KEY].left_out == 1
    assert learn([lesson("a", 0.012, count=3)]) == {}


def test_leaving_measurements_out_undoes_what_they_taught() -> None:
    told = [lesson("a", 0.012)]
    assert corrected(0.01, learn(told), *KEY) > 0.01
    assert corrected(0.01, learn([]), *KEY) == 0.01


HERE = ("llamacpp", "Q4_1", "cpu-local")


def here(deployment: str, off: float, *, metric: str = TPOT, count: int = 170) -> Lesson:
    return Lesson(deployment, *HERE, metric, 0.01, 0.01 * off, count)


@given(model=worlds.models, artefacts=worlds.artefacts, needs=worlds.needs, tiers=worlds.tiers)
@settings(max_examples=60, deadline=None)
def test_what_teaches_nothing_about_a_plan_does_not_change_it(
    model: ModelFacts, artefacts: list[PlanArtefact], needs: Needs, tiers: list[Tier]
) -> None:
    elsewhere = learn([lesson(str(number), 0.013) for number in range(9)])
    few = learn([here("a", 1.4, count=19)])
    found = plan(model, artefacts, needs, tiers)
    assert plan(model, artefacts, needs, tiers, factors=elsewhere) == found
    assert plan(model, artefacts, needs, tiers, factors=few) == found


@given(off=st.floats(0.01, 100), deployments=st.integers(1, 60), count=st.integers(20, 10_000))
@settings(max_examples=60, deadline=None)
def test_a_corrected_prediction_stays_within_one_and_a_half_of_the_planner_s_own(
    off: float, deployments: int, count: int
) -> None:
    told = [here(str(number), off, count=count) for number in range(deployments)]
    told += [here(str(number), off, metric=TTFT, count=count) for number in range(deployments)]
    plain = plan(worlds.SMOLLM2, [worlds.artefact()], Needs(), [worlds.CPU]).choice
    taught = plan(worlds.SMOLLM2, [worlds.artefact()], Needs(), [worlds.CPU], factors=learn(told)).choice
    assert plain and taught and plain.predicted.tokens_per_second and taught.predicted.tokens_per_second
    assert plain.predicted.ttft_ms and taught.predicted.ttft_ms
    speed = taught.predicted.tokens_per_second.value / plain.predicted.tokens_per_second.value
    first = taught.predicted.ttft_ms.value / plain.predicted.ttft_ms.value
    assert 1 / 1.51 < speed < 1.51 and 1 / 1.51 < first < 1.51
    assert (speed - 1) * (off - 1) <= 1e-3 and (first - 1) * (off - 1) >= -1e-3


def test_a_corrected_plan_says_so_with_its_numbers_and_no_names() -> None:
    factors = {(*HERE, TPOT): Factor(1 / 0.83, 1.3, 2, 0, 340)}
    choice = plan(worlds.SMOLLM2, [worlds.artefact()], Needs(), [worlds.CPU], factors=factors).choice
    assert choice is not None
    (told,) = [each for each in choice.reasons if each.code == "speed_corrected"]
    assert told.message == "The speed is corrected by measurement: ×0.83 from 2 deployments, n=340."
    assert told.params == {"factor": 0.83, "deployments": 2, "count": 340}
    assert choice.predicted.tokens_per_second and choice.predicted.tokens_per_second.basis == "corrected"


def test_a_need_is_held_against_the_corrected_speed() -> None:
    plain = plan(worlds.SMOLLM2, [worlds.artefact()], Needs(context_length=8192), [worlds.CPU]).choice
    assert plain and plain.predicted.tokens_per_second
    asked = Needs(context_length=8192, tokens_per_second=plain.predicted.tokens_per_second.value)
    slow = {(*HERE, TPOT): Factor(1.2, 1.3, 2, 0, 340)}
    refused = plan(worlds.SMOLLM2, [worlds.artefact()], asked, [worlds.CPU], factors=slow)
    assert [each.code for each in refused.rejected] == ["too_slow"]
    assert "less_speed" in [each.code for each in refused.changes]
