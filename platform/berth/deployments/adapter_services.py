"""What people do with adapters that stand beside a deployment of their base: its replicas serve them too, at no cost of their own.

The base gets a revision that differs in its adapters only, and rolls over to it as to any other: what cannot load them never
becomes ready, and the base goes on as it was.
"""

from __future__ import annotations

from typing import Any, Final

from django.db import transaction
from django.utils import timezone

from berth.catalog.models import ModelVersion
from berth.deployments import adapters, revising, rollouts
from berth.deployments.history import record
from berth.deployments.models import Deployment, Revision, Strategy
from berth.deployments.proposals import find_version
from berth.deployments.revisions import carry
from berth.deployments.rows import create, locked, wanted_changed
from berth.orgs.models import User
from berth.web.errors import ApiError, Conflict, NotFound

ITS_BASES: Final = (
    "needs",
    "pins",
    "replicas",
    "sleep_after_seconds",
    "min_replicas",
    "max_replicas",
    "priority",
    "rollout",
)


@transaction.atomic
def stand_beside(base: Deployment, actor: User | None, version: ModelVersion, name: str | None) -> Deployment:
    """The adapter's deployment. Raises Conflict while a canary or shadow of the base is under way, or when it carries too many."""
    base, org = locked(base), base.org
    now = timezone.now()
    adapters.check_room(base)
    _check_no_comparison(base)
    deployment = create(org, actor, name, version.model.name, beside=base)
    _own_revision(deployment, actor, version, base)
    record(deployment, "deployed", now, actor=actor, model=version.model.name, version=version.number, beside=base.name)
    _carry(base, actor, f"Carries the adapter {deployment.name}")
    wanted_changed(deployment)
    return deployment


@transaction.atomic
def change_version(deployment: Deployment, actor: User | None, version: ModelVersion | int) -> Deployment:
    """Of an adapter beside its base. Raises Conflict, NotFound, ApiError for a version with another base."""
    deployment = locked(deployment)
    base, before = _base_of(deployment), _revision_of(deployment)
    found = find_version(deployment.org, before.version.model.name, version)
    if found.base_id != before.version.base_id:
        raise ApiError(
            "adapter.other_base",
            "This version was made for another base. Deploy it beside a deployment of that one.",
            field="version",
            status=422,
        )
    _check_no_comparison(base)
    _own_revision(deployment, actor, found, base)
    _carry(base, actor, f"Carries version {found.number} of the adapter {deployment.name}")
    wanted_changed(deployment)
    return deployment


def only_its_own(given: dict[str, Any]) -> None:
    """Raises ApiError for what only its base can be asked."""
    asked = next((name for name in ITS_BASES if name in given), None)
    if asked is not None:
        raise ApiError(
            "adapter.follows_base",
            "This adapter is served by its base's replicas, so this is the base's to say. Change it there.",
            field=asked,
            status=422,
        )


def let_go(deployment: Deployment, actor: User | None) -> None:
    """In the transaction that deletes the adapter: its base stops carrying it. A comparison under way is left alone; the base's next
    revision is without it."""
    base = locked(_base_of(deployment))
    rollout = rollouts.open_rollout(base)
    if rollout is None or rollout.strategy == Strategy.ROLLING:
        _carry(base, actor, f"No longer carries the adapter {deployment.name}")


@transaction.atomic
def carry_again(deployment: Deployment, actor: User | None) -> None:
    """After its base went back to a revision without it."""
    base = locked(_base_of(deployment))
    revision = _revision_of(base)
    if adapters.number_in(revision, deployment.pk) is None:
        _check_no_comparison(base)
        _carry(base, actor, f"Carries the adapter {deployment.name} again")


def _carry(base: Deployment, actor: User | None, reason: str) -> None:
    now = timezone.now()
    revision = carry(base, actor, _revision_of(base), reason)
    revising.take_over(base, actor, revision, None, now)
    base.failures = 0
    base.save(update_fields=["failures"])
    wanted_changed(base)


def _own_revision(deployment: Deployment, actor: User | None, version: ModelVersion, base: Deployment) -> None:
    """What is shown of it, and what its usage is recorded under. Its engine, context and slots are its base's."""
    like = _revision_of(base)
    files = adapters.files_of(version, like.engine)
    if files is None:
        raise ApiError(
            "adapter.engine_unfit",
            f"{like.engine} does not load this adapter beside its base. Merge it into its base and deploy that.",
            status=422,
        )
    latest = deployment.revision.number if deployment.revision else 0
    revision = Revision.objects.for_org(deployment.org_id).create(
        org_id=deployment.org_id,
        deployment=deployment,
        number=latest + 1,
        version=version,
        artefact=files,
        engine=like.engine,
        tier=like.tier,
        context_length=like.context_length,
        slots=like.slots,
        threads=like.threads,
        memory=0,
        needs={},
        plan=adapters.plan_beside(base, files),
        created_by=actor,
    )
    deployment.revision = revision
    deployment.save(update_fields=["revision"])
    record(deployment, "revision_created", timezone.now(), actor=actor, number=revision.number)


def _check_no_comparison(base: Deployment) -> None:
    rollout = rollouts.open_rollout(base)
    if rollout is not None and rollout.strategy != Strategy.ROLLING:
        raise Conflict(
            "adapter.base_compares",
            f"A {rollout.strategy} of {base.name} is under way, and another revision would end it. Finish it first.",
        )


def _base_of(deployment: Deployment) -> Deployment:
    if deployment.beside is None:  # asked only of those that have one
        raise ValueError("an adapter without its base")
    return deployment.beside


def _revision_of(deployment: Deployment) -> Revision:
    if deployment.revision is None:
        raise NotFound("revision")
    return deployment.revision
