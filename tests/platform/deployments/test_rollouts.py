"""Rollouts on real tables with a scripted provider: canary, shadow, going back by itself and by hand, holding."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from berth.compute.launch import Phase
from berth.compute.providers.fake import FakeProvider
from berth.deployments import rollouts
from berth.deployments.decision import CRASH_LOOP_AFTER, JUDGE
from berth.deployments.models import Deployment, Event, Replica, Rollout, State, Status
from berth.deployments.services import update
from berth.web.errors import Conflict, NotFound
from tests import make
from tests.platform.deployments.conftest import Clock
from tests.platform.deployments.looks import look, queued, row, settle

pytestmark = pytest.mark.django_db

NEEDS = {"context_length": 512, "concurrency": 1}


@pytest.fixture(autouse=True)
def one_clock(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What services write is as old as what the reconciler sees."""
    monkeypatch.setattr("django.utils.timezone.now", clock)
    yield


@pytest.fixture
def deployment(provider: FakeProvider, clock: Clock) -> Deployment:
    return settle(queued(), provider, clock, State.READY)


def change(deployment: Deployment, provider: FakeProvider, **rollout: Any) -> Deployment:
    update(row(deployment), None, needs=NEEDS, rollout=rollout or None, reason="shorter", provider=provider)
    return row(deployment)


def latest(deployment: Deployment) -> Rollout:
    found = rollouts.latest_rollout(deployment)
    assert found is not None
    return found


def alive(provider: FakeProvider, deployment: Deployment) -> list[str]:
    """As revision-ordinal-attempt."""
    seen = [each for each in provider.observe(str(deployment.pk)) if each.alive]
    return [each.name.removeprefix(f"{deployment.pk}-") for each in seen]


def go(deployment: Deployment, provider: FakeProvider, clock: Clock, looks: int = 12, bad: int | None = None) -> None:
    """Looks while what starts gets ready; replicas of revision `bad` fail instead."""
    for _ in range(looks):
        look(deployment, provider, clock)
        for each in provider.observe(str(deployment.pk)):
            if each.alive and each.phase is Phase.DRAINING:
                provider.advance(each.name, Phase.STOPPED)
            elif each.alive and each.revision == bad:
                provider.fail(each.name, "engine_exited")
            elif each.alive and each.phase is not Phase.READY:
                provider.ready(each.name)
        clock.forward(0.6)


def wait(deployment: Deployment, provider: FakeProvider, clock: Clock, seconds: float) -> None:
    """Time goes by, and every replica lives."""
    for _ in range(round(seconds / 20)):
        clock.forward(20)
        for each in provider.observe(str(deployment.pk)):
            if each.alive:
                provider.advance(each.name, each.phase)
    look(deployment, provider, clock)


def requests(deployment: Deployment, clock: Clock, revision: int, count: int, failed: int = 0, ms: float = 100) -> None:
    key, _ = make.key(make.member(deployment.org))
    for number in range(count):
        outcome = "upstream_error" if number < failed else "ok"
        fields = {"revision": revision, "outcome": outcome, "stream": True, "first_token_ms": ms}
        make.usage_event(deployment, key, accepted_at=clock(), **fields)


def test_an_update_is_watched_and_then_becomes_the_good_one(
    deployment: Deployment, provider: FakeProvider, clock: Clock
) -> None:
    change(deployment, provider)
    go(deployment, provider, clock)
    assert (row(deployment).state, latest(deployment).status) == (State.READY, Status.WATCHING)
    assert alive(provider, deployment) == ["2-0-1"]
    look(deployment, provider, clock)
    assert row(deployment).check_at <= clock() + timedelta(seconds=JUDGE)  # somebody looks at it while it is watched
    wait(deployment, provider, clock, latest(deployment).hold_seconds)
    assert latest(deployment).status == Status.COMPLETED
    stable = row(deployment).stable
    assert stable is not None
    assert (stable.number, stable.reason) == (2, "shorter")


