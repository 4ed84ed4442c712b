"""A look at an adapter that stands beside its base: it has no replica of its own to start, and is as its base's replicas are."""

from __future__ import annotations

import functools
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction

from berth.deployments import kick, lease
from berth.deployments.adapters import number_in
from berth.deployments.decision import NEVER, Decision
from berth.deployments.models import Deployment, Desired, Replica, Status
from berth.deployments.rollouts import latest_rollout
from berth.deployments.states import MOVES, State
from berth.deployments.writing import write_state
from berth.outbox.services import announce

SOON: Final = timedelta(seconds=1)
SETTLED: Final = timedelta(seconds=30)  # its base tells it what happens; this is for a word that was lost
NOT_LOADED: Final = "adapter_not_loaded"


def look(deployment: Deployment, now: datetime) -> datetime:
    """In a transaction of its own. Returns when to look again."""
    with transaction.atomic():
        row = lease.locked(deployment)
        if row is None:
            return now
        base = row.beside
        if base is None:  # asked only of those that have one
            raise ValueError("an adapter without its base")
        state, reason, message = situation(row, base)
        if state not in MOVES[State(row.state)] and state != row.state:
            state, reason, message = State.STARTING, "", ""  # what slept or failed starts before it serves
        if write_state(row, Decision((), state, reason, message, now.timestamp(), 0), now):
            announce("routes")
    if state == State.DELETED:
        return now + timedelta(seconds=NEVER)
    return now + (SETTLED if state == row.state and state in (State.READY, State.PAUSED, State.ASLEEP) else SOON)


def situation(row: Deployment, base: Deployment) -> tuple[State, str, str]:
    """State, stable code and sentence."""
    if row.desired == Desired.DELETED or base.state == State.DELETED:
        return State.DELETED, "", ""
    if row.desired == Desired.PAUSED:
        return State.PAUSED, "", ""
    if base.desired == Desired.PAUSED:
        return State.PAUSED, "base_paused", f"{base.name}, whose replicas serve it, is paused."
    replicas = serving(base)
    answering = [replica for replica in replicas if number_in(replica.revision, row.pk) is not None]
    wanted = base.revision is not None and number_in(base.revision, row.pk) is not None
    if not wanted:
        return State.FAILED, NOT_LOADED, _why_not(base)
    if answering:
        return (State.READY if len(answering) == len(replicas) else State.UPDATING), "", ""
    if base.state in (State.FAILED, State.QUEUED, State.DEGRADED):
        return State(base.state if base.state != State.DEGRADED else State.STARTING), base.reason, base.message
    if base.sleeping:
        return State.ASLEEP, "", ""
    return State.STARTING, "", ""


def serving(base: Deployment) -> list[Replica]:
    rows = Replica.objects.for_org(base.org_id).filter(deployment=base, ended_at=None, retired_at=None, phase="ready")
    return list(rows.select_related("revision").order_by("ordinal", "name"))


def _why_not(base: Deployment) -> str:
    rollout = latest_rollout(base)
    told = rollout.message if rollout is not None and rollout.status == Status.ROLLED_BACK else ""
    return f"{base.name} went back to a revision without this adapter. {told} Resume the adapter to try again.".replace(
        "  ", " "
    )


def follow(base: Deployment) -> None:
    """Something about the base has changed that the adapters beside it may share."""
    transaction.on_commit(functools.partial(_look_at_those_beside, base))


def _look_at_those_beside(base: Deployment) -> None:
    for row in Deployment.objects.for_org(base.org_id).filter(beside=base).exclude(state=State.DELETED):
        kick.kick(row)
