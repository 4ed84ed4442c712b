"""Reading what a decision depends on, and writing down what was seen."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from django.db.models import Q, QuerySet, Sum

from berth.compute.provider import ObservedReplica
from berth.deployments.capacity import standing, worth_giving_up
from berth.deployments.course import beside_base
from berth.deployments.models import Deployment, Replica, Revision, Rollout
from berth.deployments.planning import Ground, Room
from berth.deployments.replicas import wanted_replicas
from berth.deployments.rollouts import numbers_alike
from berth.deployments.world import (
    TAKEN_AWAY,
    Base,
    Ended,
    Failure,
    Life,
    Merged,
    Row,
    Seen,
    Sight,
    Want,
    Wanted,
    World,
    merge,
)

_FAILED = "failed"
_BY_DEVICES = 1 << 62  # bytes: whole devices are given out, so their memory is
_LATELY = timedelta(seconds=60)  # failures of the base that still count


def living(deployment: Deployment) -> QuerySet[Replica]:
    return (
        Replica.objects.for_org(deployment.org_id)
        .filter(deployment=deployment, ended_at=None)
        .select_related("revision")
        .order_by("name")
    )


def held_memory(tier: str) -> int:
    """Bytes that replicas of all deployments hold on a tier: each as much as was planned for it."""
    rows = Replica.objects.across_orgs("the machine's memory is shared by all organisations").filter(
        ended_at=None, revision__tier=tier
    )
    return int(rows.aggregate(held=Sum("revision__memory"))["held"] or 0)


def wanted_of(deployment: Deployment, revision: Revision, rollout: Rollout | None = None) -> Wanted:
    replicas = wanted_replicas(deployment, revision)
    beside = beside_base(rollout, replicas)
    base = rollout.base if rollout is not None and beside is not None else None
    return Wanted(
        deployment_id=str(deployment.pk),
        desired=Want(deployment.desired),
        revision=revision.number,
        same=numbers_alike(deployment, revision),
        replicas=replicas,
        memory=revision.memory,
        sleep_after=deployment.sleep_after_seconds,
        base=None if base is None or beside is None else _base(deployment, base, beside.base),
        beside=None if base is None or beside is None else beside.new,
        shadow=base is not None and beside is not None and beside.shadow,
        comparing=beside.why if base is not None and beside is not None else "",
    )


def _base(deployment: Deployment, base: Revision, replicas: int) -> Base:
    return Base(base.number, numbers_alike(deployment, base), replicas, base.memory)


def look(
    deployment: Deployment,
    revision: Revision,
    wanted: Wanted,
    rows: Sequence[Replica],
    observed: Sequence[ObservedReplica],
    room: Room,
    now: datetime,
    last_request_at: float | None,
    ground: Ground,
) -> tuple[Wanted, World]:
    """The world as it is at `now`, and what is wanted as far as it is allowed there. Failures that were just seen are
    counted in."""
    merged = merge([_row(row) for row in rows], [sight_of(each) for each in observed], now.timestamp())
    base_failures, base_last = _base_failures(deployment, wanted, merged, now)
    failures, last = _failures(deployment, wanted, merged, now)
    gone = {ended.name for ended in merged.ended}
    freed = sum(row.revision.memory for row in rows if row.name in gone and row.revision.tier == revision.tier)
    unheld = min(room.usable - held_memory(revision.tier) + freed, room.free)
    place = standing(
        deployment,
        revision,
        _BY_DEVICES if ground.devices else unheld,
        ground,
        replacing=bool(merged.ended) or any(_goes(each, wanted) for each in merged.seen),
    )
    old = [row for row in rows if row.name not in gone and row.revision.number not in wanted.same]
    worth = worth_giving_up(deployment, revision, old, ground, place.places_reason if place.places == 0 else "")
    world = World(
        now=now.timestamp(),
        state=deployment.state,
        merged=merged,
        room=place.room,
        attempts=_attempts(deployment, revision.number),
        failures=failures,
        last_failure=last,
        reason=deployment.reason,
        sleeping=deployment.sleeping,
        last_request_at=last_request_at,
        woken_at=deployment.woken_at.timestamp() if deployment.woken_at else None,
        places=place.places,
        places_reason=place.places_reason,
        worth=worth,
        queue=place.queue,
        base_attempts=_attempts(deployment, wanted.base.revision) if wanted.base else {},
        base_failures=base_failures,
        base_last_failure=base_last,
    )
    return msgspec.structs.replace(wanted, allowed=place.allowed), world


def _goes(seen: Seen, wanted: Wanted) -> bool:
    """Whether it makes place for another of the same deployment."""
    return seen.life is Life.LEAVING or seen.revision not in wanted.same


def sight_of(replica: ObservedReplica) -> Sight:
    return Sight(
        name=replica.name,
        phase=replica.phase.value,
        alive=replica.alive,
        ready=replica.ready,
        updated_at=replica.updated_at,
        reason=replica.reason,
        message=replica.message,
    )


def write_seen(row: Replica, seen: ObservedReplica | None, now: datetime) -> list[str]:
    """Copies what the provider shows into a living replica's row, unsaved. Returns the fields that changed."""
    if seen is None or not seen.alive:
        return []
    values: dict[str, Any] = {
        "phases": [msgspec.to_builtins(timing) for timing in seen.phases],
        "host": seen.host or "",
        "port": seen.port,
        # Why a living one does not get on: what it waits for, or who takes it away.
        "reason": (seen.reason or "")[:64],
        "message": (seen.message or "")[:400],
    }
    if row.retired_at is None:  # one that is leaving stays "draining", whatever it says of itself
        values["phase"] = seen.phase.value
        if seen.ready and row.ready_at is None:
            values["ready_at"] = _became_ready(seen) or now
    return set_fields(row, values)


