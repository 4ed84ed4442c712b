"""The pass over all deployments: what it notices, whose turn it is, and that thousands at rest cost next to nothing."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from berth.compute.launch import Phase
from berth.compute.providers.fake import FakeProvider
from berth.deployments import sweep
from berth.deployments.models import Deployment, Replica, State
from berth.orgs.tenancy import new_id
from tests import make
from tests.platform.deployments.conftest import Clock
from tests.platform.deployments.looks import look, queued, row, settle

pytestmark = pytest.mark.django_db


def at_rest(provider: FakeProvider, clock: Clock, count: int) -> Any:
    """That many deployments of one organisation, each with a ready replica, that nobody has to look at."""
    owner = make.org()
    first = settle(queued(owner), provider, clock, State.READY)
    look(first, provider, clock)
    revision = row(first).revision
    seen = provider.observe_all()[0]
    later = clock() + timedelta(hours=1)
    deployments = [
        Deployment(id=new_id(), org=owner, name=f"d-{number}", state=State.READY, revision=revision, check_at=later)
        for number in range(count)
    ]
    Deployment.objects.for_org(owner).bulk_create(deployments, batch_size=1000)
    Deployment.objects.for_org(owner).update(check_at=later)
    replicas = [
        Replica(
            org=owner, deployment=each, revision=revision, name=f"{each.pk}-1-0-1", ordinal=0, phase="ready", port=9
        )
        for each in deployments
    ]
    Replica.objects.for_org(owner).bulk_create(replicas, batch_size=1000)
    provider.clone(seen.name, [(each.name, str(each.deployment_id)) for each in replicas])
    return deployments


def one_pass(provider: FakeProvider, clock: Clock) -> list[Any]:
    return [*sweep.notice(provider, clock()), *sweep.due(clock())]


def test_a_pass_asks_the_database_as_often_for_many_as_for_few(provider: FakeProvider, clock: Clock) -> None:
    at_rest(provider, clock, 3)
    with CaptureQueriesContext(
        connection,
    ) as few:
        assert one_pass(provider, clock) == []
    at_rest(provider, clock, 60)
    with CaptureQueriesContext(connection) as many:
        assert one_pass(provider, clock) == []
    assert len(many) == len(few) <= 5


@pytest.mark.slow
def test_a_pass_over_5000_at_rest_takes_less_than_2_seconds_of_cpu(provider: FakeProvider, clock: Clock) -> None:
    at_rest(provider, clock, 5000)
    began = time.process_time()
    assert one_pass(provider, clock) == []
    spent = time.process_time() - began
    print(f"one pass over 5,000 deployments at rest: {spent:.3f} s of CPU")
    assert spent < 2.0  # of this process's CPU, not of the clock on the wall


@pytest.mark.parametrize("how", ["drains", "says nothing", "is gone"])
def test_what_is_not_as_it_was_is_noticed(provider: FakeProvider, clock: Clock, how: str) -> None:
    made = at_rest(provider, clock, 2)
    name = f"{made[1].pk}-1-0-1"
    if how == "drains":
        provider.advance(name, Phase.DRAINING)
    elif how == "is gone":
        provider.vanish(name)
    else:
        clock.forward(61)
        for each in provider.observe_all():
            if each.name != name:
                provider.advance(each.name, each.phase)
    assert sweep.notice(provider, clock()) == [made[1].pk]
    assert sweep.due(clock()) == [made[1].pk]


@pytest.mark.threat("E5")
def test_organisations_take_turns_however_many_deployments_one_has(clock: Clock) -> None:
    crowd, single = make.org(), make.org()
    many = [queued(crowd) for _ in range(6)]
    one = queued(single)
    Deployment.objects.for_org(crowd).update(check_at=make.NOON - timedelta(days=2))  # long overdue, all of them
    found = sweep.due(clock(), limit=2)
    assert found[1] == one.pk
    assert found[0] in {each.pk for each in many}
