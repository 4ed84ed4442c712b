"""Looks of the reconciler at deployments on real tables, one at a time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from berth.compute.launch import Phase
from berth.compute.providers.fake import FakeProvider
from berth.deployments.models import Deployment, Replica, Revision, State
from berth.deployments.reconcile import reconcile
from tests import make
from tests.platform.deployments.conftest import Clock


def row(deployment: Deployment) -> Deployment:
    return Deployment.objects.for_org(deployment.org_id).get(pk=deployment.pk)


def queued(organisation: Any = None, **fields: Any) -> Deployment:
    """A deployment that nobody has looked at."""
    made = make.deployment(organisation or make.org(), state=State.QUEUED, **fields)
    Revision.objects.for_org(made.org_id).filter(deployment=made).update(tier="cpu-fake")
    made.refresh_from_db()
    return due(made)


def due(deployment: Deployment) -> Deployment:
    Deployment.objects.for_org(deployment.org_id).filter(pk=deployment.pk).update(
        check_at=make.NOON - timedelta(days=1)
    )
    return deployment


def look(deployment: Deployment, provider: FakeProvider, clock: Clock) -> None:
    """One look, whether due or not."""
    due(deployment)
    reconcile(deployment.pk, provider, clock)


def settle(deployment: Deployment, provider: FakeProvider, clock: Clock, state: str) -> Deployment:
    for _ in range(80):
        look(deployment, provider, clock)
        for replica in provider.observe_all():
            if replica.alive and replica.phase is Phase.DRAINING:
                provider.advance(replica.name, Phase.STOPPED)
            elif replica.alive and replica.phase is not Phase.READY:
                provider.ready(replica.name)
        clock.forward(0.5)
        if row(deployment).state == state and not Replica.objects.for_org(deployment.org_id).filter(
            deployment=deployment, ended_at=None, phase="draining"
        ):
            return row(deployment)
    raise AssertionError(f"still {row(deployment).state}: {row(deployment).message}")
