"""Room on real tables: the queue with its positions, quotas, preemption by priority, and GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from berth.compute.launch import Phase
from berth.compute.provider import Device
from berth.compute.providers.fake import FakeProvider
from berth.deployments import replicas
from berth.deployments.models import Deployment, Quota, Replica, Revision, State
from berth.deployments.services import delete, deploy, update
from berth.orgs.models import Organisation
from berth.web.errors import ApiError
from tests import make
from tests.platform.deployments.conftest import Clock
from tests.platform.deployments.looks import look, queued, row, settle

pytestmark = pytest.mark.django_db

GIB = 1 << 30


@pytest.fixture(autouse=True)
def one_clock(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("django.utils.timezone.now", clock)
    yield


def big(org: Organisation, share: int = 6, count: int = 1, **fields: Any) -> Deployment:
    """Each replica of that many GiB of the 15 that can be used."""
    made = queued(org, **fields)
    Revision.objects.for_org(org).filter(deployment=made).update(memory=share * GIB, replicas=count)
    return row(made)


def round_of(deployments: list[Deployment], provider: FakeProvider, clock: Clock, rounds: int = 4) -> None:
    for _ in range(rounds):
        for each in deployments:
            look(each, provider, clock)
            for replica in provider.observe(str(each.pk)):
                if replica.alive and replica.phase is Phase.DRAINING:
                    provider.advance(replica.name, Phase.STOPPED)
                elif replica.alive and replica.phase is not Phase.READY:
                    provider.ready(replica.name)
        clock.forward(2)


def states(deployments: list[Deployment]) -> list[str]:
    return [row(each).state for each in deployments]


def test_who_waits_has_a_position_and_the_first_gets_the_room(provider: FakeProvider, clock: Clock) -> None:
    first, second, third, fourth = (big(make.org()) for _ in range(4))
    everybody = [first, second, third, fourth]
    round_of(everybody, provider, clock)
    assert states(everybody) == [State.READY, State.READY, State.QUEUED, State.QUEUED]
    assert "number 1 of 2 in the queue" in row(third).message
    assert "number 2 of 2 in the queue" in row(fourth).message
    delete(row(first), None)
    round_of([fourth, first, third], provider, clock)  # the fourth looks first, and still it is not its turn
    assert states([third, fourth]) == [State.READY, State.QUEUED]
    waited = row(third).last_wait_seconds
    assert waited is not None and waited > 0
    round_of([fourth], provider, clock, rounds=1)
    assert "number 1 of 1 in the queue; waiting usually took" in row(fourth).message


def test_a_crash_does_not_cost_the_place(provider: FakeProvider, clock: Clock) -> None:
    holder, other = big(make.org(), 10), big(make.org(), 10)
    round_of([holder, other], provider, clock)
    assert states([holder, other]) == [State.READY, State.QUEUED]
    provider.vanish(f"{holder.pk}-1-0-1")
    round_of([holder, other], provider, clock)
    assert states([holder, other]) == [State.READY, State.QUEUED]


@pytest.mark.threat("E5")
def test_a_quota_stops_more_and_nobody_elses(provider: FakeProvider, clock: Clock) -> None:
    org, other = make.org(), make.org()
    Quota.objects.create(org=org, replicas=1)
    one, two, theirs = big(org, 4), big(org, 4), big(other, 4)
    everybody = [one, two, theirs]
    round_of(everybody, provider, clock)
    assert states(everybody) == [State.READY, State.QUEUED, State.READY]
    assert row(two).reason == "over_quota"
    Quota.objects.filter(org=org).update(replicas=None, memory=8 * GIB)
    round_of(everybody, provider, clock)
    assert states(everybody) == [State.READY] * 3


def half_way(org: Organisation, provider: FakeProvider, clock: Clock) -> Deployment:
    """Two replicas answer, and another revision is to take over; nothing of that has begun."""
    made = big(org, 3, count=2)
    round_of([made], provider, clock)
    assert ready(made) == ["1", "1"]
    update(row(made), None, needs={"context_length": 512, "concurrency": 1}, provider=provider)
    Revision.objects.for_org(org).filter(deployment=made, number=2).update(memory=3 * GIB, tier="cpu-fake")
    return row(made)


def ready(deployment: Deployment) -> list[str]:
    """Revisions of those that answer."""
    rows = Replica.objects.for_org(deployment.org_id).filter(deployment=deployment, phase="ready", ended_at=None)
    return [str(number) for number in rows.values_list("revision__number", flat=True)]


@pytest.mark.threat("E5")
def test_a_quota_that_is_lowered_in_the_middle_of_an_update_takes_nothing_away(
    provider: FakeProvider, clock: Clock
) -> None:
    """There is no place for the new revision however many of the old are given up: others of the organisation hold it all."""
    org = make.org()
    other = big(org, 3, count=2)
    round_of([other], provider, clock)
    made = half_way(org, provider, clock)
    Quota.objects.create(org=org, replicas=2)
    round_of([made, other], provider, clock, rounds=8)
    assert ready(made) == ["1", "1"]
    assert (row(made).state, row(made).reason) == (State.UPDATING, "over_quota")
    Quota.objects.filter(org=org).update(replicas=4)  # exactly what runs: the old makes place, one by one
    round_of([made, other], provider, clock, rounds=12)
    assert ready(made) == ["2", "2"]


def test_a_region_that_is_given_up_in_the_middle_of_an_update_takes_nothing_away(
    provider: FakeProvider, clock: Clock
) -> None:
    org = make.org()
    made = half_way(org, provider, clock)
    Quota.objects.create(org=org, regions=["elsewhere"])
    round_of([made], provider, clock, rounds=8)
    assert ready(made) == ["1", "1"]
    assert row(made).reason == "region_not_allowed"


def test_an_update_to_hardware_that_is_full_takes_nothing_away(provider: FakeProvider, clock: Clock) -> None:
    """What the old ones hold elsewhere is no help there."""
    made = half_way(make.org(), provider, clock)
    Revision.objects.for_org(made.org_id).filter(deployment=made, number=2).update(tier="gone", memory=GIB)
    round_of([made], provider, clock, rounds=8)
    assert ready(made) == ["1", "1"]
    assert (row(made).state, row(made).reason) == (State.UPDATING, "no_capacity")
    assert "goes on serving" in row(made).message


def test_the_more_important_takes_the_place_of_the_less_important_of_its_owner(
    provider: FakeProvider, clock: Clock
) -> None:
    org = make.org()
    low, theirs, stranger = big(org, 7, priority=-1), big(make.org(), 7), big(make.org(), 7)
    round_of([low, theirs], provider, clock)
    round_of([stranger], provider, clock)
    assert states([low, theirs, stranger]) == [State.READY, State.READY, State.QUEUED]
    high = big(org, 7, priority=5)
    round_of([high, low, theirs, stranger], provider, clock, rounds=8)
    assert states([high, low, theirs, stranger]) == [State.READY, State.QUEUED, State.READY, State.QUEUED]
    assert all(drain > 0 for name, drain in provider.stops if name.startswith(str(low.pk)))  # what ran was finished
    delete(row(high), None)
    round_of([stranger, high, low], provider, clock, rounds=6)
    assert states([stranger, low]) == [State.READY, State.QUEUED]  # it waited longer


def test_nobody_makes_room_for_another_organisation(provider: FakeProvider, clock: Clock) -> None:
    low, high = big(make.org(), 10, priority=-100), big(make.org(), 10, priority=100)
    round_of([low, high, low, high], provider, clock)
    assert states([low, high]) == [State.READY, State.QUEUED]


@pytest.mark.threat("E4")
def test_gpus_are_given_whole_and_scrubbed_between_organisations(provider: FakeProvider, clock: Clock) -> None:
    provider.devices = (Device("GPU-0", 24 * GIB), Device("GPU-1", 24 * GIB))
    mine, theirs = make.org(), make.org()
    one, two = big(mine), big(theirs)
    Revision.objects.update(gpus=1)
    round_of([one, two], provider, clock)
    given = dict(Replica.objects.values_list("deployment_id", "devices"))
    assert sorted([*given[one.pk], *given[two.pk]]) == ["GPU-0", "GPU-1"]
    spec = provider.specs[f"{one.pk}-1-0-1"]
    assert (spec.devices, spec.gpus, spec.memory_limit) == (tuple(given[one.pk]), 1, None)
    third = big(theirs)
    Revision.objects.update(gpus=1)
    round_of([third], provider, clock)
    assert row(third).state == State.QUEUED
    assert "All devices of this tier are in use" in row(third).message
    delete(row(one), None)
    round_of([one, third], provider, clock)
    last = Replica.objects.get(deployment=third)
    assert (last.devices, last.scrub) == (given[one.pk], True)
    assert provider.specs[last.name].scrub


def test_scaling_asks_within_the_bounds_and_only_the_youngest_scaler_is_heard(
    provider: FakeProvider, clock: Clock
) -> None:
    deployment = settle(queued(), provider, clock, State.READY)
    ask = replicas.set_desired_replicas
    assert ask(deployment.pk, 3, fence=1, reason="load") == 1  # it may not be scaled
    update(row(deployment), None, min_replicas=0, max_replicas=2)
    assert ask(deployment.pk, 3, fence=5, reason="load") == 2
    assert ask(deployment.pk, 1, fence=4, reason="load") is None
    round_of([deployment], provider, clock)
    assert Replica.objects.filter(ended_at=None, phase="ready").count() == 2
    assert ask(deployment.pk, 0, fence=5, reason="idle") == 0
    settle(row(deployment), provider, clock, State.ASLEEP)
    assert not any(each.alive for each in provider.observe_all())
    assert ask(deployment.pk, 1, fence=6, reason="load") == 1
    settle(row(deployment), provider, clock, State.READY)


def test_replicas_are_started_only_in_regions_that_the_organisation_allows(
    provider: FakeProvider, clock: Clock
) -> None:
    owner = make.member(make.org(), "owner")
    address = f"/api/v1/orgs/{owner.org.slug}/capacity"
    assert (
        make.client(make.member(owner.org, "admin").user)
        .patch(address, {"regions": []}, "application/json")
        .status_code
        == 403
    )
    answer = make.client(owner.user).patch(address, {"regions": ["eu-north"]}, "application/json")
    assert answer.json()["quota"]["regions"] == ["eu-north"]
    files = make.artefact(make.version(make.model(owner.org, "small")))
    for region in (None, "us-east"):
        provider.region = region
        with pytest.raises(ApiError) as refused:
            deploy(owner.org, owner.user, version=files.version, provider=provider)
        assert refused.value.code == "region_not_allowed"
        assert "(eu-north)" in refused.value.message
    provider.region = "eu-north"
    made = deploy(owner.org, owner.user, version=files.version, provider=provider)
    settle(made, provider, clock, State.READY)
    make.client(owner.user).patch(address, {"regions": ["us-east"]}, "application/json")
    look(made, provider, clock)
    assert row(made).state == State.READY  # what runs goes on
    provider.vanish(f"{made.pk}-1-0-1")
    look(made, provider, clock)
    assert (row(made).state, row(made).reason) == (State.QUEUED, "region_not_allowed")
    make.client(owner.user).patch(address, {"regions": None}, "application/json")
    settle(made, provider, clock, State.READY)
