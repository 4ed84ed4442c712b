"""What is learnt from deployments is shrunk, bounded, robust and can be undone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.planner.learning import Lesson, corrected, learn

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
