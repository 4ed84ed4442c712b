"""An engine that hangs is noticed; one that has nothing to do, or is just slow, is left alone."""

from __future__ import annotations

import pytest

from berth_runtime.pulse import Pulse
from berth_runtime.spec import EngineMetrics


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_no_answer_for_too_long_is_a_hang(clock: Clock) -> None:
    pulse = Pulse(10, clock)
    clock.now += 9
    assert pulse.missing() is None
    pulse.felt(EngineMetrics())
    clock.now += 9
    assert pulse.missing() is None
    clock.now += 2
    assert pulse.missing() == "it has not answered"


def test_work_without_progress_is_a_hang(clock: Clock) -> None:
    pulse = Pulse(10, clock)
    for _ in range(4):
        clock.now += 4
        pulse.felt(EngineMetrics(running=1, steps=5))
    assert pulse.missing() == "it has requests and computes nothing"


@pytest.mark.parametrize("idle", [EngineMetrics(running=0, steps=5), EngineMetrics(steps=5), EngineMetrics(running=1)])
def test_idle_or_silent_about_its_work_is_none(clock: Clock, idle: EngineMetrics) -> None:
    pulse = Pulse(10, clock)
    for _ in range(9):
        clock.now += 4
        pulse.felt(idle)
    assert pulse.missing() is None


@pytest.mark.parametrize("name", ["steps", "prompt_tokens", "completion_tokens"])
def test_any_counter_that_moves_is_progress(clock: Clock, name: str) -> None:
    pulse = Pulse(10, clock)
    for number in range(9):
        clock.now += 4
        pulse.felt(EngineMetrics(running=1, **{name: number}))
    assert pulse.missing() is None


def test_a_new_engine_begins_anew(clock: Clock) -> None:
    pulse = Pulse(10, clock)
    clock.now += 100
    pulse.begin()
    assert pulse.missing() is None


def test_it_can_be_switched_off(clock: Clock) -> None:
    pulse = Pulse(0, clock)
    clock.now += 1e6
    assert pulse.missing() is None