def write_ended(row: Replica, ended: Ended, seen: ObservedReplica | None, now: datetime) -> list[str]:
    values: dict[str, Any] = {
        "phase": _FAILED if ended.failed else "stopped",
        "reason": ended.reason,
        "message": ended.message,
        "ended_at": now,
        "port": None,
    }
    if seen is not None:
        values["phases"] = [msgspec.to_builtins(timing) for timing in seen.phases]
    return set_fields(row, values)


def set_fields(row: Replica, values: Mapping[str, Any]) -> list[str]:
    changed = [name for name, value in values.items() if getattr(row, name) != value]
    for name in changed:
        setattr(row, name, values[name])
    return changed


def _became_ready(seen: ObservedReplica) -> datetime | None:
    begun = [timing.started_at for timing in seen.phases if timing.phase.value == "ready"]
    return datetime.fromtimestamp(begun[0], UTC) if begun else None


def _row(row: Replica) -> Row:
    return Row(
        name=row.name,
        revision=row.revision.number,
        ordinal=row.ordinal,
        memory=row.revision.memory,
        started_at=row.started_at.timestamp(),
        ready_at=row.ready_at.timestamp() if row.ready_at else None,
        retired_at=row.retired_at.timestamp() if row.retired_at else None,
    )


def _failures(deployment: Deployment, wanted: Wanted, merged: Merged, now: datetime) -> tuple[int, Failure | None]:
    failures, last = deployment.failures, _last_failure(deployment, wanted.same) if deployment.failures else None
    for ended in merged.ended:
        if ended.counts and ended.revision in wanted.same:
            failures = 1 if ended.stable else failures + 1
            last = Failure(now.timestamp(), ended.reason, ended.message)
    return failures, last


def _base_failures(deployment: Deployment, wanted: Wanted, merged: Merged, now: datetime) -> tuple[int, Failure | None]:
    """How often the base failed lately: it was good, so what is longer ago does not count."""
    if wanted.base is None:
        return 0, None
    rows = _failed(deployment, wanted.base.same).filter(ended_at__gt=now - _LATELY)
    count, last = rows.count(), _last_failure(deployment, wanted.base.same)
    for ended in merged.ended:
        if ended.counts and ended.revision in wanted.base.same:
            count, last = count + 1, Failure(now.timestamp(), ended.reason, ended.message)
    return count, last


def _failed(deployment: Deployment, numbers: Collection[int]) -> QuerySet[Replica]:
    return (
        Replica.objects.for_org(deployment.org_id)
        .filter(deployment=deployment, phase=_FAILED, revision__number__in=numbers)
        .exclude(Q(ended_at=None) | Q(reason__in=TAKEN_AWAY))
    )


def _last_failure(deployment: Deployment, numbers: Collection[int]) -> Failure | None:
    row = _failed(deployment, numbers).order_by("-ended_at").first()
    if row is None or row.ended_at is None:
        return None
    return Failure(row.ended_at.timestamp(), row.reason, row.message)


def _attempts(deployment: Deployment, revision: int) -> dict[int, int]:
    """How often each place was tried, from the last part of the names."""
    attempts: dict[int, int] = {}
    names = (
        Replica.objects.for_org(deployment.org_id)
        .filter(Q(deployment=deployment) & Q(revision__number=revision))
        .values_list("ordinal", "name")
    )
    for ordinal, name in names:
        attempts[ordinal] = max(attempts.get(ordinal, 0), int(name.rpartition("-")[2]))
    return attempts
