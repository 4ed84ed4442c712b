"""The autoscaler as a function: bounds, monotony, determinism, no exception on anything; and what it does with load that people know."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.deployments.autoscale import (
    Capacity,
    Decision,
    Goals,
    Observation,
    Peak,
    Policy,
    State,
    autoscale,
)

CAPACITY = Capacity(requests_per_second=10.0, concurrency=50.0, pooled_requests_per_second=11.0)
POLICY = Policy(most=100)


class Service:
    """Replicas that are ready a cold start after they were asked for, and arrivals at rates that the test sets. No queueing."""

    def __init__(self, ready: int, policy: Policy = POLICY, capacity: Capacity = CAPACITY, cold: float = 60.0) -> None:
        self.now, self.arrivals, self.ready = 1_000_000.0, 0.0, ready
        self.starts: list[float] = []
        self.policy, self.capacity, self.cold = policy, capacity, cold
        self.state = State()
        self.told: list[tuple[float, Decision]] = []
        self.queued = 0.0

    def observation(self, rate: float) -> Observation:
        return Observation(
            now=self.now,
            arrivals=self.arrivals,
            ready=self.ready,
            starting=len(self.starts),
            in_flight=3.0 * rate * (self.ready > 0),
            queued=self.queued,
            policy=self.policy,
            capacity=self.capacity,
            cold_start=self.cold,
        )

    def run(self, seconds: float, rate: float, interval: float = 2.0) -> Decision:
        """Looks every `interval` seconds while `rate` requests a second arrive evenly."""
        end, decision = self.now + seconds, None
        while self.now < end or decision is None:
            self.now += interval
            self.arrivals += rate * interval
            self.ready += sum(at <= self.now for at in self.starts)
            self.starts = [at for at in self.starts if at > self.now]
            self.queued = self.queued + rate * interval if not self.ready else 0.0
            decision, self.state = autoscale(self.observation(rate), self.state)
            self.told.append((self.now, decision))
            self.follow(decision.desired)
        return decision

    def follow(self, desired: int) -> None:
        while self.ready + len(self.starts) < desired:
            self.starts.append(self.now + self.cold)
        while self.ready + len(self.starts) > desired and self.starts:
            self.starts.pop()
        self.ready = min(self.ready, max(0, desired - len(self.starts)))

    @property
    def counts(self) -> list[int]:
        return [decision.desired for _, decision in self.told]


# --- properties

numbers = st.floats(0, 1e6, allow_nan=False)
maybe = st.none() | numbers
policies = st.builds(
    Policy,
    least=st.integers(0, 5),
    most=st.integers(1, 40),
    sleep_after=st.none() | st.floats(0, 600),
    head_room=st.none() | st.floats(1, 3),
    goals=st.builds(Goals, first_token_seconds=st.none() | st.floats(0.1, 5), share=st.floats(0.5, 1.0)),
    peaks=st.lists(
        st.builds(
            Peak,
            start=numbers,
            end=numbers,
            every=st.none() | st.floats(1, 1e5),
            replicas=st.none() | st.integers(0, 60),
        ),
        max_size=2,
    ).map(tuple),
)
capacities = st.builds(
    Capacity,
    requests_per_second=st.none() | st.floats(0.01, 1e3),
    concurrency=st.none() | st.floats(0.5, 500),
    pooled_requests_per_second=st.none() | st.floats(0.01, 1e3),
    prompt_tokens=st.none() | st.floats(1, 1e4),
)
observations = st.builds(
    Observation,
    now=numbers, arrivals=numbers, ready=st.integers(0, 50), starting=st.integers(0, 50), in_flight=numbers, queued=numbers,
    policy=policies, capacity=capacities, cold_start=st.floats(0, 2_000), window=st.none() | st.floats(0, 100), answers=maybe,
    first_token_seconds=maybe, late=maybe, queue_seconds=maybe, ended=maybe, prompt_tokens=maybe, completion_tokens=maybe,
    decode_seconds=maybe, decode_tokens=maybe, engine_queue=maybe, cache_use=st.none() | st.floats(0, 2),
)  # fmt: skip


@given(st.lists(observations, min_size=1, max_size=8))
@settings(max_examples=60, deadline=None)
def test_any_observations_in_any_order_give_counts_within_bounds_and_the_same_ones_again(
    seen: list[Observation],
) -> None:
    state = again = State()
    for each in seen:
        decision, state = autoscale(each, state)
        repeated, again = autoscale(each, again)
        assert (decision, state) == (repeated, again)
        low, high = each.policy.least, max(each.policy.least, each.policy.most)
        assert low <= decision.desired <= high
        assert decision.concurrency is None or decision.concurrency >= 1
        assert decision.reasons
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=State) == state


@given(
    st.lists(st.tuples(st.floats(1, 15), st.floats(0, 60)), min_size=3, max_size=25),
    st.floats(0, 500),
    st.floats(0, 300),
    st.floats(0, 300),
)
@settings(max_examples=40, deadline=None)
def test_more_load_never_asks_for_fewer(
    past: list[tuple[float, float]], arrivals: float, flying: float, queued: float
) -> None:
    service = Service(2)
    for interval, rate in past:
        service.run(interval, rate, interval)
    service.now += 5.0
    calm = service.observation(10.0)
    calm = msgspec.structs.replace(calm, in_flight=20.0)
    busy = msgspec.structs.replace(
        calm, arrivals=calm.arrivals + arrivals, in_flight=calm.in_flight + flying, queued=calm.queued + queued
    )
    assert autoscale(calm, service.state)[0].desired <= autoscale(busy, service.state)[0].desired


@given(st.floats(0.2, 300), st.sampled_from([2.0, 5.0, 15.0]), st.integers(1, 20))
@settings(max_examples=8, deadline=None)
def test_constant_load_never_oscillates(rate: float, interval: float, initial: int) -> None:
    service = Service(initial)
    service.run(2_000, rate, interval)
    changes = [
        after - before for before, after in zip(service.counts, service.counts[1:], strict=False) if after != before
    ]
    turns = sum((one > 0) != (other > 0) for one, other in pairwise(changes))
    assert turns <= 1, "up to work off what waited at first, and then down to what the load needs"
    assert len(set(service.counts[-50:])) == 1


def test_more_constant_load_ends_with_no_fewer_replicas() -> None:
    ends = []
    for rate in (0.5, 8, 9.5, 11, 19, 33, 110, 240):
        service = Service(1)
        ends.append(service.run(1_200, rate, 5.0).desired)
    assert ends == sorted(ends)
    assert ends[0] == 1
    assert ends[-1] >= 240 / 11.0


# --- what people know


def test_nothing_is_taken_away_before_something_is_known() -> None:
    service = Service(5)
    service.run(60, 1.0)
    assert set(service.counts) == {5}


def test_a_step_is_met_within_seconds_and_kept_for_minutes() -> None:
    service = Service(1)
    service.run(600, 6.0)
    assert service.counts[-1] == 1
    service.run(8, 60.0)
    assert 6 <= service.counts[-1] <= 5 * 6, "on the way at once, and what works off the backlog"
    service.run(400, 60.0)
    at_peak = service.counts[-1]
    assert 6 <= at_peak <= 8
    service.run(200, 6.0)
    assert service.counts[-1] >= at_peak - 1 >= 6, "a lull is no reason to go down"
    service.run(4_200, 6.0)
    assert service.counts[-1] == 1


def test_it_sleeps_only_when_it_may_and_wakes_with_what_the_load_needs() -> None:
    policy = Policy(least=0, most=50, sleep_after=300.0)
    service = Service(4, policy)
    service.run(600, 40.0)
    service.run(250, 0.0)
    assert service.counts[-1] >= 1
    service.run(1_000, 0.0)
    assert (service.counts[-1], service.told[-1][1].reasons[0].code) == (0, "asleep")
    service.run(10, 40.0)
    assert service.counts[-1] >= 4, "not one"
    assert Service(0, policy).run(20, 0.0).desired == 0


def test_the_clock_for_sleep_starts_when_a_replica_is_ready() -> None:
    service = Service(0, Policy(least=0, most=5, sleep_after=100.0), cold=400.0)
    service.run(2, 1.0)
    service.run(390, 0.0)
    assert service.counts[-1] >= 1, "a long start does not count as idle"
    service.run(60, 0.0)
    assert service.counts[-1] >= 1
    service.run(200, 0.0)
    assert service.counts[-1] == 0


def test_a_declared_peak_is_there_in_time_and_goes_again() -> None:
    service = Service(1)
    start = service.now + 1_000.0
    service.policy = Policy(
        most=9, peaks=(Peak(start, start + 500.0, replicas=6), Peak(start, start + 500.0, requests_per_second=20.0))
    )
    service.run(900, 1.0)
    assert service.counts[-1] == 1
    service.run(50, 1.0)
    assert service.counts[-1] == 6
    service.run(50, 1.0)
    assert service.ready == 6, "ready when it starts"
    service.run(1_200, 1.0)
    assert service.counts[-1] == 1


def test_coarse_and_irregular_calls_see_the_same_load() -> None:
    ends = {}
    for interval in (2.0, 7.0, 15.0):
        service = Service(3)
        ends[interval] = service.run(1_500, 30.0, interval).desired
    assert len(set(ends.values())) == 1, ends


def test_windows_and_counters_tell_the_same() -> None:
    one, other = State(), State()
    for index in range(200):
        now, total = 1_000.0 + 5.0 * index, 150.0 * index
        seen = Observation(now=now, arrivals=total, ready=3, in_flight=60.0, policy=POLICY, capacity=CAPACITY)
        decided, one = autoscale(seen, one)
        windowed = msgspec.structs.replace(seen, arrivals=150.0, window=5.0)
        also, other = autoscale(windowed, other)
    assert 3 <= decided.desired == also.desired <= 4


def test_a_counter_that_begins_anew_is_no_rush() -> None:
    service = Service(3)
    service.run(600, 25.0)
    before = service.counts[-1]
    service.arrivals = 0.0
    service.run(60, 25.0)
    assert service.counts[-1] == before


def test_without_any_capacity_it_learns_from_what_is_answered() -> None:
    service = Service(1, capacity=Capacity())
    first = service.run(10, 3.0)
    assert (first.desired, first.capacity) == (1, None)
    later = service.run(120, 3.0)
    assert later.desired == 1
    assert later.capacity == pytest.approx(3.6), "what was done, and a little more is tried"


def test_longer_requests_count_for_more() -> None:
    capacity = msgspec.structs.replace(CAPACITY, prompt_tokens=1_000.0, completion_tokens=200.0)
    ends = []
    for size in (1.0, 2.5):
        state, desired = State(), 0
        for index in range(400):
            ended = 50.0 * index
            seen = Observation(
                now=2.0 * index, arrivals=ended, ready=max(3, desired), policy=POLICY, capacity=capacity, ended=ended,
                prompt_tokens=ended * 1_000.0 * size, completion_tokens=ended * 200.0 * size,
            )  # fmt: skip
            decision, state = autoscale(seen, state)
            desired = decision.desired
        ends.append(desired)
    assert ends[1] >= 2 * ends[0]


@pytest.mark.parametrize("late", [0.0, 0.1])
def test_capacity_is_corrected_by_what_is_measured(late: float) -> None:
    state, decision = State(), None
    for index in range(600):
        came = 18.0 * 2 * index
        seen = Observation(
            now=2.0 * index, arrivals=came, ready=2, in_flight=60.0, policy=POLICY, capacity=CAPACITY, answers=came,
            first_token_seconds=0.2 * came, late=late * came,
        )  # fmt: skip
        decision, state = autoscale(seen, state)
    assert decision is not None
    if late:
        assert decision.capacity is not None
        assert decision.capacity < 9.0
        assert decision.desired > 2
    else:
        assert decision.desired == 2
