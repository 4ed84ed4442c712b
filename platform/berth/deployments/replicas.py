"""How many replicas a deployment shall have. The only door by which the number changes without a new revision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec
from django.db import transaction
from django.utils import timezone

from berth.deployments.history import record
from berth.deployments.kick import kick
from berth.deployments.models import Deployment, Desired, Revision
from berth.outbox.services import announce
from berth.planner.needs import MAX_REPLICAS
from berth.web.errors import ApiError


class Bounds(msgspec.Struct, frozen=True):
    """The least and the most replicas. Equal: nobody scales it."""

    least: int
    most: int

    def within(self, count: int) -> int:
        return min(max(count, self.least), self.most)


def bounds_of(deployment: Deployment, revision: Revision) -> Bounds:
    """Where nothing else is said, a deployment has the replicas that its revision names."""
    most = revision.replicas if deployment.max_replicas is None else deployment.max_replicas
    least = min(revision.replicas, most) if deployment.min_replicas is None else deployment.min_replicas
    return Bounds(least, max(least, most))


def wanted_replicas(deployment: Deployment, revision: Revision) -> int:
    """Always within the bounds, whatever was asked for when the bounds were others."""
    asked = revision.replicas if deployment.desired_replicas is None else deployment.desired_replicas
    return bounds_of(deployment, revision).within(asked)


@transaction.atomic
def set_desired_replicas(
    deployment_id: UUID, count: int, *, fence: int, reason: str, data: Mapping[str, Any] | None = None
) -> int | None:
    """What scaling asks for. Returns the number that holds now, within the deployment's bounds; None when a younger scaler has spoken
    (`fence` is below the highest ever heard), or when the deployment does not run. 0 lets it sleep, if its least is 0; a request
    wakes it. `reason` is a stable code; `data` holds codes and numbers for the timeline."""
    rows = Deployment.objects.across_orgs("scaling looks after the deployments of all organisations")
    row = rows.select_for_update(of=("self",)).select_related("revision").filter(pk=deployment_id).first()
    if row is None or row.revision is None or row.desired != Desired.RUNNING or fence < row.scale_fence:
        return None
    before, wanted = wanted_replicas(row, row.revision), bounds_of(row, row.revision).within(count)
    changed = {"scale_fence": fence, "desired_replicas": wanted}
    fields = [name for name, value in changed.items() if getattr(row, name) != value]
    for name in fields:
        setattr(row, name, changed[name])
    if fields:
        row.save(update_fields=fields)
    if wanted != before:
        told = {**(data or {}), "before": before, "after": wanted, "reason": reason}
        record(row, "scaled", timezone.now(), **told)
        kick(row)
    return wanted


@transaction.atomic
def set_replica_limit(deployment: Deployment, revision: Revision, limit: int | None) -> None:
    """How many requests a replica of this revision gets at once; the others wait at the gateway. None: as many as it has slots."""
    number = None if limit is None else revision.number
    rows = Deployment.objects.for_org(deployment.org_id).filter(pk=deployment.pk)
    rows.update(replica_limit=limit, replica_limit_revision=number)
    deployment.replica_limit, deployment.replica_limit_revision = limit, number
    announce("routes")


def check_bounds(least: int | None, most: int | None) -> None:
    """Raises ApiError."""
    for name, value in (("min_replicas", least), ("max_replicas", most)):
        if value is not None and not 0 <= value <= MAX_REPLICAS:
            raise ApiError("invalid", f"Ask for 0 to {MAX_REPLICAS} replicas.", field=name, status=422)
    if most == 0:
        raise ApiError(
            "invalid", "At least 1 replica must be allowed. Pause it instead.", field="max_replicas", status=422
        )
    if least is not None and most is not None and least > most:
        raise ApiError("invalid", "The least number of replicas is above the most.", field="min_replicas", status=422)
