"""What people do with deployments. Each says what is wanted; the reconciler makes it so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import transaction
from django.utils import timezone
from msgspec import UNSET, UnsetType

from berth.catalog.models import ModelVersion
from berth.compute.provider import Provider
from berth.deployments import adapter_services, at_once, plan_ids, preparing, resizing
from berth.deployments.adapters import check_nobody_stands, chosen_base
from berth.deployments.history import record
from berth.deployments.models import Deployment, Desired, Revision
from berth.deployments.planning import NoPlan, make_plan, read_wishes
from berth.deployments.preparations import supersede
from berth.deployments.proposals import Wishes, find_version, replica_count
from berth.deployments.quotas import check_quota
from berth.deployments.revising import revise
from berth.deployments.rows import create, hold_version, locked, locked_as, wanted_changed
from berth.orgs.models import Organisation, User
from berth.outbox.services import announce
from berth.web.errors import Conflict, NotFound


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
    beside: str | None = None,
    provider: Provider | None = None,
) -> Deployment:
    """Keeps a model running as `org/name`. Returns at once; the reconciler starts it.

    The model is named by `model` (and a version number), or given as a ModelVersion. Without `name` it is called as the
    model, with a number if that name is taken. With a `plan_id`, only as that plan said. An adapter is served by the replicas of a
    deployment of its base, if there is one: `beside` names it; empty: on replicas of its own. Raises NoPlan, Conflict for a name that is
    taken or a plan that has changed, ApiError for bad input.
    """
    if org.suspended_at is not None:
        raise Conflict(
            "org_suspended", "This organisation is suspended, so nothing can be deployed. Ask your operator why."
        )
    found = find_version(org, model, version)
    base = chosen_base(found, beside, pinned=bool(pins))
    if base is not None:
        return adapter_services.stand_beside(base, actor, found, name)
    wanted, fixed = read_wishes(needs, pins)
    planned = make_plan(found, wanted, fixed, replica_count(replicas), provider=provider)
    now = timezone.now()
    if plan_id is not None:
        plan_ids.check(plan_id, found, wanted, fixed, planned, replicas, now)
    if planned.choice is None:
        raise NoPlan(planned)
    check_quota(org, planned.choice)
    with transaction.atomic():
        hold_version(found)
        deployment = create(org, actor, name, found.model.name)
        make = preparing.begin if planned.choice.made_of else revise
        make(deployment, actor, found, wanted, fixed, planned, now)
        record(deployment, "deployed", now, actor=actor, model=found.model.name, version=found.number)
        wanted_changed(deployment)
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
    takes over (rollouts.py), `reason` why it was made; with a `plan_id`, only as that plan said. With `replicas` alone, nothing else
    changes (resizing.py). Limits, sleep, holding, bounds and priority are no part of a revision: they hold at once, and with nothing else
    given no revision is made. Sleep None: never. Bounds None: the revision's number of replicas. Raises NoPlan, ApiError, and Conflict
    when somebody else changed it at the same moment."""
    given = {
        "sleep_after_seconds": sleep_after_seconds,
        "hold_seconds": hold_seconds,
        "min_replicas": min_replicas,
        "max_replicas": max_replicas,
        "priority": priority,
    }
    fields = {name: value for name, value in given.items() if value is not UNSET}
    if deployment.beside_id is not None:
        wishes = {"needs": needs, "pins": pins, "replicas": replicas, "rollout": rollout}
        adapter_services.only_its_own(fields | {name: wish for name, wish in wishes.items() if wish is not None})
    if limits is not None:
        deployment = _set_limits(deployment, limits)
    if fields:
        deployment = _set_at_once(deployment, actor, fields)
    planless = plan_id is None and version is None and needs is None and pins is None and replicas is None
    if (fields or limits is not None) and planless:
        return deployment
    if deployment.beside_id is not None:
        return deployment if version is None else adapter_services.change_version(deployment, actor, version)
    before = _revision(deployment)
    wanted, fixed = read_wishes(
        before.needs if needs is None else needs, before.plan.get("pins", {}) if pins is None else pins
    )
    count = replica_count(before.replicas if replicas is None else replicas)
    outgrown = None
    if replicas is not None and plan_id is None and version is None and needs is None and pins is None:
        kept = resizing.resize(deployment, actor, before, count, reason=reason, provider=provider)
        if isinstance(kept, Deployment):
            return kept
        outgrown = kept
    found = before.version if version is None else find_version(deployment.org, before.version.model.name, version)
    planned = make_plan(found, wanted, fixed, count, provider=provider)
    now = timezone.now()
    if plan_id is not None:
        plan_ids.check(plan_id, found, wanted, fixed, planned, count, now)
    if planned.choice is None:
        raise NoPlan(planned)
    check_quota(deployment.org, planned.choice)
    with transaction.atomic():
        deployment = locked_as(deployment, before)
        hold_version(found)
        supersede(deployment, now)
        if outgrown is not None:
            reason = reason or f"Planned anew: {outgrown.message}"[:200]
            record(deployment, "planned_anew", now, actor=actor, reason=outgrown.code, message=outgrown.message[:400])
        make = preparing.begin if planned.choice.made_of else revise
        make(deployment, actor, found, wanted, fixed, planned, now, rollout, reason)
        deployment.failures = 0
        deployment.save(update_fields=["failures"])
        wanted_changed(deployment)
    return deployment


