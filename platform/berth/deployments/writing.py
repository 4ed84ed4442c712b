"""Writing down what a look saw and decided: in one transaction, by whoever holds the lease."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from berth.compute.provider import ObservedReplica
from berth.deployments.capacity import given_back, pick_devices, wait_begins
from berth.deployments.decision import Decision, Retire, Start
from berth.deployments.history import record, tell
from berth.deployments.models import Deployment, Replica, Revision
from berth.deployments.states import check_move
from berth.deployments.view import set_fields, write_ended, write_seen
from berth.deployments.world import World
from berth.outbox.services import announce


def write_down(
    row: Deployment,
    revisions: Mapping[int, Revision],
    replicas: Sequence[Replica],
    observed: dict[str, ObservedReplica],
    world: World,
    decision: Decision,
    now: datetime,
    devices: Sequence[str],
) -> bool:
    """Whether something changed that others have to hear of."""
    routes = _write_replicas(row, replicas, observed, world, decision, now)
    for action in decision.actions:
        if isinstance(action, Start) and action.new:
            _reserve(row, revisions[action.revision], action, devices)
    moved = write_state(row, decision, now)
    if routes or moved:
        announce("routes")
    return routes or moved


def write_traffic(row: Deployment, traffic: dict[str, Any]) -> None:
    if row.traffic != traffic:
        row.traffic = traffic
        row.save(update_fields=["traffic"])
        announce("routes")


def _write_replicas(
    row: Deployment,
    replicas: Sequence[Replica],
    observed: dict[str, ObservedReplica],
    world: World,
    decision: Decision,
    now: datetime,
) -> bool:
    """Whether something changed that gateways have to hear of."""
    ended = {each.name: each for each in world.merged.ended}
    retired = {action.name for action in decision.actions if isinstance(action, Retire)}
    routes = False
    for replica in replicas:
        phase, serving = replica.phase, (replica.phase, replica.host, replica.port)
        seen = observed.get(replica.name)
        end = ended.get(replica.name)
        changed = write_ended(replica, end, seen, now) if end else write_seen(replica, seen, now)
        if replica.name in retired:
            changed += set_fields(replica, {"retired_at": now, "phase": "draining"})
        if changed:
            replica.save(update_fields=changed)
        if end is not None:
            given_back(replica.revision.tier)
        if replica.phase != phase:
            tell_phase(row, replica, now)
        elif {"phases", "message"} & set(changed):
            tell(row, "replica_progress", now, replica=replica.name)
        routes |= "ready" in (phase, replica.phase) and serving != (replica.phase, replica.host, replica.port)
    return routes


def tell_phase(row: Deployment, replica: Replica, now: datetime) -> None:
    told: dict[str, Any] = {"replica": replica.name, "phase": replica.phase}
    if replica.reason:
        told |= {"reason": replica.reason, "message": replica.message}
    record(row, "replica_phase", now, **told)


def write_wait(row: Deployment, revision: Revision, world: World, decision: Decision, now: datetime) -> None:
    """Since when it waits for room; how long it took, once that is over."""
    since = row.waiting_since
    if decision.waiting:
        begun = wait_begins(row, revision, world.room, since or now)
        row.waiting_since = begun if since is None else min(since, begun)
    elif since is not None:
        row.waiting_since, row.last_wait_seconds = None, max(0.0, (now - since).total_seconds())
    if row.waiting_since != since:
        row.save(update_fields=["waiting_since", "last_wait_seconds"])


def _reserve(row: Deployment, revision: Revision, start: Start, devices: Sequence[str]) -> None:
    """Records the place of a replica: from now on its memory and devices count, and whoever looks next knows of it."""
    picked = pick_devices(row.org_id, revision, devices)
    if picked is None:  # `World.places` counted them under the same lock
        raise ValueError("devices were promised that are not there")
    Replica.objects.for_org(row.org_id).create(
        org_id=row.org_id,
        deployment=row,
        revision=revision,
        name=start.name,
        ordinal=start.ordinal,
        phase="fetching",
        devices=list(picked.devices),
        scrub=picked.scrub,
    )


def write_state(row: Deployment, decision: Decision, now: datetime) -> bool:
    check_move(row.state, decision.state)
    moved = row.state != decision.state
    explained = (row.reason, row.message) != (decision.reason, decision.message)
    if moved:
        before, row.state, row.state_since = row.state, decision.state.value, now
    if moved or explained or row.failures != decision.failures:
        row.reason, row.message, row.failures = decision.reason, decision.message, decision.failures
        row.save(update_fields=["state", "state_since", "reason", "message", "failures"])
    if moved:
        told: dict[str, Any] = {"from": before, "to": decision.state.value}
        if decision.reason:
            told |= {"reason": decision.reason, "message": decision.message}
        record(row, "state_changed", now, **told)
    elif explained:
        tell(row, "explained", now, reason=decision.reason)
    return moved
