"""Room: what a deployment may take of it now, whose turn it is, and what a quota leaves. Reads, within the reconciler's transaction."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Any, Final

import msgspec
from django.db import transaction
from django.db.models import Count, F, Max, Q, Sum

from berth.deployments import kick
from berth.deployments.devices import Picked, pick
from berth.deployments.line import Holder, Waiting, in_line, left_for, making_room, position
from berth.deployments.models import OPEN, Deployment, Desired, Quota, Replica, Revision
from berth.deployments.planning import Ground
from berth.deployments.quotas import REGION_NOT_ALLOWED, in_region
from berth.deployments.world import Queue

OVER_QUOTA: Final = "over_quota"
_WHY = "room is shared by all organisations"
_TOLD: Final = 5  # of those who wait, when something was given back


class Standing(msgspec.Struct, frozen=True):
    room: int  # bytes it may take
    queue: Queue | None = None
    places: int | None = None  # replicas it may start by quota and devices; None: no limit
    places_reason: str = ""
    allowed: int | None = None  # replicas it may keep; None: all it wants


class Used(msgspec.Struct, frozen=True):
    """What an organisation's replicas hold."""

    replicas: int
    gpus: int
    memory: int  # bytes


def standing(row: Deployment, revision: Revision, room: int, ground: Ground, *, replacing: bool) -> Standing:
    """`room`: bytes on the revision's tier that no replica holds. `replacing`: a replica of its own has just ended or is ending, so
    the place is still its own, unless more important ones of its owner wait."""
    line = in_line(_waiting(revision.tier))
    places, reason = _places(row, revision, ground)
    if not line:
        return Standing(room, None, places, reason)
    me = str(row.pk)
    before_me = _more_important(line, row)
    keeps = replacing and before_me is None
    allowed = None if before_me is None else _allowed(before_me, row, revision, room)
    queue = Queue(position(line, me), max(len(line), position(line, me)), usual_wait(revision.tier))
    return Standing(room if keeps else left_for(line, me, room), queue, places, reason, allowed)


def worth_giving_up(
    row: Deployment, revision: Revision, old: Sequence[Replica], ground: Ground, reason: str
) -> frozenset[str]:
    """Names of those of `old` whose end would bring a place for a replica of `revision`. None of them if even all together would not:
    then others hold what is missing, and nothing that serves is given up for it. `reason`: what limits places now."""
    quota = Quota.objects.filter(org=row.org_id).first()
    here = [each for each in old if each.revision.tier == revision.tier]
    if quota is not None:
        used, freed = used_by(row.org_id), [each.revision for each in old]
        left = Used(
            used.replicas - len(old), used.gpus - sum(e.gpus for e in freed), used.memory - sum(e.memory for e in freed)
        )
        if not in_region(ground.region, quota.regions) or 0 in _left(quota, left, revision):
            return frozenset()
    if ground.devices:
        taken = taken_devices() - {device for each in here for device in each.devices}
        if sum(each not in taken for each in ground.devices) < devices_for(revision):
            return frozenset()
    return frozenset(each.name for each in (old if reason == OVER_QUOTA else here))


def wait_begins(row: Deployment, revision: Revision, room: int, now: datetime) -> datetime:
    """Since when it waits: from now on. If others of its owner make room for it, it takes the place that they have held."""
    holders = _holders(row.org_id, revision.tier)
    given = making_room(revision.memory - max(0, room), holders, row.priority)
    if not given:
        return now
    held = [holder.since for holder in holders if holder.deployment in given]
    transaction.on_commit(functools.partial(_look_at, [*given]))
    return min(now, datetime.fromtimestamp(min(held), UTC))


def given_back(tier: str) -> None:
    """A replica on this tier ended: who waits first looks first. In the transaction that writes it down."""
    line = in_line(_waiting(tier))
    if line:
        transaction.on_commit(functools.partial(_look_at, [one.deployment for one in line[:_TOLD]]))


def pick_devices(org_id: Any, revision: Revision, devices: Sequence[str]) -> Picked | None:
    """Under the lock by which room is handed out."""
    if not devices:
        return Picked((), False)
    return pick(devices, taken_devices(), _last_owners(devices), str(org_id), devices_for(revision))


def devices_for(revision: Revision) -> int:
    """Where devices are given out one by one, a replica has at least one for itself."""
    return max(1, revision.gpus)


def taken_devices() -> set[str]:
    rows = Replica.objects.across_orgs(_WHY).filter(ended_at=None).exclude(devices=[])
    return {device for devices in rows.values_list("devices", flat=True) for device in devices}


