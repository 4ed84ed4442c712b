"""Planned beside measured memory, as agents report it."""

from __future__ import annotations

import pytest

from berth.compute.launch import EngineMetrics, Phase
from berth.compute.providers.fake import FakeProvider
from berth.deployments.checks import check_plans
from berth.deployments.corrections import learnt
from berth.deployments.models import PlanCheck, State
from tests import make
from tests.platform.deployments.conftest import Clock
from tests.platform.deployments.looks import queued, settle

pytestmark = pytest.mark.django_db


def test_the_most_that_a_replica_held_stands_beside_what_was_planned(provider: FakeProvider, clock: Clock) -> None:
    owner = make.member(make.org(), "owner")
    deployment = settle(queued(owner.org), provider, clock, State.READY)
    name = f"{deployment.pk}-1-0-1"
    assert check_plans(provider, clock()) == 0  # its engine does not say
    for memory, most in ((300_000_000, 300_000_000), (420_000_000, 420_000_000), (350_000_000, 420_000_000)):
        provider.advance(name, Phase.READY, metrics=EngineMetrics(memory=memory))
        clock.forward(60)
        assert check_plans(provider, clock()) == 1
        check = PlanCheck.objects.for_org(owner.org).get()
        assert (check.metric, check.planned, check.measured, check.count) == ("memory", 400_000_000, most, 1)
        assert check.window_end == clock()
    assert learnt(clock()) == {}  # memory corrects no speed
    address = f"/api/v1/orgs/{owner.org.slug}/deployments/{deployment.name}"
    (shown,) = make.client(owner.user).get(address).json()["planned_against_measured"]
    assert (shown["metric"], shown["unit"], shown["measured"], shown["enough"]) == (
        "memory",
        "bytes",
        420_000_000,
        True,
    )


def test_what_still_loads_holds_not_everything(provider: FakeProvider, clock: Clock) -> None:
    deployment = queued()
    settle(deployment, provider, clock, State.READY)
    provider.advance(f"{deployment.pk}-1-0-1", Phase.DRAINING, metrics=EngineMetrics(memory=5))
    assert check_plans(provider, clock()) == 0
