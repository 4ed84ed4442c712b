"""The reconciler's decisions, driven in virtual time by any sequence of crashes, orders and looks."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.deployments.decision import CRASH_LOOP_AFTER, CRASH_LOOP_RETRY, SURGE, Retire, Start, Stop
from berth.deployments.states import State
from berth.deployments.world import RETIRE_SECONDS, SILENT_SECONDS, STABLE_SECONDS, Want
from tests.platform.deployments.sim import MEMORY, Sim


def test_it_gets_ready() -> None:
    sim = Sim(replicas=2)
    assert sim.look().state is State.STARTING
    sim.progress()
    assert sim.look().state is State.READY
    assert sorted(sim.serving()) == ["d-1-0-1", "d-1-1-1"]


def test_a_start_that_was_lost_is_repeated_under_the_same_name() -> None:
    sim = Sim()
    sim.look(lose_actions=True)
    assert sim.alive() == []
    assert sim.look().actions == (Start("d-1-0-1", 1, 0, new=False),)
    assert sim.alive() == ["d-1-0-1"]


def test_a_crash_is_answered_at_once_and_a_series_with_growing_pauses() -> None:
    sim = Sim()
    sim.broken = True
    tries = []
    for _ in range(400):
        if any(isinstance(action, Start) for action in sim.look().actions):
            tries.append(sim.now)
        sim.progress()
        sim.now += 0.5
    pauses = [later - earlier for earlier, later in itertools.pairwise(tries)]
    assert len(tries) == CRASH_LOOP_AFTER
    assert pauses == sorted(pauses)
    assert sim.state is State.FAILED
    assert sim.decision is not None
    assert sim.decision.reason == "crash_loop"


def test_a_crash_loop_is_tried_again_after_a_long_time_and_at_once_when_somebody_acts() -> None:
    sim = Sim()
    sim.broken = True
    sim.settle(60)
    assert sim.state is State.FAILED
    sim.now += CRASH_LOOP_RETRY
    assert [type(action) for action in sim.look().actions] == [Start]
    sim.progress()
    assert sim.look().state is State.FAILED
    sim.broken, sim.failures = False, 0  # what resume() does
    sim.settle(5)
    assert sim.state is State.READY


def test_what_cannot_get_better_is_not_tried_again() -> None:
    sim = Sim()
    sim.look()
    sim.show("d-1-0-1", "failed", alive=False, reason="checksum_mismatch")
    decision = sim.look()
    assert (decision.state, decision.reason, decision.actions) == (State.FAILED, "checksum_mismatch", ())


def test_a_long_good_run_forgives_earlier_failures() -> None:
    sim = Sim()
    for _ in range(CRASH_LOOP_AFTER * 2):
        sim.settle(STABLE_SECONDS + 5)
        assert sim.state is State.READY
        sim.crash(0)
        assert any(isinstance(action, Start) for action in sim.look().actions)


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_an_update_always_leaves_somebody_serving(replicas: int) -> None:
    sim = Sim(replicas)
    sim.settle(5)
    sim.revision = 2
    for _ in range(60):
        sim.look()
        assert len(sim.serving()) >= replicas
        assert len(sim.alive()) <= replicas + SURGE
        sim.progress()
        sim.now += 0.5
    assert sorted(sim.alive()) == sorted(f"d-2-{ordinal}-1" for ordinal in range(replicas))
    assert sim.state is State.READY


def test_an_old_replica_is_asked_to_end_only_after_gateways_have_heard() -> None:
    sim = Sim()
    sim.settle(5)
    sim.revision = 2
    retired = stopped = None
    for _ in range(40):
        for action in sim.look().actions:
            if isinstance(action, Retire):
                retired = sim.now
            if isinstance(action, Stop) and stopped is None:
                stopped = sim.now
                assert action.drain_seconds > 0
        sim.progress()
        sim.now += 0.25
    assert retired is not None
    assert stopped is not None
    assert stopped - retired >= RETIRE_SECONDS


def test_an_update_that_does_not_start_leaves_the_old_serving() -> None:
    sim = Sim()
    sim.settle(5)
    sim.revision, sim.broken = 2, True
    sim.settle(60)
    assert sim.serving() == ["d-1-0-1"]
    assert sim.decision is not None
    assert (sim.state, sim.decision.reason) == (State.DEGRADED, "update_failed")


def test_without_room_for_both_the_old_goes_first_and_it_is_said() -> None:
    sim = Sim(memory=MEMORY + MEMORY // 2)
    sim.settle(5)
    sim.revision = 2
    decision = sim.look()
    assert (decision.state, decision.reason) == (State.UPDATING, "no_room_side_by_side")
    assert decision.actions == (Retire("d-1-0-1"),)
    sim.settle(10)
    assert (sim.state, sim.alive()) == (State.READY, ["d-2-0-1"])


@pytest.mark.threat("E5")
def test_without_room_at_all_it_waits_and_takes_nobody_elses() -> None:
    sim = Sim(memory=MEMORY - 1)
    decision = sim.look()
    assert (decision.state, decision.reason, decision.actions) == (State.QUEUED, "no_capacity", ())
    sim.memory = MEMORY
    sim.settle(5)
    assert sim.state is State.READY


def test_orphans_end() -> None:
    sim = Sim()
    sim.settle(5)
    sim.orphan()
    sim.look()
    assert sim.alive() == ["d-1-0-1"]


def test_a_replica_that_says_nothing_is_replaced() -> None:
    sim = Sim()
    sim.settle(5)
    sim.now += SILENT_SECONDS + 1
    assert Stop("d-1-0-1", 0) in sim.look().actions
    sim.settle(5)
    assert (sim.state, sim.alive()) == (State.READY, ["d-1-0-2"])


def test_fewer_replicas_end_the_surplus_without_a_restart() -> None:
    sim = Sim(replicas=3)
    sim.settle(5)
    sim.replicas = 1
    sim.settle(10)
    assert sim.alive() == ["d-1-0-1"]


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("crash"), st.integers(0, 5)),
        st.tuples(st.just("lost"), st.integers(0, 1)),
        st.tuples(st.just("twice"), st.integers(0, 1)),
        st.tuples(st.just("wait"), st.integers(1, 40)),
        st.tuples(st.just("update"), st.integers(0, 1)),
        st.tuples(st.just("scale"), st.integers(1, 3)),
        st.tuples(st.just("pause"), st.integers(0, 1)),
        st.tuples(st.just("resume"), st.integers(0, 1)),
        st.tuples(st.just("orphan"), st.integers(0, 1)),
        st.tuples(st.just("memory"), st.integers(0, 8)),
    ),
    max_size=40,
)


@given(events=EVENTS, replicas=st.integers(1, 3))
@settings(max_examples=150, deadline=None)
def test_whatever_happens_bounds_hold_and_it_comes_to_rest(events: list[tuple[str, int]], replicas: int) -> None:
    sim = Sim(replicas)
    most = replicas
    for kind, number in events:
        happen(sim, kind, number)
        most = max(most, sim.replicas)
        before = len(sim.rows)
        sim.look(lose_actions=kind == "lost")
        assert len(sim.rows) <= max(before, sim.replicas + SURGE)
        assert len(sim.rows) <= most + SURGE
        assert MEMORY * len(sim.rows) <= max(sim.memory, MEMORY * before)
        sim.progress()
        sim.now += 0.5
    sim.memory, sim.desired, sim.failures = 10 * MEMORY, Want.RUNNING, 0
    sim.settle(90)
    assert sim.state is State.READY
    assert sorted(sim.rows) == sorted(sim.alive()) == sorted(sim.serving())
    assert sorted(row.ordinal for row in sim.rows.values()) == list(range(sim.replicas))
    assert {row.revision for row in sim.rows.values()} == {sim.revision}
    sim.desired = Want.DELETED
    sim.settle(10)
    assert (sim.state, sim.alive(), sim.rows) == (State.DELETED, [], {})


def happen(sim: Sim, kind: str, number: int) -> None:
    match kind:
        case "crash":
            sim.crash(number)
        case "twice":
            sim.look()
        case "wait":
            sim.now += number
            sim.progress()
        case "update":
            sim.revision, sim.failures = sim.revision + 1, 0
        case "scale":
            sim.replicas = number
        case "pause":
            sim.desired = Want.PAUSED
        case "resume":
            sim.desired, sim.failures = Want.RUNNING, 0
        case "orphan":
            sim.orphan()
        case "memory":
            sim.memory = number * MEMORY