def used_by(org_id: Any) -> Used:
    rows = Replica.objects.for_org(org_id).filter(ended_at=None)
    sums = rows.aggregate(count=Count("id"), gpus=Sum("revision__gpus"), memory=Sum("revision__memory"))
    return Used(sums["count"], sums["gpus"] or 0, sums["memory"] or 0)


def usual_wait(tier: str) -> float | None:
    """Seconds that waits for room on this tier took, in the median of the latest of each deployment."""
    rows = Deployment.objects.across_orgs(_WHY).filter(revision__tier=tier).exclude(last_wait_seconds=None)
    latest = rows.order_by("-id").values_list("last_wait_seconds", flat=True)[:50]
    waits = [seconds for seconds in latest if seconds is not None]
    return median(waits) if waits else None


def line_of(tier: str) -> list[Waiting]:
    return in_line(_waiting(tier))


def _waiting(tier: str) -> list[Waiting]:
    rows = (
        Deployment.objects.across_orgs(_WHY)
        .filter(revision__tier=tier, desired=Desired.RUNNING)
        .exclude(Q(waiting_since=None) | Q(reason__in=(OVER_QUOTA, REGION_NOT_ALLOWED)))
        .values_list("id", "org_id", "priority", "waiting_since", "revision__memory")
    )
    return [
        Waiting(str(pk), str(org), priority, at.timestamp(), memory)
        for pk, org, priority, at, memory in rows
        if at is not None
    ]


def _holders(org_id: Any, tier: str) -> list[Holder]:
    """Of the organisation. Deployments in the middle of a rollout are left in peace."""
    rows = (
        Replica.objects.for_org(org_id)
        .filter(ended_at=None, retired_at=None, revision__tier=tier, revision=F("deployment__revision"))
        .exclude(deployment__rollouts__status__in=OPEN)
        .values("deployment_id", "deployment__priority", "revision__memory")
        .annotate(replicas=Count("id"), since=Max("started_at"))
    )
    return [
        Holder(
            str(each["deployment_id"]),
            each["deployment__priority"],
            each["since"].timestamp(),
            each["revision__memory"],
            each["replicas"],
        )
        for each in rows
    ]


def _more_important(line: Iterable[Waiting], row: Deployment) -> Waiting | None:
    """The first in line of its owner's that comes before it by priority."""
    org, me = str(row.org_id), str(row.pk)
    ours = (one for one in line if one.org == org and one.deployment != me and one.priority > row.priority)
    return next(ours, None)


def _allowed(first: Waiting, row: Deployment, revision: Revision, room: int) -> int | None:
    leaving = Replica.objects.for_org(row.org_id).filter(ended_at=None, revision__tier=revision.tier)
    coming = int(leaving.exclude(retired_at=None).aggregate(held=Sum("revision__memory"))["held"] or 0)
    holders = _holders(row.org_id, revision.tier)
    given = making_room(first.memory - max(0, room) - coming, holders, first.priority).get(str(row.pk), 0)
    mine = next((holder.replicas for holder in holders if holder.deployment == str(row.pk)), 0)
    return mine - given if given else None


def _places(row: Deployment, revision: Revision, ground: Ground) -> tuple[int | None, str]:
    limits: list[tuple[int, str]] = []
    devices = ground.devices
    quota = Quota.objects.filter(org=row.org_id).first()
    if quota is not None and not in_region(ground.region, quota.regions):
        return 0, REGION_NOT_ALLOWED
    if quota is not None:
        limits += [(left, OVER_QUOTA) for left in _left(quota, used_by(row.org_id), revision)]
    if devices:
        taken = taken_devices()
        limits.append((sum(each not in taken for each in devices) // devices_for(revision), "no_capacity"))
    return min(limits) if limits else (None, "")


def _left(quota: Quota, used: Used, revision: Revision) -> list[int]:
    """Replicas that each limit still allows."""
    found = []
    if quota.replicas is not None:
        found.append(quota.replicas - used.replicas)
    if quota.gpus is not None and revision.gpus:
        found.append((quota.gpus - used.gpus) // revision.gpus)
    if quota.memory is not None:
        found.append((quota.memory - used.memory) // max(1, revision.memory))
    return [max(0, left) for left in found]


def _last_owners(devices: Sequence[str]) -> dict[str, str]:
    owners: dict[str, str] = {}
    rows = Replica.objects.across_orgs(_WHY)
    for device in devices:
        last = rows.filter(devices__contains=[device]).order_by("-id").values_list("org_id", flat=True).first()
        if last is not None:
            owners[device] = str(last)
    return owners


def _look_at(deployments: Sequence[str]) -> None:
    rows = Deployment.objects.across_orgs(_WHY).filter(pk__in=deployments)
    for row in rows:
        kick.kick(row)