def test_a_revision_that_does_not_start_goes_back_by_itself_and_says_why(
    deployment: Deployment, provider: FakeProvider, clock: Clock
) -> None:
    change(deployment, provider)
    go(deployment, provider, clock, looks=80, bad=2)
    rolled = latest(deployment)
    assert (rolled.status, rolled.reason) == (Status.ROLLED_BACK, "crash_loop")
    assert f"failed {CRASH_LOOP_AFTER} times" in rolled.message
    back = row(deployment)
    assert back.revision is not None
    assert (back.revision.number, back.state, back.failures) == (1, State.READY, 0)
    assert alive(provider, deployment) == ["1-0-1"]  # it served all the time
    assert back.traffic == {}
    event = Event.objects.for_org(deployment.org_id).get(kind="rolled_back")
    assert (event.data["number"], event.data["reason"], event.actor) == (1, "crash_loop", None)


def test_more_errors_than_before_go_back_although_all_old_replicas_are_gone(
    deployment: Deployment, provider: FakeProvider, clock: Clock
) -> None:
    requests(deployment, clock, 1, 40)
    change(deployment, provider)
    go(deployment, provider, clock)
    assert alive(provider, deployment) == ["2-0-1"]
    requests(deployment, clock, 2, 30, failed=10)
    look(deployment, provider, clock)
    assert (latest(deployment).status, latest(deployment).reason) == (Status.ROLLED_BACK, "more_errors")
    assert latest(deployment).measured["new"]["failed"] == 10
    look(deployment, provider, clock)
    assert sorted(alive(provider, deployment)) == ["1-0-2", "2-0-1"]  # the bad one serves until the good one answers
    assert row(deployment).traffic == {"new": [2], "weight": 0}
    go(deployment, provider, clock)
    assert (row(deployment).state, alive(provider, deployment)) == (State.READY, ["1-0-2"])


def test_a_canary_goes_up_step_by_step_and_takes_over(
    deployment: Deployment, provider: FakeProvider, clock: Clock
) -> None:
    change(deployment, provider, strategy="canary", steps=[10, 50], hold_seconds=60)
    look(deployment, provider, clock)
    assert row(deployment).traffic == {"new": [2], "weight": 10}  # before it could get a single request
    go(deployment, provider, clock)
    assert sorted(alive(provider, deployment)) == ["1-0-1", "2-0-1"]
    assert (row(deployment).state, row(deployment).reason) == (State.UPDATING, "canary")
    wait(deployment, provider, clock, 60)
    assert latest(deployment).reason == "too_few_requests"
    requests(deployment, clock, 2, 20)
    look(deployment, provider, clock)
    go(deployment, provider, clock, looks=4)
    assert row(deployment).traffic == {"new": [2], "weight": 50}
    requests(deployment, clock, 2, 20)
    wait(deployment, provider, clock, 60)
    go(deployment, provider, clock)
    assert alive(provider, deployment) == ["2-0-1"]
    assert (row(deployment).state, row(deployment).traffic) == (State.READY, {})
    assert latest(deployment).status == Status.COMPLETED


def test_a_slower_canary_goes_back(deployment: Deployment, provider: FakeProvider, clock: Clock) -> None:
    requests(deployment, clock, 1, 40, ms=100)
    change(deployment, provider, strategy="canary", steps=[10], hold_seconds=60)
    go(deployment, provider, clock)
    requests(deployment, clock, 2, 25, ms=200)
    go(deployment, provider, clock)
    assert (latest(deployment).status, latest(deployment).reason) == (Status.ROLLED_BACK, "slower")
    assert (row(deployment).state, alive(provider, deployment)) == (State.READY, ["1-0-1"])


def test_a_crashed_replica_of_the_old_revision_comes_back_during_a_canary(
    deployment: Deployment, provider: FakeProvider, clock: Clock
) -> None:
    change(deployment, provider, strategy="canary", steps=[10], hold_seconds=60)
    go(deployment, provider, clock)
    provider.vanish(f"{deployment.pk}-1-0-1")
    go(deployment, provider, clock)
    assert sorted(alive(provider, deployment)) == ["1-0-2", "2-0-1"]


def test_a_shadow_serves_nobody_until_it_is_promoted(
    deployment: Deployment, provider: FakeProvider, clock: Clock
) -> None:
    change(deployment, provider, strategy="shadow", shadow_percent=25)
    go(deployment, provider, clock)
    assert row(deployment).traffic == {"new": [2], "shadow": 25}
    wait(deployment, provider, clock, 1000)
    go(deployment, provider, clock)
    assert sorted(alive(provider, deployment)) == ["1-0-1", "2-0-1"]
    rollouts.promote(row(deployment), None)
    go(deployment, provider, clock)
    assert (row(deployment).traffic, alive(provider, deployment)) == ({}, ["2-0-1"])


