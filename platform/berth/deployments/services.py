"""What people do with deployments. Each says what is wanted; the reconciler makes it so."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from django.db import IntegrityError, transaction
from django.utils import timezone
from msgspec import UNSET, UnsetType

from berth.catalog.models import ModelVersion
from berth.compute.provider import Provider
from berth.deployments import at_once, plan_ids, rollouts
from berth.deployments.history import record
from berth.deployments.kick import kick
from berth.deployments.models import Deployment, Desired, Revision, State
from berth.deployments.planning import NoPlan, make_plan, plan_json, read_wishes, wishes_json
from berth.deployments.proposals import Wishes, find_version, replica_count
from berth.deployments.quotas import check_quota
from berth.orgs.models import Organisation, User
from berth.outbox.services import announce
from berth.planner.needs import Needs, Pins
from berth.planner.shapes import Plan
from berth.web.errors import ApiError, Conflict, NotFound

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def deploy(
    org: Organisation,
    actor: User | None,
    *,
    model: str | None = None,
    version: ModelVersion | int | None = None,
    name: str | None = None,
    needs: Wishes | None = None,
    pins: Wishes | None = None,
    replicas: int = 1,
    plan_id: str | None = None,
    provider: Provider | None = None,
) -> Deployment:
    """Keeps a model running as `org/name`. Returns at once; the reconciler starts it.

    The model is named by `model` (and a version number), or given as a ModelVersion. Without `name` it is called as the
    model, with a number if that name is taken. With a `plan_id`, only as that plan said. Raises NoPlan, Conflict for a name that is
    taken or a plan that has changed, ApiError for bad input.
    """
    if org.suspended_at is not None:
        raise Conflict(
            "org_suspended", "This organisation is suspended, so nothing can be deployed. Ask your operator why."
        )
    found = find_version(org, model, version)
    wanted, fixed = read_wishes(needs, pins)
    planned = make_plan(found, wanted, fixed, replica_count(replicas), provider=provider)
    now = timezone.now()
    if plan_id is not None:
        plan_ids.check(plan_id, found, wanted, fixed, planned, replicas, now)
    if planned.choice is None:
        raise NoPlan(planned)
    check_quota(org, planned.choice)
    with transaction.atomic():
        deployment = _create(org, actor, name, found.model.name)
        _revise(deployment, actor, found, wanted, fixed, planned, now)
        record(deployment, "deployed", now, actor=actor, model=found.model.name, version=found.number)
        _wanted_changed(deployment)
    return deployment


def update(
    deployment: Deployment,
    actor: User | None,
    *,
    version: ModelVersion | int | None = None,
    needs: Wishes | None = None,
    pins: Wishes | None = None,
    replicas: int | None = None,
    rollout: Wishes | None = None,
    reason: str = "",
    plan_id: str | None = None,
    limits: Mapping[str, int | None] | None = None,
    sleep_after_seconds: int | UnsetType | None = UNSET,
    hold_seconds: int | UnsetType = UNSET,
    min_replicas: int | UnsetType | None = UNSET,
    max_replicas: int | UnsetType | None = UNSET,
    priority: int | UnsetType = UNSET,
    provider: Provider | None = None,
) -> Deployment:
    """Makes a new revision; what is not given stays. The revision before it serves until the new one is ready; `rollout` says how it
    takes over (rollouts.py), `reason` why it was made; with a `plan_id`, only as that plan said. Limits, sleep, holding, bounds and
    priority are no part of a revision: they hold at once, and with nothing else given no revision is made. Sleep None: never. Bounds
    None: the revision's number of replicas."""
    given = {
        "sleep_after_seconds": sleep_after_seconds,
        "hold_seconds": hold_seconds,
        "min_replicas": min_replicas,
        "max_replicas": max_replicas,
        "priority": priority,
    }
    fields = {name: value for name, value in given.items() if value is not UNSET}
    if limits is not None:
        deployment = _set_limits(deployment, limits)
    if fields:
        deployment = _set_at_once(deployment, actor, fields)
    planless = plan_id is None and version is None and needs is None and pins is None and replicas is None
    if (fields or limits is not None) and planless:
        return deployment
    before = _revision(deployment)
    wanted, fixed = read_wishes(
        before.needs if needs is None else needs, before.plan.get("pins", {}) if pins is None else pins
    )
    count = replica_count(before.replicas if replicas is None else replicas)
    found = before.version if version is None else find_version(deployment.org, before.version.model.name, version)
    planned = make_plan(found, wanted, fixed, count, provider=provider)
    now = timezone.now()
    if plan_id is not None:
        plan_ids.check(plan_id, found, wanted, fixed, planned, count, now)
    if planned.choice is None:
        raise NoPlan(planned)
    check_quota(deployment.org, planned.choice)
    with transaction.atomic():
        deployment = _locked(deployment)
        _revise(deployment, actor, found, wanted, fixed, planned, now, rollout, reason)
        deployment.failures = 0
        deployment.save(update_fields=["failures"])
        _wanted_changed(deployment)
    return deployment


@transaction.atomic
def _set_limits(deployment: Deployment, limits: Mapping[str, int | None]) -> Deployment:
    deployment = _locked(deployment)
    deployment.save(update_fields=deployment.set_limits(limits))
    announce("limits")
    return deployment


