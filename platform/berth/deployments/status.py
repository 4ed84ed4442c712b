"""Where a deployment stands, for people who watch it: how far each start is, what it waits for, what was decided, what was measured."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from berth.deployments import capacity
from berth.deployments.line import position
from berth.deployments.models import Deployment, Event, Replica, Revision
from berth.deployments.outlook import PHASES, Usual, upcoming, usual
from berth.deployments.preparations import latest_preparation, progress_of
from berth.deployments.replicas import bounds_of, wanted_replicas
from berth.deployments.rollouts import latest_rollout
from berth.deployments.scaling_services import latest_decision
from berth.deployments.selectors import checks_of
from berth.deployments.world import Queue

SCALED: Final = "scaled"
DECISIONS: Final = 5  # latest changes of the number of replicas that are shown


def status_of(deployment: Deployment) -> dict[str, Any]:
    """As `StatusOut` shows it. The deployment comes from `selectors.deployments_of`."""
    revision = deployment.revision
    if revision is None:  # left out by every query
        raise ValueError("a deployment without a revision")
    living = list(_living(deployment))
    times, bounds = usual(revision), bounds_of(deployment, revision)
    coming = upcoming(deployment, living, times)
    waits = queue_of(deployment, revision)
    return {
        "state": deployment.state,
        "state_since": deployment.state_since,
        "reason": deployment.reason,
        "message": deployment.message,
        "next": None if coming is None else msgspec.to_builtins(coming),
        "queue": None if waits is None else msgspec.to_builtins(waits),
        "starts": [start_of(replica, times) for replica in living if replica.phase in PHASES],
        "ready": sum(replica.phase == "ready" for replica in living),
        "wanted": wanted_replicas(deployment, revision),
        "least": bounds.least,
        "most": bounds.most,
        "preparation": progress_of(latest_preparation(deployment)),
        "rollout": latest_rollout(deployment),
        "scaling": [{"at": event.created_at, **event.data} for event in _decisions(deployment)],
        "decision": latest_decision(deployment),
        "planned_against_measured": checks_of(revision),
    }


def queue_of(deployment: Deployment, revision: Revision) -> Queue | None:
    """Where it stands in the queue for room. None: it does not wait."""
    if deployment.waiting_since is None:
        return None
    line = capacity.line_of(revision.tier)
    place = position(line, str(deployment.pk))
    return Queue(place, max(len(line), place), capacity.usual_wait(revision.tier))


def start_of(replica: Replica, times: Usual) -> dict[str, Any]:
    """How far a start is. `percent` only where the size of the work is known."""
    running = replica.phases[-1] if replica.phases else None
    begun = running["started_at"] if running else replica.started_at.timestamp()
    done, total = (running.get("done"), running.get("total")) if running else (None, None)
    following = PHASES[PHASES.index(replica.phase) :]
    return {
        "replica": replica.name,
        "revision": replica.revision.number,
        "phase": replica.phase,
        "phase_since": datetime.fromtimestamp(begun, UTC),
        "done": done,
        "total": total,
        "percent": min(100, 100 * done // total) if done is not None and total else None,
        "usual_seconds": times.seconds.get(replica.phase),
        "usually_ready_in_seconds": _left(begun, following, times),
    }


def _left(begun: float, following: Sequence[str], times: Usual) -> float:
    """Of the present phase what is usually left, and all of those after it."""
    now, *rest = (times.seconds.get(phase, 0.0) for phase in following)
    return round(max(0.0, now - (time.time() - begun)) + sum(rest), 1)


def _living(deployment: Deployment) -> Iterable[Replica]:
    rows = Replica.objects.for_org(deployment.org_id).filter(deployment=deployment, ended_at=None)
    return rows.select_related("revision").order_by("ordinal", "name")


def _decisions(deployment: Deployment) -> Iterable[Event]:
    rows = Event.objects.for_org(deployment.org_id).filter(deployment=deployment, kind=SCALED)
    return rows.order_by("-id")[:DECISIONS]
