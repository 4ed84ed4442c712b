"""The autoscaler in a world of batches that tells it as little as a stranger would: `batched.py`."""

from __future__ import annotations

import msgspec
import pytest

from berth.deployments.autoscale import Capacity, Goals, Observation, Policy, State, autoscale
from berth.deployments.scaling.holding import calm_level
from berth.deployments.scaling.state import Hold
from tests.platform.deployments.batched import CAPACITY, Batched, arrivals

LEARNED = 900.0  # seconds


def spiky(seed: int = 2) -> list[float]:
    """Five times as much for 40 s, every seven minutes."""
    return arrivals(lambda at: 100.0 if at % 420.0 >= 380.0 else 20.0, 2_100.0, 100.0, seed)


def test_the_world_does_what_is_told_of_it() -> None:
    made = arrivals(lambda _: CAPACITY, 900.0, CAPACITY, 1)
    assert Batched(made, 1, fixed=True).run().share() >= 0.99


@pytest.mark.parametrize("off", [0.85, 1.0, 1.15])
def test_spikes_are_held_ready_for_whatever_capacity_is_told(off: float) -> None:
    found = Batched(spiky(), 2, off=off).run()
    assert found.share(LEARNED) >= 0.99
    assert found.reversals <= 1
    assert found.seconds / found.came[-1] <= 7.0  # replicas, where a spike needs five


@pytest.mark.parametrize("interval", [1.0, 2.0, 10.0, 30.0])
def test_spikes_at_any_pace(interval: float) -> None:
    found = Batched(spiky(5), 2, interval=interval).run()
    assert found.share(LEARNED) >= 0.99
    assert max(found.waits) < 75.0


@pytest.mark.parametrize("cold", [20.0, 180.0])
def test_spikes_with_any_cold_start(cold: float) -> None:
    assert Batched(spiky(), 2, cold=cold).run().share(LEARNED) >= 0.99


@pytest.mark.parametrize("interval", [1.0, 5.0, 15.0])
def test_one_replica_with_the_load_of_two_is_joined_by_what_works_off_the_backlog(interval: float) -> None:
    made = arrivals(lambda _: 40.0, 1_500.0, 40.0, 1)
    found = Batched(made, 1, interval=interval).run()
    assert found.share(60.0 + 45.0 + interval) >= 0.99
    assert found.reversals <= 1
    assert found.counts[-1] == 2


def test_a_rise_at_the_beginning_is_followed_before_it_is_too_much() -> None:
    """The second replica is asked for when one still does what comes."""
    made = arrivals(lambda at: min(40.0, 2.0 + 0.4 * at), 300.0, 40.0, 4)
    found = Batched(made, 1, interval=2.0).run()
    first = next(index for index, count in enumerate(found.counts) if count > 1) * 2.0
    assert 2.0 + 0.4 * first < CAPACITY
    assert Batched(arrivals(lambda _: 10.0, 300.0, 10.0, 4), 1, interval=2.0).run().counts[-1] == 1


def test_a_backlog_at_the_beginning_leaves_no_fleet_behind() -> None:
    """What worked it off goes as soon as it is gone, not after the first ten minutes."""
    made = arrivals(lambda at: 90.0 if at < 120.0 else 40.0, 600.0, 90.0, 3)
    found = Batched(made, 1).run()
    assert max(found.counts) >= 8
    assert found.counts[40] <= 6


def test_ten_times_as_much_from_one_moment_to_the_next() -> None:
    found = Batched(arrivals(lambda at: 15.0 if at < 600.0 else 150.0, 1_200.0, 150.0, 3), 1).run()
    assert found.share(600.0 + 60.0 + 20.0 + 5.0) >= 0.99
    assert max(found.waits) < 75.0
    assert found.seconds / 3_600.0 <= 1.7 * (600.0 + 8 * 660.0) / 3_600.0


def test_the_clock_may_begin_anywhere() -> None:
    assert Batched(spiky(), 2, begin=0.0).run().counts == Batched(spiky(), 2).run().counts


def test_a_first_call_without_replicas_asks_for_the_least() -> None:
    decision, _ = autoscale(Observation(now=0.0, arrivals=0, ready=0, policy=Policy(least=2)), State())
    assert decision.desired == 2


def test_a_state_that_is_lost_takes_nothing_away() -> None:
    found = Batched(spiky(), 2).run()
    seen = Observation(
        now=found.begin + 2_200.0,
        arrivals=len(found.came),
        ready=5,
        in_flight=3,
        policy=found.policy,
        capacity=found.capacity,
    )
    decision, state = autoscale(seen, State())
    assert decision.desired == 5
    later, _ = autoscale(
        Observation(
            now=seen.now + 120.0, arrivals=len(found.came) + 2_400, ready=5, policy=seen.policy, capacity=seen.capacity
        ),
        state,
    )
    assert later.desired == 5


@pytest.mark.parametrize("planned", [4.0, 8.0])
def test_a_backlog_that_was_there_at_the_first_call_is_not_gone_when_replicas_have_taken_it_in(planned: float) -> None:
    """Nobody has seen it come, so no rate tells of it."""
    capacity = Capacity(requests_per_second=1.25, concurrency=planned, prompt_tokens=5, completion_tokens=48)
    policy = Policy(least=1, most=2, stabilisation=60.0, goals=Goals(first_token_seconds=None), daily=False)

    def seen(at: float, ready: int, starting: int, in_flight: int, queued: int) -> Observation:
        return Observation(
            now=at, arrivals=16, ready=ready, starting=starting, in_flight=in_flight, queued=queued, ended=0,
            policy=policy, capacity=capacity, cold_start=3.0,
        )  # fmt: skip

    state = State()
    for observation in (seen(0.0, 0, 1, 0, 16), seen(2.0, 0, 2, 0, 16), seen(4.0, 2, 0, 16, 0), seen(6.0, 2, 0, 16, 0)):
        decision, state = autoscale(observation, state)
        assert decision.desired == 2


@pytest.mark.parametrize(("stabilisation", "minutes"), [(60.0, 12.0), (400.0, 75.0)])
def test_after_a_first_burst_a_fleet_is_kept_as_long_as_its_owner_has_patience(
    stabilisation: float, minutes: float
) -> None:
    made = arrivals(lambda at: 90.0 if 600.0 <= at < 660.0 else 20.0, 660.0 + 60.0 * minutes, 90.0, 6)
    world = Batched(made, 1)
    world.policy = msgspec.structs.replace(world.policy, stabilisation=stabilisation)
    found = world.run()
    per_minute = len(found.counts) / found.came[-1] * 60.0
    assert max(found.counts) >= 4
    assert found.counts[int((11.0 + 0.25 * minutes) * per_minute)] >= 4
    assert found.counts[-1] <= 2


def test_what_is_more_than_may_be_had_is_not_kept_up_by_that() -> None:
    """Ten replicas would be kept, two are allowed: no step up, so it is not prepared for again and again."""
    policy = Policy(least=1, most=2, stabilisation=60.0)
    capacity = Capacity(requests_per_second=10.0, concurrency=10.0)
    state = State(now=998.0, begun=0.0, desired=2, initial=1, holds=(Hold(1_001.0, 100.0),))
    for at in (1_000.0, 1_002.0):
        seen = Observation(now=at, arrivals=0, ready=2, in_flight=0, policy=policy, capacity=capacity, cold_start=5.0)
        _, state = autoscale(seen, state)
    assert calm_level(state) < 100.0
