"""Perplexity, divergence and agreement against what can be computed by hand, and their properties."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth_runtime.quality.floors import BROKEN, FLOORS, falls_short
from berth_runtime.quality.measure import Prediction, Quality, compare


def told(actual: int, *probabilities: float, vocabulary: int = 10) -> Prediction:
    return Prediction(actual, {n: math.log(p) for n, p in enumerate(probabilities)}, vocabulary)


weights = st.lists(st.floats(0.01, 1), min_size=2, max_size=6)


def normal(values: list[float], share: float) -> list[float]:
    total = sum(values)
    return [value / total * share for value in values]


def test_a_model_is_as_good_as_itself() -> None:
    same = [told(0, 0.5, 0.25), told(1, 0.1, 0.8)]
    quality = compare(same, same)
    assert quality.divergence == 0
    assert quality.agreement == 1
    assert quality.perplexity == pytest.approx(math.exp(-(math.log(0.5) + math.log(0.8)) / 2))


def test_the_divergence_is_the_one_of_the_textbook() -> None:
    quality = compare([told(0, 0.5, 0.5)], [told(0, 0.25, 0.75)])
    assert quality.divergence == pytest.approx(0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75), abs=1e-6)
    assert quality.agreement == 0


def test_a_token_that_was_not_named_gets_its_share_of_the_rest() -> None:
    prediction = told(7, 0.5, 0.3, vocabulary=12)
    assert prediction.probability(7) == pytest.approx(0.2 / 10)


@given(weights, weights, st.floats(0.5, 1), st.floats(0.5, 1))
def test_a_divergence_is_never_negative_and_zero_only_for_the_same(
    one: list[float], other: list[float], first: float, second: float
) -> None:
    quality = compare([told(0, *normal(one, first))], [told(0, *normal(other, second))])
    assert quality.divergence >= 0
    assert math.isfinite(quality.perplexity)


def test_different_tokens_are_not_compared() -> None:
    with pytest.raises(ValueError, match="different tokens"):
        compare([told(0, 0.5)], [told(1, 0.5)])
    with pytest.raises(ValueError, match="nothing"):
        compare([], [])


def test_the_floors_are_ordered_and_each_bound_counts() -> None:
    fine = Quality(100, 10.0, 10.0, 0.001, 0.01, 0.99)
    assert all(falls_short(fine, floor) is None for floor in (*FLOORS.values(), BROKEN))
    for worse in (
        Quality(100, 10.0, 10.0, 3.0, 5.0, 0.99),
        Quality(100, 100.0, 10.0, 0.001, 0.01, 0.99),
        Quality(100, 10.0, 10.0, 0.001, 0.01, 0.1),
    ):
        assert all(falls_short(worse, floor) for floor in (*FLOORS.values(), BROKEN))
    best, balanced, economy = (FLOORS[name] for name in ("best", "balanced", "economy"))
    assert best.divergence < balanced.divergence < economy.divergence < BROKEN.divergence
