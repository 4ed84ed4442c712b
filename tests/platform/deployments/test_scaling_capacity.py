"""What a replica can carry, from its plan: Erlang's formula, monotone in everything, corrected by what was measured."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.deployments.scaling.state import Mix
from berth.deployments.scaling_capacity import (
    SHARE,
    Pace,
    Speed,
    Typical,
    capacity_of,
    erlang,
    planned_speed,
    typical_of,
)

PLAN = {"choice": {"predicted": {"tokens_per_second": {"value": 30.0}, "ttft_ms": {"value": 400.0}}}}


def test_erlang_agrees_with_known_values() -> None:
    assert erlang(1, 0.5) == pytest.approx(0.5), "one server is busy as often as it is loaded"
    assert erlang(2, 1.0) == pytest.approx(1 / 3)
    assert erlang(10, 8.0) == pytest.approx(0.409, abs=1e-3)
    assert erlang(4, 4.0) == 1.0


def waited(servers: int, rate: float, stay: float, patience: float, requests: int = 60_000) -> float:
    """The share that waits longer, by playing it."""
    chance = random.Random(5)
    free, now, late = [0.0] * servers, 0.0, 0
    for _ in range(requests):
        now += chance.expovariate(rate)
        index = min(range(servers), key=free.__getitem__)
        begun = max(now, free[index])
        late += begun - now > patience
        free[index] = begun + chance.expovariate(1.0 / stay)
    return late / requests


def test_at_the_rate_it_names_as_many_wait_as_may() -> None:
    found = capacity_of(8, Speed(first=0.1, tokens=40.0), Typical(512, 128), goal=1.0, share=0.95)
    assert found.requests_per_second is not None
    busy = 0.1 + 127 / 40.0 / 8
    assert waited(8, found.requests_per_second, 8 * busy, 0.9) == pytest.approx(0.05, abs=0.012)
    assert found.concurrency == 8.0, "eight prompts that come at once are all answered in time"
    assert (found.pooled_requests_per_second or 0) > found.requests_per_second


@settings(max_examples=60, deadline=None)
@given(
    slots=st.integers(1, 256),
    first=st.floats(0.001, 20),
    tokens=st.floats(0.5, 500),
    prompt=st.floats(1, 1e5),
    reply=st.floats(1, 1e4),
    goal=st.one_of(st.none(), st.floats(0.05, 60)),
    share=st.floats(0.5, 0.999),
)
def test_stricter_goals_longer_requests_and_slower_replicas_never_carry_more(
    slots: int, first: float, tokens: float, prompt: float, reply: float, goal: float | None, share: float
) -> None:
    speed, usual = Speed(first, tokens), Typical(prompt, reply)
    here = capacity_of(slots, speed, usual, goal=goal, share=share)
    rate = here.requests_per_second or 0
    assert 0 < rate < 1e6
    assert 1.0 <= (here.concurrency or 0) <= max(1.0, slots)

    def lower(other: float | None) -> bool:
        return (other or 0) <= rate * (1 + 1e-9)

    assert lower(capacity_of(slots, speed, Typical(prompt, reply * 1.5), goal=goal, share=share).requests_per_second)
    assert lower(capacity_of(slots, Speed(first, tokens / 1.5), usual, goal=goal, share=share).requests_per_second)
    if goal is not None:
        assert lower(capacity_of(slots, speed, usual, goal=goal, share=share + 0.5 * (1 - share)).requests_per_second)
        assert lower(capacity_of(slots, speed, usual, goal=goal / 1.5, share=share).requests_per_second)


def test_no_more_prompts_at_once_than_have_their_first_token_in_time() -> None:
    found = capacity_of(64, Speed(first=1.0, tokens=10.0), Typical(512, 64), goal=4.0, share=0.95)
    assert found.concurrency is not None
    assert 4.0 <= found.concurrency < 64


def test_without_a_goal_three_quarters_of_the_places_and_without_a_plan_only_them() -> None:
    found = capacity_of(4, Speed(0.4, 30.0), Typical())
    assert found.concurrency == 4.0
    assert found.requests_per_second == pytest.approx(SHARE / (0.4 + 255 / 30 / 4))
    unknown = capacity_of(4, None, Typical())
    assert (unknown.requests_per_second, unknown.concurrency) == (None, 3.0)


def test_a_plan_is_corrected_by_what_was_measured_within_bounds() -> None:
    assert planned_speed(PLAN, {}) == Speed(0.4, 30.0)
    assert planned_speed(PLAN, {"tokens_per_second": (20.0, 40.0)}) == Speed(0.4, 15.0)
    assert planned_speed(PLAN, {"ttft_ms": (90.0, 10.0)}) == Speed(0.4, 30.0), "short prompts say nothing of the speed"
    assert planned_speed(PLAN, {"ttft_ms": (1.0, 1e6)}) == Speed(pytest.approx(0.4 / 3), 30.0)  # type: ignore[arg-type]
    assert planned_speed({"choice": None}, {}) is None
    assert planned_speed({"choice": {"predicted": {"tokens_per_second": None}}}, {}) is None


def test_few_requests_say_little_of_what_requests_are_like() -> None:
    assert typical_of(Mix()) == Typical()
    few, many = typical_of(Mix(2, 20, 20)), typical_of(Mix(2000, 20_000, 20_000))
    assert few.prompt > 300
    assert many.prompt == pytest.approx(10, rel=0.6)
    assert typical_of(Mix(5, 0, 0)).reply >= 1.0


def test_never_less_is_believed_than_replicas_are_seen_to_do() -> None:
    """One client, whose answers take 0.2 s, by a plan that says 2 s: a replica does five of them a second."""
    pace = Pace()
    for _ in range(60):
        pace = pace.with_answers(1, 0.2, 2.0)
    seen = pace.busy(beside=0.1)
    assert seen == pytest.approx(0.2)
    slow = Speed(first=1.0, tokens=10.0)
    found = capacity_of(4, slow, Typical(512, 41), busy_at_most=seen)
    assert found.requests_per_second == pytest.approx(SHARE / 0.2)
    assert pace.busy(beside=4.0) == pytest.approx(0.05), "four at once that take as long each"
    fast = Speed(first=0.01, tokens=1000.0)
    without = capacity_of(4, fast, Typical(512, 41))
    assert capacity_of(4, fast, Typical(512, 41), busy_at_most=seen) == without, "the plan may know of more"
    assert Pace().with_answers(2, 0.1, 2.0).busy(1.0) is None
