"""What people do with rollouts, and where they begin and end. `rollout.py` decides; the reconciler carries it out."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from berth.deployments.adapters import check_still_fits
from berth.deployments.history import record
from berth.deployments.kick import kick
from berth.deployments.models import OPEN, Deployment, Desired, Revision, Rollout, Status, Strategy
from berth.deployments.preparations import refuse_placeholder, supersede
from berth.deployments.revisions import carry
from berth.deployments.rollout import Margins, is_full
from berth.orgs.models import User
from berth.outbox.services import announce
from berth.web.errors import Conflict, NotFound

STEPS: Final = (5, 25, 50)
HOLD: Final = {Strategy.ROLLING: 120, Strategy.CANARY: 300, Strategy.SHADOW: 0}  # seconds, where nobody says
SHADOW_PERCENT: Final = 10
CONFIGURATION: Final = (
    "artefact_id",
    "engine",
    "tier",
    "context_length",
    "slots",
    "threads",
    "gpus",
    "options",
    "adapters",
)


def open_rollout(deployment: Deployment) -> Rollout | None:
    return _rollouts(deployment).filter(status__in=OPEN).select_related("revision", "base").first()


def latest_rollout(deployment: Deployment) -> Rollout | None:
    return _rollouts(deployment).select_related("revision", "base", "created_by").order_by("-id").first()


def alike(one: Revision, other: Revision | None) -> bool:
    """Whether replicas of one are as good as those of the other: they differ at most in how many there are."""
    return other is not None and all(_same(getattr(one, name), getattr(other, name)) for name in CONFIGURATION)


def _same(one: object, other: object) -> bool:
    """Ids are texts in rows that were just made."""
    return one == other or str(one) == str(other)


def begin(
    deployment: Deployment, actor: User | None, revision: Revision, wish: Mapping[str, Any] | None, now: datetime
) -> None:
    """In the transaction that makes `revision` the wanted one. The one that was good before is what it goes back to."""
    before = _good_before(deployment)
    for each in _rollouts(deployment).filter(status__in=OPEN).select_related("revision"):
        if alike(revision, each.revision):  # it differs in the number of replicas only: the same way goes on
            each.revision = revision
            each.save(update_fields=["revision"])
            return
        end(each, Status.SUPERSEDED, "superseded", "", now)
    if before is not None and alike(revision, before):
        deployment.stable = revision
        deployment.save(update_fields=["stable"])
        return
    wish = dict(wish or {})
    strategy = Strategy(wish.get("strategy", Strategy.ROLLING)) if before is not None else Strategy.ROLLING
    Rollout.objects.for_org(deployment.org_id).create(
        org_id=deployment.org_id,
        deployment=deployment,
        revision=revision,
        base=before,
        strategy=strategy,
        steps=list(wish.get("steps") or STEPS) if strategy == Strategy.CANARY else [],
        hold_seconds=wish.get("hold_seconds", HOLD[strategy]),
        shadow_percent=wish.get("shadow_percent", SHADOW_PERCENT) if strategy == Strategy.SHADOW else 0,
        margins=msgspec.to_builtins(msgspec.convert(wish.get("margins") or {}, Margins)),
        automatic=wish.get("automatic", True),
        created_by=actor,
    )


def _good_before(deployment: Deployment) -> Revision | None:
    """The last revision that was good; of a deployment that never finished a rollout the wanted one, if it ever answered."""
    if deployment.stable is not None or deployment.revision is None:
        return deployment.stable
    under_way = open_rollout(deployment)
    if under_way is not None and under_way.base is not None:
        return under_way.base
    answered = deployment.replicas.filter(revision=deployment.revision).exclude(ready_at=None).exists()
    return deployment.revision if answered else None


def end(rollout: Rollout, status: Status, reason: str, message: str, now: datetime) -> None:
    rollout.status, rollout.reason, rollout.message, rollout.ended_at = status, reason[:64], message[:400], now
    rollout.save(update_fields=["status", "reason", "message", "ended_at"])


@transaction.atomic
def promote(deployment: Deployment, actor: User | None, *, fully: bool = False) -> Deployment:
    """To the next step of a canary, or all the way; a shadow begins to serve. Raises Conflict when there is nothing to promote."""
    deployment, rollout = _locked(deployment)
    if rollout is None or is_full(rollout.strategy, tuple(rollout.steps), rollout.step):
        raise Conflict("no_rollout", "No canary or shadow is under way, so there is nothing to promote.")
    rollout.step = max(1, len(rollout.steps)) if fully else rollout.step + 1
    rollout.step_since, rollout.status, rollout.reason, rollout.message = None, Status.PROGRESSING, "", ""
    rollout.save(update_fields=["step", "step_since", "status", "reason", "message"])
    return _changed(deployment, actor, "rollout_promoted", number=rollout.revision.number, step=rollout.step)


@transaction.atomic
def hold(deployment: Deployment, actor: User | None) -> Deployment:
    """Nothing of the rollout goes on or back by itself until somebody says so. Holding twice is no error."""
    deployment, rollout = _locked(deployment)
    if rollout is None or rollout.status == Status.WATCHING:
        raise Conflict("no_rollout", "No rollout is under way, so there is nothing to hold.")
    if rollout.status == Status.PAUSED:
        return deployment
    living = deployment.replicas.filter(ended_at=None, retired_at=None).select_related("revision")
    rollout.paused_at_new = sum(alike(each.revision, rollout.revision) for each in living)
    rollout.status = Status.PAUSED
    rollout.save(update_fields=["status", "paused_at_new"])
    return _changed(deployment, actor, "rollout_paused", number=rollout.revision.number)


@transaction.atomic
def go_on(deployment: Deployment, actor: User | None) -> Deployment:
    deployment, rollout = _locked(deployment)
    if rollout is None or rollout.status != Status.PAUSED:
        raise Conflict("no_rollout", "No rollout is on hold.")
    rollout.status, rollout.step_since = Status.PROGRESSING, None
    rollout.save(update_fields=["status", "step_since"])
    return _changed(deployment, actor, "rollout_resumed", number=rollout.revision.number)


@transaction.atomic
def roll_back(deployment: Deployment, actor: User | None, *, number: int | None = None) -> Deployment:
    """To an earlier revision, as it was: the one before the rollout that is under way, the last good one, or the one of that number.
    Requests return to its replicas at once where they still run; where not, those that serve go on until they do. Raises NotFound,
    Conflict."""
    deployment, rollout = _locked(deployment)
    target = _target(deployment, rollout, number)
    if target.pk == deployment.revision_id:
        raise Conflict("already_wanted", f"Revision {target.number} is what is wanted already.")
    refuse_placeholder(target)
    supersede(deployment, timezone.now())
    if rollout is None or rollout.base_id != target.pk:
        target = _with_adapters(deployment, target, actor)
    go_back(deployment, rollout, target, actor, "by_hand", "", timezone.now())
    return _changed(deployment, actor, "rolled_back", number=target.number, reason="by_hand")


def _with_adapters(deployment: Deployment, target: Revision, actor: User | None) -> Revision:
    """As it was, but with the adapters that stand beside the deployment today: they go on answering."""
    check_still_fits(deployment, target.artefact, target.engine)
    again = carry(deployment, actor, target, f"Revision {target.number} with the adapters of today")
    if again.adapters == target.adapters:
        again.delete()
        return target
    return again


def go_back(
    deployment: Deployment,
    rollout: Rollout | None,
    target: Revision,
    actor: User | None,
    reason: str,
    message: str,
    now: datetime,
) -> None:
    """Makes `target` the wanted revision, in the caller's transaction, and writes down why. The row is locked."""
    left = deployment.revision
    if left is not None:  # what answers of it goes on only while nothing else can
        deployment.traffic = {"new": sorted(numbers_alike(deployment, left)), "weight": 0}
    if rollout is not None:
        end(rollout, Status.ROLLED_BACK, reason, message, now)
    if rollout is None or rollout.base_id != target.pk:
        Rollout.objects.for_org(deployment.org_id).create(
            org_id=deployment.org_id,
            deployment=deployment,
            revision=target,
            base=left,
            hold_seconds=0,
            automatic=False,
            reason=reason,
            created_by=actor,
        )
    deployment.revision, deployment.failures = target, 0
    deployment.save(update_fields=["revision", "failures", "traffic"])