def test_what_is_held_stays_and_goes_on_when_told(deployment: Deployment, provider: FakeProvider, clock: Clock) -> None:
    change(deployment, provider)
    look(deployment, provider, clock)
    rollouts.hold(row(deployment), None)
    go(deployment, provider, clock, looks=30)
    assert sorted(alive(provider, deployment)) == ["1-0-1", "2-0-1"]
    assert row(deployment).reason == "rollout_paused"
    rollouts.go_on(row(deployment), None)
    go(deployment, provider, clock)
    assert alive(provider, deployment) == ["2-0-1"]


def test_back_to_any_earlier_revision_by_hand(deployment: Deployment, provider: FakeProvider, clock: Clock) -> None:
    change(deployment, provider)
    go(deployment, provider, clock)
    update(row(deployment), None, needs={"context_length": 256, "concurrency": 1}, provider=provider)
    go(deployment, provider, clock)
    assert alive(provider, deployment) == ["3-0-1"]
    with pytest.raises(NotFound):
        rollouts.roll_back(row(deployment), None, number=7)
    with pytest.raises(Conflict):
        rollouts.roll_back(row(deployment), None, number=3)
    rollouts.roll_back(row(deployment), None, number=1)
    assert row(deployment).traffic == {"new": [3], "weight": 0}
    go(deployment, provider, clock)
    assert alive(provider, deployment) == ["1-0-2"]
    assert (latest(deployment).status, latest(deployment).reason) == (Status.ROLLED_BACK, "by_hand")


def test_back_from_a_canary_at_once(deployment: Deployment, provider: FakeProvider, clock: Clock) -> None:
    change(deployment, provider, strategy="canary", steps=[25])
    go(deployment, provider, clock)
    rollouts.roll_back(row(deployment), None)
    look(deployment, provider, clock)
    living = Replica.objects.for_org(deployment.org_id).filter(ended_at=None, retired_at=None)
    assert [each.revision.number for each in living] == [1]
    go(deployment, provider, clock)
    assert alive(provider, deployment) == ["1-0-1"]
    with pytest.raises(Conflict):
        rollouts.promote(row(deployment), None)


def test_another_change_takes_the_place_of_the_one_under_way(
    deployment: Deployment, provider: FakeProvider, clock: Clock
) -> None:
    change(deployment, provider, strategy="canary", steps=[25])
    go(deployment, provider, clock)
    update(row(deployment), None, needs={"context_length": 256, "concurrency": 1}, provider=provider)
    statuses = Rollout.objects.for_org(deployment.org_id).order_by("id").values_list("status", flat=True)
    assert list(statuses) == [Status.SUPERSEDED, Status.PROGRESSING]
    go(deployment, provider, clock, looks=20)
    assert alive(provider, deployment) == ["3-0-1"]
    base = latest(deployment).base
    assert base is not None
    assert base.number == 1  # the last good one, not the one that was tried


def test_more_replicas_in_the_middle_of_a_canary_do_not_end_it(
    deployment: Deployment, provider: FakeProvider, clock: Clock
) -> None:
    change(deployment, provider, strategy="canary", steps=[25], hold_seconds=600)
    go(deployment, provider, clock)
    update(row(deployment), None, replicas=2, provider=provider)
    go(deployment, provider, clock)
    assert latest(deployment).status == Status.PROGRESSING
    assert sorted(alive(provider, deployment)) == ["1-0-1", "1-1-1", "2-0-1"]


def test_the_first_revision_is_good_once_it_answers(provider: FakeProvider, clock: Clock) -> None:
    made = queued()
    Rollout.objects.for_org(made.org_id).create(org_id=made.org_id, deployment=made, revision=made.revision)
    go(made, provider, clock)
    stable = row(made).stable
    assert stable is not None
    assert (stable.number, latest(made).status) == (1, Status.COMPLETED)


def test_hold_is_for_what_is_under_way(deployment: Deployment) -> None:
    with pytest.raises(Conflict):
        rollouts.hold(row(deployment), None)
    with pytest.raises(Conflict):
        rollouts.go_on(row(deployment), None)
    assert row(deployment).check_at - timedelta(hours=1) < row(deployment).check_at
