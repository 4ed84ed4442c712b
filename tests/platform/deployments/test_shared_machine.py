"""Many deployments on one machine: memory is shared, nobody starts twice, and what belongs to nobody ends."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connection

from berth.compute.providers.fake import FakeProvider
from berth.deployments import sweep
from berth.deployments.models import Replica, Revision, State
from berth.deployments.reconcile import reconcile
from berth.deployments.services import pause, update
from berth.orgs.tenancy import new_id
from tests import make
from tests.platform.deployments.conftest import Clock
from tests.platform.deployments.looks import look, queued, row, settle

pytestmark = pytest.mark.django_db


def test_memory_is_shared_and_who_comes_later_waits(provider: FakeProvider, clock: Clock) -> None:
    provider.memory_bytes = 4 << 30  # of which 3 GiB are for replicas
    first = queued()
    second = queued()
    for deployment in (first, second):
        Revision.objects.for_org(deployment.org_id).filter(deployment=deployment).update(memory=2 << 30)
    settle(first, provider, clock, State.READY)
    look(second, provider, clock)
    waiting = row(second)
    assert (waiting.state, waiting.reason) == (State.QUEUED, "no_capacity")
    assert len(provider.starts) == 1
    pause(first, None)
    settle(first, provider, clock, State.PAUSED)
    settle(second, provider, clock, State.READY)


def test_room_that_something_else_took_is_waited_for_without_leaving_rows(provider: FakeProvider, clock: Clock) -> None:
    deployment = queued()
    provider.full = True
    for _ in range(5):
        look(deployment, provider, clock)
        clock.forward(3)
    waiting = row(deployment)
    assert (waiting.state, waiting.reason, waiting.failures) == (State.QUEUED, "no_capacity", 0)
    assert not Replica.objects.for_org(deployment.org_id).exists()
    provider.full = False
    settle(deployment, provider, clock, State.READY)


def test_an_update_that_finds_no_room_says_so_and_the_old_serves(provider: FakeProvider, clock: Clock) -> None:
    deployment = queued()
    settle(deployment, provider, clock, State.READY)
    provider.full = True
    update(deployment, None, needs={"context_length": 512}, provider=provider)
    look(deployment, provider, clock)
    assert (row(deployment).state, row(deployment).reason) == (State.UPDATING, "no_capacity")
    assert Replica.objects.for_org(deployment.org_id).get(ended_at=None).phase == "ready"


def test_the_sweep_ends_what_belongs_to_nobody(provider: FakeProvider, clock: Clock) -> None:
    deployment = queued()
    settle(deployment, provider, clock, State.READY)
    name = f"{deployment.pk}-1-0-1"
    for stray in ("stray", str(new_id())):
        provider.start(_spec_like(provider, name, stray, f"{stray}-1-0-1"), "x")
    sweep.notice(provider, clock())
    assert [each.name for each in provider.observe_all() if each.alive] == [name]
    sweep.notice(provider, clock())
    assert [each.name for each in provider.observe_all()] == [name]


def test_an_orphan_of_a_living_deployment_ends_at_the_next_look(provider: FakeProvider, clock: Clock) -> None:
    deployment = queued()
    settle(deployment, provider, clock, State.READY)
    provider.start(_spec_like(provider, f"{deployment.pk}-1-0-1", str(deployment.pk), "late"), "x")
    assert sweep.notice(provider, clock()) == [deployment.pk]
    look(deployment, provider, clock)
    assert [each.name for each in provider.observe_all() if each.alive] == [f"{deployment.pk}-1-0-1"]


def _spec_like(provider: FakeProvider, name: str, deployment_id: str, replica: str) -> Any:
    import msgspec

    return msgspec.structs.replace(provider.specs[name], deployment_id=deployment_id, replica=replica)


@pytest.mark.django_db(transaction=True)
def test_many_reconcilers_at_once_start_each_replica_once_and_never_overcommit(
    provider: FakeProvider, clock: Clock
) -> None:
    """Eight threads, three deployments, room for two."""
    provider.memory_bytes = 4 << 30
    org = make.org()
    deployments = [queued(org) for _ in range(3)]
    Revision.objects.for_org(org).update(memory=(3 << 30) // 2)
    barrier = threading.Barrier(8)

    def work() -> None:
        barrier.wait(10)
        try:
            for deployment in deployments:
                reconcile(deployment.pk, provider, clock)
        finally:
            connection.close()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(row(deployment).state for deployment in deployments) == ["queued", "starting", "starting"]
    assert len(provider.starts) == len(set(provider.starts)) == 2