def numbers_alike(deployment: Deployment, revision: Revision) -> frozenset[int]:
    """Of the revisions whose replicas are as good as this one's, itself included."""
    same = {name: getattr(revision, name) for name in CONFIGURATION}
    rows = Revision.objects.for_org(deployment.org_id).filter(deployment=deployment, **same)
    return frozenset(rows.values_list("number", flat=True))


def _target(deployment: Deployment, rollout: Rollout | None, number: int | None) -> Revision:
    revisions = Revision.objects.for_org(deployment.org_id).filter(deployment=deployment)
    if number is not None:
        found = revisions.filter(number=number).first()
    elif rollout is not None and rollout.base is not None:
        found = rollout.base
    elif deployment.stable is not None and deployment.stable_id != deployment.revision_id:
        found = deployment.stable
    else:
        current = deployment.revision.number if deployment.revision else 0
        found = revisions.filter(number__lt=current).order_by("-number").first()
    if found is None:
        raise NotFound("revision")
    return found


def _locked(deployment: Deployment) -> tuple[Deployment, Rollout | None]:
    rows = Deployment.objects.for_org(deployment.org_id).select_for_update(of=("self",))
    row = rows.select_related("revision", "stable").get(pk=deployment.pk)
    if row.desired == Desired.DELETED:
        raise NotFound("deployment")
    return row, open_rollout(row)


def _changed(deployment: Deployment, actor: User | None, kind: str, **told: Any) -> Deployment:
    record(deployment, kind, timezone.now(), actor=actor, **told)
    announce("routes")
    kick(deployment)
    return deployment


def _rollouts(deployment: Deployment) -> QuerySet[Rollout]:
    return Rollout.objects.for_org(deployment.org_id).filter(deployment=deployment)
