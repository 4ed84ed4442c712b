"""Planned against measured memory: the most that a replica of a revision was seen to hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime

from berth.compute.provider import ObservedReplica
from berth.deployments.measured import MEMORY
from berth.deployments.models import PlanCheck, Replica


def check_memory(observed: Iterable[ObservedReplica], now: datetime) -> int:
    """How many revisions have a figure that was written. Only replicas that answer count: one that loads does not hold everything."""
    held = {each.name: each.metrics.memory for each in observed if each.ready and each.metrics and each.metrics.memory}
    rows = Replica.objects.across_orgs("memory is measured for the replicas of all organisations")
    by_revision: dict[object, list[Replica]] = defaultdict(list)
    for replica in rows.filter(name__in=held, ended_at=None).exclude(ready_at=None).select_related("revision"):
        by_revision[replica.revision_id].append(replica)
    for replicas in by_revision.values():
        _write(replicas, float(max(held[each.name] for each in replicas)), now)
    return len(by_revision)


def _write(replicas: list[Replica], seen: float, now: datetime) -> None:
    first = replicas[0]
    checks = PlanCheck.objects.for_org(first.org_id)
    before = checks.filter(revision=first.revision, metric=MEMORY).first()
    values = {
        "planned": float(first.revision.memory),
        "measured": max(seen, before.measured if before else 0.0),
        "count": len(replicas),
        "load": 0.0,
        "window_start": before.window_start if before else min(each.ready_at or now for each in replicas),
        "window_end": now,
    }
    same = {"org_id": first.org_id, "deployment_id": first.deployment_id, "expected": None}
    checks.update_or_create(revision=first.revision, metric=MEMORY, defaults=values, create_defaults=values | same)