@transaction.atomic
def _set_at_once(deployment: Deployment, actor: User | None, fields: Mapping[str, Any]) -> Deployment:
    deployment = _locked(deployment)
    for kind, told in at_once.set_fields(deployment, fields).items():
        record(deployment, kind, timezone.now(), actor=actor, **told)
    _wanted_changed(deployment)
    return deployment


@transaction.atomic
def wake(deployment: Deployment, actor: User | None) -> bool:
    """Starts it if it sleeps; whether it did. Actor None: a request waits for it. Waking twice is no error."""
    deployment = _locked(deployment)
    if not deployment.sleeping or deployment.desired != Desired.RUNNING:
        return False
    now = timezone.now()
    deployment.woken_at = now
    if deployment.desired_replicas == 0:
        deployment.desired_replicas = 1
    deployment.save(update_fields=["woken_at", "desired_replicas"])
    record(deployment, "woken", now, actor=actor)
    _wanted_changed(deployment)
    return True


def pause(deployment: Deployment, actor: User | None) -> Deployment:
    """Ends all replicas; callers are told that the deployment is paused. Pausing twice is no error."""
    return _desire(deployment, actor, Desired.PAUSED, "paused")


def resume(deployment: Deployment, actor: User | None) -> Deployment:
    """Runs again: after a pause, and also at once after failures, which are forgotten."""
    return _desire(deployment, actor, Desired.RUNNING, "resumed")


def delete(deployment: Deployment, actor: User | None) -> Deployment:
    """Ends all replicas for good. Its name is free as soon as they have ended; usage and statements keep it."""
    return _desire(deployment, actor, Desired.DELETED, "deleted")


def _desire(deployment: Deployment, actor: User | None, desired: Desired, kind: str) -> Deployment:
    now = timezone.now()
    with transaction.atomic():
        deployment = _locked(deployment)
        changed = deployment.desired != desired
        retried = desired == Desired.RUNNING and deployment.failures > 0
        if not changed and not retried:
            return deployment
        deployment.desired, deployment.failures = desired, 0
        deployment.save(update_fields=["desired", "failures"])
        record(deployment, kind if changed else "retried", now, actor=actor)
        _wanted_changed(deployment)
    return deployment


def _locked(deployment: Deployment) -> Deployment:
    """The row as it is now. One that is being deleted is not there any more for anybody."""
    row = Deployment.objects.for_org(deployment.org_id).select_for_update().get(pk=deployment.pk)
    if row.desired == Desired.DELETED:
        raise NotFound("deployment")
    return row


def _create(org: Organisation, actor: User | None, name: str | None, model_name: str) -> Deployment:
    if name is not None and not _NAME.fullmatch(name):
        raise ApiError(
            "invalid_name",
            "A deployment's name has 1 to 63 lower-case letters, digits, dots, dashes and underscores, and begins with a letter or "
            "digit.",
            field="name",
            status=422,
        )
    try:
        with transaction.atomic():
            return Deployment.objects.for_org(org).create(
                org=org, name=name or _free_name(org, model_name), created_by=actor
            )
    except IntegrityError:
        raise Conflict(
            "name_taken",
            "There is a deployment of this name already. Choose another, or change that one.",
            field="name",
        ) from None


def _free_name(org: Organisation, base: str) -> str:
    taken = set(
        Deployment.objects.for_org(org)
        .exclude(state=State.DELETED)
        .filter(name__startswith=base[:58])
        .values_list("name", flat=True)
    )
    names = [base, *(f"{base[:58]}-{number}" for number in range(2, len(taken) + 3))]
    return next(name for name in names if name not in taken)


def _revise(
    deployment: Deployment,
    actor: User | None,
    version: ModelVersion,
    needs: Needs,
    pins: Pins,
    planned: Plan,
    now: datetime,
    rollout: Wishes | None = None,
    reason: str = "",
) -> None:
    choice = planned.choice
    if choice is None:
        raise NoPlan(planned)
    latest = Revision.objects.for_org(deployment.org_id).filter(deployment=deployment).order_by("-number").first()
    revision = Revision.objects.for_org(deployment.org_id).create(
        org_id=deployment.org_id,
        deployment=deployment,
        number=latest.number + 1 if latest else 1,
        version=version,
        artefact_id=choice.artefact_id,
        engine=choice.engine,
        tier=choice.tier,
        context_length=choice.context_length,
        slots=choice.slots,
        threads=choice.threads,
        memory=choice.memory.total,
        replicas=choice.replicas,
        needs=wishes_json(needs),
        plan={**plan_json(planned), "pins": wishes_json(pins)},
        reason=reason,
        created_by=actor,
    )
    rollouts.begin(deployment, actor, revision, rollout, now)
    deployment.revision = revision
    deployment.save(update_fields=["revision"])
    record(deployment, "revision_created", now, actor=actor, number=revision.number)


def _revision(deployment: Deployment) -> Revision:
    row = (
        Revision.objects.for_org(deployment.org_id)
        .select_related("version__model")
        .filter(pk=deployment.revision_id or deployment.pk)
        .first()
    )
    if row is None:
        raise NotFound("revision")
    return row


def _wanted_changed(deployment: Deployment) -> None:
    """In the transaction of the change: gateways and the reconciler hear of it when it is committed."""
    announce("routes")
    kick(deployment)
