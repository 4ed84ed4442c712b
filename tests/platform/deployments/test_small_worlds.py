"""The autoscaler in two small worlds that share nothing with the simulator of the product: held to results by kind of traffic, and to
get by with whatever a caller tells, at any pace, with any cold start. `small.py` says how these worlds work."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from berth.deployments.autoscale import Capacity, Goals, Peak, Policy, State, autoscale
from tests.platform.deployments import small
from tests.platform.deployments.small import Dress, Jobs, Outcome, Places, Shared, World

# Requests a second of a calm that one replica does easily.
CALM: dict[type[World], float] = {Places: 3.0, Shared: 10.0}
WORLDS = [Places, Shared]
LEARNED = 900.0  # seconds: by then each kind of traffic has shown what it is like

KINDS: dict[str, Callable[[float], Jobs]] = {
    "spikes of 5": lambda calm: small.spiky(calm, 5, 30, 60, span=2_400),
    "spikes of 10": lambda calm: small.spiky(calm, 10, 30, 120, span=2_400),
    "spikes of 20": lambda calm: small.spiky(calm, 20, 30, 60, span=2_400),
    "busy and calm": lambda calm: small.modulated(calm, span=2_400),
    "batches": lambda calm: small.batches(calm, span=2_400),
    "crowds": lambda calm: small.crowds(calm, span=3_600),
    "self-similar": lambda calm: small.selfsimilar(calm, span=2_400),
    "a day": lambda calm: small.daily(calm, span=3_600),
}


def cost(kind: type[World], made: Jobs, found: Outcome) -> float:
    """Replica-hours, times those of enough replicas for the busiest ten seconds, all the time."""
    return found.hours / (small.fixed_at_peak(kind, made) * made[-1][0] / 3_600.0)


@pytest.mark.parametrize("traffic", KINDS)
def test_traffic_is_within_the_goal_once_it_is_known(traffic: str) -> None:
    made = KINDS[traffic](CALM[Places])
    found = Places(made, initial=2).run()
    assert found.share(LEARNED) >= 0.99, [each for each in found.orders if each[0] > LEARNED]
    assert cost(Places, made, found) <= 1.5
    assert max(found.waits) < 75.0


@pytest.mark.slow
@pytest.mark.parametrize("traffic", KINDS)
def test_traffic_is_within_the_goal_once_it_is_known_where_engines_take_all(traffic: str) -> None:
    made = KINDS[traffic](CALM[Shared])
    found = Shared(made, initial=2).run()
    assert found.share(LEARNED) >= 0.99, [each for each in found.orders if each[0] > LEARNED]
    assert cost(Shared, made, found) <= 2.5


def test_fixed_at_peak_would_do_so_that_the_goal_can_be_met() -> None:
    for traffic in ("spikes of 5", "crowds"):
        made = KINDS[traffic](CALM[Places])
        count = small.fixed_at_peak(Places, made)
        assert Places(made, initial=count, fixed=count).run().share() >= 0.99


def test_a_declared_peak_needs_no_first_burst() -> None:
    """Spikes are lost until they are known; told before, none is."""
    made = KINDS["spikes of 5"](CALM[Places])
    peak = Peak(start=0.0, end=1e9, requests_per_second=5.2 * CALM[Places])
    policy = Policy(most=50, peaks=(peak,), goals=Goals(share=0.99))
    assert Places(made, initial=2, policy=policy).run().share(70.0) >= 0.99
    assert Places(made, initial=2).run().share(70.0) < 0.97


def test_bursts_that_stop_are_let_go_slowly() -> None:
    spikes = small.spiky(3.0, 5, 30, 60, span=1_800)
    calm = [(1_800.0 + at, size) for at, size in small.jobs(lambda _: 3.0, 6_000, 3.0)]
    found = Places(spikes + calm, initial=2).run()
    assert found.at(1_800.0) >= 5
    assert found.at(2_700.0) >= 5, "never between bursts that may come again"
    assert found.at(7_700.0) <= 2
    after = [count for at, count in found.orders if at > 1_900.0]
    assert after == sorted(after, reverse=True)


# --- what a caller tells


@pytest.mark.parametrize("kind", [Places, pytest.param(Shared, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "dress",
    [small.bare, small.gauges, small.Rates, lambda: small.Rates(window=2.0), lambda: small.Rates(noise=0.2)],
    ids=["arrivals only", "gauges", "rates", "windows", "noisy rates"],
)
def test_little_is_enough(kind: type[World], dress: Dress | Callable[[], Dress]) -> None:
    made = small.spiky(CALM[kind], 5, 30, 60, span=1_800)
    told = dress if dress in (small.bare, small.gauges) else dress()  # type: ignore[call-arg, operator]
    found = kind(made, initial=2, dress=told).run()  # type: ignore[arg-type]
    assert found.share(LEARNED) >= 0.99
    assert cost(kind, made, found) <= 2.0


def test_what_is_in_flight_is_enough() -> None:
    made = small.spiky(CALM[Places], 5, 30, 60, span=1_800)
    found = Places(made, initial=2, dress=small.flying_only).run()
    assert found.share(LEARNED) >= 0.99
    assert cost(Places, made, found) <= 2.0


def times(capacity: Capacity, factor: float) -> Capacity:
    return msgspec.structs.replace(
        capacity,
        requests_per_second=factor * (capacity.requests_per_second or 0.0),
        pooled_requests_per_second=factor * (capacity.pooled_requests_per_second or 0.0),
        concurrency=factor * (capacity.concurrency or 0.0),
    )


@pytest.mark.parametrize("kind", [Places, pytest.param(Shared, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("told", "most"),
    [
        (lambda right: times(right, 2.0), 2.0),
        (lambda right: times(right, 0.5), 4.0),
        (lambda right: Capacity(concurrency=right.concurrency), 3.0),
        (lambda right: Capacity(requests_per_second=right.requests_per_second), 2.0),
        (lambda _: Capacity(), 4.0),
    ],
    ids=["twice too high", "twice too low", "concurrency only", "rate only", "unknown"],
)
def test_a_wrong_or_unknown_capacity_is_learned(
    kind: type[World], told: Callable[[Capacity], Capacity], most: float
) -> None:
    made = small.spiky(CALM[kind], 5, 30, 60, span=1_800)
    found = kind(made, initial=2, told=told(kind.capacity)).run()
    assert found.share(LEARNED) >= 0.985
    assert cost(kind, made, found) <= most


@pytest.mark.parametrize("interval", [1.0, 5.0, 10.0, 15.0, 30.0])
def test_any_pace(interval: float) -> None:
    made = small.spiky(CALM[Places], 5, 40, 80, span=1_800)
    found = Places(made, initial=2, interval=interval).run()
    assert found.share(LEARNED) >= 0.99
    assert cost(Places, made, found) <= 2.0


@pytest.mark.parametrize("cold", [10.0, 30.0, 120.0, 300.0])
def test_any_cold_start(cold: float) -> None:
    made = small.spiky(CALM[Places], 5, 30, 60, span=2_400)
    found = Places(made, initial=2, cold=cold).run()
    assert found.share(1_200.0) >= 0.99
    assert cost(Places, made, found) <= 2.0


# --- what people know


@pytest.mark.parametrize("interval", [1.0, 2.0, 5.0])
def test_after_a_step_it_is_back_a_cold_start_and_twenty_seconds_later(interval: float) -> None:
    made = small.stepped(CALM[Places], 10)
    found = Places(made, initial=2, interval=interval).run()
    assert found.share(680.0, 690.0) >= 0.99
    assert found.share(680.0) >= 0.99
    assert max(found.waits) < 75.0
    best = (2 * 600.0 + 10 * 1_260.0) / 3_600.0
    assert found.hours <= 1.7 * best


@pytest.mark.parametrize("interval", [2.0, 10.0])
def test_after_silence_it_wakes_with_what_the_load_needs(interval: float) -> None:
    made = small.jobs(lambda at: 0.0 if 600 <= at < 1_800 else 20.0, 2_400, 20.0)
    policy = Policy(least=0, most=50, sleep_after=300.0, goals=Goals(share=0.99))
    found = Places(made, initial=7, interval=interval, policy=policy).run()
    assert found.at(1_790.0) == 0
    assert found.at(1_805.0 + 2 * interval) >= 6
    assert found.share(1_890.0) >= 0.99
    assert max(found.waits) < 75.0


def test_steady_traffic_is_left_alone() -> None:
    for kind in WORLDS:
        rate = 4.0 * CALM[kind]
        found = kind(small.jobs(lambda _, rate=rate: rate, 2_400, rate), initial=4).run()
        assert found.reversals <= 1
        assert len(found.orders) <= 4
        assert found.share() >= 0.99


def test_what_is_remembered_stays_small() -> None:
    found = Places(small.spiky(3.0, 5, 20, 40, span=4_800), initial=2).run()
    packed = msgspec.msgpack.encode(found.final)
    assert len(packed) < 16_000
    assert msgspec.msgpack.decode(packed, type=State) == found.final


def test_the_same_answer_after_it_was_packed() -> None:
    found = Places(small.spiky(3.0, 5, 30, 60, span=900), initial=2)
    found.run()
    seen = small.Observation(now=910.0, arrivals=float(found.came), ready=3, capacity=Places.capacity)
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(found.state), type=State)
    assert autoscale(seen, found.state) == autoscale(seen, again)
