"""Reads of deployments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import Any
from uuid import UUID

from django.db.models import Prefetch, QuerySet

from berth.compute.provider import LogPage, Provider, ProviderError
from berth.deployments.models import Deployment, Event, PlanCheck, Replica, Revision, Rollout, State
from berth.orgs.models import Organisation
from berth.web.errors import ApiError, NotFound

SHOWN_ENDED = 3  # ended replicas shown beside the living, newest first


def deployments_of(org: Organisation | UUID) -> QuerySet[Deployment]:
    """All that are not gone, with everything that is shown of them."""
    replicas = Replica.objects.for_org(org).select_related("revision").order_by("-id")
    beside = Deployment.objects.for_org(org).exclude(state=State.DELETED)
    return (
        Deployment.objects.for_org(org)
        .exclude(state=State.DELETED)
        .exclude(revision=None)
        .select_related("org", "revision__artefact", "revision__version__model", "revision__created_by", "stable")
        .select_related("beside__revision__artefact")
        .prefetch_related(Prefetch("replicas", replicas.filter(ended_at=None), to_attr="living"))
        .prefetch_related(Prefetch("adapters", beside.order_by("created_at"), to_attr="living_adapters"))
    )


def get_deployment(org: Organisation | UUID, name: str) -> Deployment:
    """Raises NotFound."""
    found = deployments_of(org).filter(name=name).first()
    if found is None:
        raise NotFound("deployment")
    return found


def adapters_beside(deployment: Deployment) -> list[str]:
    """Names of the adapters that its replicas serve too."""
    living: list[Deployment] = getattr(deployment, "living_adapters", [])
    return [each.name for each in living]


def shown_replicas(deployment: Deployment) -> list[Replica]:
    """The living by their place, then the latest that ended; of an adapter beside its base those of the base."""
    living: list[Replica] | None = getattr(deployment, "living", None)
    owner = deployment.beside_id or deployment.pk
    rows = Replica.objects.for_org(deployment.org_id).filter(deployment=owner).select_related("revision")
    if living is None or deployment.beside_id is not None:
        living = list(rows.filter(ended_at=None))
    ended = list(rows.exclude(ended_at=None).order_by("-id")[:SHOWN_ENDED])
    return [*sorted(living, key=lambda replica: (replica.ordinal, replica.name)), *ended]


def checks_of(revision: Revision) -> list[PlanCheck]:
    """Planned against measured, if it has served anything."""
    return list(PlanCheck.objects.for_org(revision.org_id).filter(revision=revision).order_by("-metric"))


def events_of(deployment: Deployment) -> QuerySet[Event]:
    return Event.objects.for_org(deployment.org_id).filter(deployment=deployment).select_related("actor")


def revisions_of(deployment: Deployment) -> QuerySet[Revision]:
    return (
        Revision.objects.for_org(deployment.org_id)
        .filter(deployment=deployment)
        .select_related("artefact", "created_by")
    )


def rollouts_of(deployment: Deployment) -> QuerySet[Rollout]:
    rows = Rollout.objects.for_org(deployment.org_id).filter(deployment=deployment)
    return rows.select_related("revision", "base", "created_by")


def logs_of(deployment: Deployment, replica: str, after: int, limit: int, provider: Provider) -> LogPage:
    """Lines of one replica: the named one, or the newest. Raises NotFound, ApiError when the provider does not answer."""
    rows = Replica.objects.for_org(deployment.org_id).filter(deployment=deployment).order_by("-id")
    found = rows.filter(name=replica).first() if replica else rows.first()
    if found is None:
        if replica:
            raise NotFound("replica")
        return LogPage((), after, more=False)
    try:
        return provider.logs(found.name, after, limit)
    except ProviderError as error:
        raise ApiError("provider_unavailable", f"The log cannot be read just now: {error}", status=503) from None


def names_by_model(org_id: UUID, models: Collection[UUID]) -> dict[UUID, list[str]]:
    """Names of the deployments that run a version of each of these models."""
    rows: Any = (
        Deployment.objects.for_org(org_id)
        .exclude(state=State.DELETED)
        .filter(revision__version__model__in=models)
        .order_by("name")
        .values_list("revision__version__model", "name")
    )
    names: dict[UUID, list[str]] = defaultdict(list)
    for model, name in rows:
        names[model].append(name)
    return dict(names)
