"""What people tell scaling: declared peaks. And what it tells them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from berth.deployments.history import record
from berth.deployments.models import Deployment, Desired, ScalingDecision
from berth.deployments.replicas import bounds_of, wanted_replicas
from berth.deployments.scaling.observation import DAY, Peak
from berth.deployments.scaling_wishes import Wishes, wishes_of
from berth.orgs.models import User
from berth.web.errors import ApiError, NotFound

MOST_PEAKS: Final = 50
EVERY: Final[Mapping[str, float | None]] = {"once": None, "day": DAY, "week": 7 * DAY}


@transaction.atomic
def set_peaks(deployment: Deployment, actor: User | None, peaks: Sequence[Peak]) -> Deployment:
    """All of them anew; none takes them away. Raises ApiError, NotFound."""
    if len(peaks) > MOST_PEAKS:
        raise ApiError("invalid", f"At most {MOST_PEAKS} peaks can be declared.", field="peaks", status=422)
    for index, peak in enumerate(peaks):
        _check(peak, f"peaks.{index}")
    row = Deployment.objects.for_org(deployment.org_id).select_for_update().get(pk=deployment.pk)
    if row.desired == Desired.DELETED:
        raise NotFound("deployment")
    row.peaks = [msgspec.to_builtins(peak) for peak in peaks]
    row.save(update_fields=["peaks"])
    record(row, "peaks_changed", timezone.now(), actor=actor, count=len(peaks))
    return row


def _check(peak: Peak, field: str) -> None:
    if peak.end <= peak.start:
        raise ApiError("invalid", "A peak ends after it starts.", field=f"{field}.end", status=422)
    if peak.every is not None and peak.end - peak.start > peak.every:
        raise ApiError(
            "invalid", "A peak cannot last longer than until it comes again.", field=f"{field}.end", status=422
        )
    if peak.replicas is None and peak.requests_per_second is None:
        text = "Say how many replicas the peak takes, or how many requests a second it brings."
        raise ApiError("invalid", text, field=f"{field}.replicas", status=422)


@transaction.atomic
def set_wishes(deployment: Deployment, actor: User | None, changes: Mapping[str, Any]) -> Deployment:
    """What is absent stays. Raises ApiError, NotFound."""
    row = Deployment.objects.for_org(deployment.org_id).select_for_update().get(pk=deployment.pk)
    if row.desired == Desired.DELETED:
        raise NotFound("deployment")
    try:
        wishes = wishes_of({**row.scaling, **changes})
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$.")
        raise ApiError("invalid", f"{text}.", field=path.rstrip("`") or None, status=422) from None
    row.scaling = msgspec.to_builtins(wishes)
    row.save(update_fields=["scaling"])
    record(row, "scaling_changed", timezone.now(), actor=actor, **{name: changes[name] for name in sorted(changes)})
    return row


def decisions_of(deployment: Deployment) -> QuerySet[ScalingDecision]:
    return ScalingDecision.objects.for_org(deployment.org_id).filter(deployment=deployment)


def latest_decision(deployment: Deployment) -> ScalingDecision | None:
    return decisions_of(deployment).order_by("-id").first()


def limit_of(deployment: Deployment) -> int | None:
    """Requests that a replica of the wanted revision gets at once."""
    revision = deployment.revision
    if revision is None or deployment.replica_limit_revision != revision.number:
        return None if revision is None else revision.slots
    return deployment.replica_limit


def scaling_of(deployment: Deployment) -> dict[str, Any]:
    """As `ScalingOut` shows it."""
    if deployment.revision is None:  # left out by every query
        raise ValueError("a deployment without a revision")
    bounds = bounds_of(deployment, deployment.revision)
    names = {seconds: name for name, seconds in EVERY.items()}
    peaks = [msgspec.to_builtins(each) for each in msgspec.convert(deployment.peaks, list[Peak])]
    return {
        "automatic": bounds.least < bounds.most,
        "least": bounds.least,
        "most": bounds.most,
        "desired": wanted_replicas(deployment, deployment.revision),
        "peaks": [{**peak, "every": names.get(peak["every"], "once")} for peak in peaks],
        **{name: getattr(wishes_of(deployment.scaling), name) for name in Wishes.__struct_fields__},
        "replica_limit": limit_of(deployment),
        "latest": latest_decision(deployment),
    }
