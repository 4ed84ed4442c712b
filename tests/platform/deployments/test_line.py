"""Who waits for room in which order, who makes room for whom, and which GPUs a replica gets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth.deployments.devices import pick
from berth.deployments.line import Holder, Waiting, in_line, left_for, making_room, position

ORGS = st.sampled_from(["a", "b", "c"])
WAITING = st.lists(
    st.builds(
        Waiting,
        deployment=st.uuids().map(str),
        org=ORGS,
        priority=st.integers(-2, 2),
        since=st.integers(0, 50).map(float),
        memory=st.integers(1, 100),
    ),
    max_size=10,
    unique_by=lambda one: one.deployment,
)
HOLDERS = st.lists(
    st.builds(
        Holder,
        deployment=st.uuids().map(str),
        priority=st.integers(-2, 2),
        since=st.integers(0, 50).map(float),
        memory=st.integers(1, 100),
        replicas=st.integers(0, 3),
    ),
    max_size=6,
    unique_by=lambda one: one.deployment,
)


def waits(name: str, org: str = "a", priority: int = 0, since: float = 0, memory: int = 10) -> Waiting:
    return Waiting(name, org, priority, since, memory)


def test_priority_counts_within_an_organisation_only() -> None:
    line = in_line([waits("a1", "a", 0, 1), waits("b1", "b", 0, 2), waits("a2", "a", 9, 3)])
    assert [one.deployment for one in line] == ["a2", "b1", "a1"]
    assert [position(line, name) for name in ("a2", "b1", "a1", "new")] == [1, 2, 3, 4]


@pytest.mark.threat("E5")
@given(WAITING)
def test_no_organisation_gets_ahead_of_another_by_calling_everything_urgent(waiting: list[Waiting]) -> None:
    line = in_line(waiting)
    assert {one.deployment for one in line} == {one.deployment for one in waiting}
    by_time = sorted(waiting, key=lambda one: (one.since, one.deployment))
    assert [one.org for one in line] == [one.org for one in by_time]
    for org in "abc":
        priorities = [one.priority for one in line if one.org == org]
        assert priorities == sorted(priorities, reverse=True)


@given(WAITING, st.integers(0, 300))
def test_who_is_behind_takes_nothing_that_one_before_could_use(waiting: list[Waiting], room: int) -> None:
    line = in_line(waiting)
    taken = 0
    for one in line:
        left = left_for(line, one.deployment, room)
        assert left == room - taken
        if one.memory <= left:
            taken += one.memory
    assert taken <= room
    assert left_for(line, "new", room) == room - taken


def test_what_nobody_before_can_use_is_not_left_empty() -> None:
    line = in_line([waits("big", memory=100, since=1), waits("small", memory=10, since=2)])
    assert left_for(line, "small", 50) == 50
    assert left_for(line, "small", 105) == 5


@given(HOLDERS, st.integers(1, 400), st.integers(-2, 3))
def test_only_the_less_important_make_room_no_more_than_is_needed_and_only_if_it_helps(
    holders: list[Holder], missing: int, priority: int
) -> None:
    by_name = {holder.deployment: holder for holder in holders}
    given_up = making_room(missing, holders, priority)
    below = sum(one.memory * one.replicas for one in holders if one.priority < priority)
    assert bool(given_up) == (below >= missing)
    if not given_up:
        return
    freed = {name: by_name[name].memory * count for name, count in given_up.items()}
    assert sum(freed.values()) >= missing
    assert all(
        by_name[name].priority < priority and 0 < count <= by_name[name].replicas for name, count in given_up.items()
    )
    last = max(given_up, key=lambda name: (by_name[name].priority, -by_name[name].since, name))
    assert sum(freed.values()) - by_name[last].memory < missing  # one replica less would not do
    least = min(by_name[name].priority for name in given_up)
    assert all(one.priority >= least or one.replicas == 0 for one in holders)


STEPS = st.lists(st.tuples(st.sampled_from(["start", "end"]), ORGS, st.integers(1, 3)), max_size=30)


@pytest.mark.threat("E4")
@given(STEPS)
def test_a_device_is_one_replicas_alone_and_scrubbed_between_organisations(steps: list[tuple[str, str, int]]) -> None:
    devices = ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]
    holding: list[tuple[str, tuple[str, ...]]] = []
    memory: dict[str, str] = {}  # whose data lies there; gone when it was overwritten
    owners: dict[str, str] = {}
    for what, org, count in steps:
        if what == "end":
            if holding:
                holding.pop(count % len(holding))
            continue
        taken = {device for _, some in holding for device in some}
        found = pick(devices, taken, owners, org, count)
        if found is None:
            assert len(devices) - len(taken) < count
            continue
        assert len(set(found.devices)) == count
        assert not set(found.devices) & taken
        for device in found.devices:
            assert found.scrub or memory.get(device, org) == org, "it would see another organisation's memory"
            memory[device] = owners[device] = org
        holding.append((org, found.devices))


def test_the_own_devices_are_taken_first() -> None:
    found = pick(["x", "y", "z"], ["z"], {"x": "other", "y": "me"}, "me", 1)
    assert found is not None
    assert (found.devices, found.scrub) == (("y",), False)
    assert pick(["x"], ["x"], {}, "me", 1) is None