@transaction.atomic
def _set_limits(deployment: Deployment, limits: Mapping[str, int | None]) -> Deployment:
    deployment = locked(deployment)
    deployment.save(update_fields=deployment.set_limits(limits))
    announce("limits")
    return deployment


@transaction.atomic
def _set_at_once(deployment: Deployment, actor: User | None, fields: Mapping[str, Any]) -> Deployment:
    deployment = locked(deployment)
    for kind, told in at_once.set_fields(deployment, fields).items():
        record(deployment, kind, timezone.now(), actor=actor, **told)
    wanted_changed(deployment)
    return deployment


@transaction.atomic
def wake(deployment: Deployment, actor: User | None) -> bool:
    """Starts it if it sleeps; whether it did. Actor None: a request waits for it. Waking twice is no error."""
    deployment = locked(deployment)
    if deployment.beside is not None:  # its base's replicas serve it
        return wake(deployment.beside, actor)
    if not deployment.sleeping or deployment.desired != Desired.RUNNING:
        return False
    now = timezone.now()
    deployment.woken_at = now
    if deployment.desired_replicas == 0:
        deployment.desired_replicas = 1
    deployment.save(update_fields=["woken_at", "desired_replicas"])
    record(deployment, "woken", now, actor=actor)
    wanted_changed(deployment)
    return True


def pause(deployment: Deployment, actor: User | None) -> Deployment:
    """Ends all replicas; callers are told that the deployment is paused. Pausing twice is no error."""
    return _desire(deployment, actor, Desired.PAUSED, "paused")


def resume(deployment: Deployment, actor: User | None) -> Deployment:
    """Runs again: after a pause, and also at once after failures, which are forgotten."""
    if deployment.beside_id is not None:
        adapter_services.carry_again(deployment, actor)
    return _desire(deployment, actor, Desired.RUNNING, "resumed")


def delete(deployment: Deployment, actor: User | None) -> Deployment:
    """Ends all replicas for good. Its name is free as soon as they have ended; usage and statements keep it."""
    return _desire(deployment, actor, Desired.DELETED, "deleted")


def _desire(deployment: Deployment, actor: User | None, desired: Desired, kind: str) -> Deployment:
    now = timezone.now()
    with transaction.atomic():
        deployment = locked(deployment)
        if desired == Desired.DELETED:
            check_nobody_stands(deployment)
        changed = deployment.desired != desired
        retried = desired == Desired.RUNNING and deployment.failures > 0
        if not changed and not retried:
            return deployment
        deployment.desired, deployment.failures = desired, 0
        deployment.save(update_fields=["desired", "failures"])
        if desired == Desired.RUNNING:
            preparing.again(deployment, actor, now)
        record(deployment, kind if changed else "retried", now, actor=actor)
        if desired == Desired.DELETED and deployment.beside_id is not None:
            adapter_services.let_go(deployment, actor)
        wanted_changed(deployment)
    return deployment


def _revision(deployment: Deployment) -> Revision:
    """The wanted one as it is now, whatever the caller's copy of the row says."""
    row = (
        Revision.objects.for_org(deployment.org_id)
        .select_related("version__model")
        .filter(pk__in=Deployment.objects.for_org(deployment.org_id).filter(pk=deployment.pk).values("revision"))
        .first()
    )
    if row is None:
        raise NotFound("revision")
    return row
