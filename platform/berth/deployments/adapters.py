"""LoRA adapters: which a revision's replicas load, by what name, and where one is in an engine. Reads only.

An adapter is deployed beside a deployment of its base, whose replicas load it too, or alone, on replicas of the base of its own.
Either way it is a deployment: with a name, limits, prices and usage of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final
from uuid import UUID

import msgspec
from django.db.models import Q, QuerySet

from berth.catalog.facts import adapter_facts
from berth.catalog.models import Artefact, ModelVersion
from berth.deployments.models import Deployment, Desired, Revision, State
from berth.web.errors import ApiError, Conflict

MOST: Final = 32  # adapters of one deployment
PARSED: Final = 2  # times its files: what an adapter takes in an engine, at 32 bits instead of 16


class Carried(msgspec.Struct, frozen=True):
    """An adapter that a revision's replicas load."""

    deployment: str  # id of the deployment that it is
    name: str  # of that deployment
    artefact: str  # id of its files
    rank: int


def carried(revision: Revision) -> tuple[Carried, ...]:
    return msgspec.convert(revision.adapters, tuple[Carried, ...])


def as_stored(adapters: Iterable[Carried]) -> list[dict[str, Any]]:
    return [msgspec.to_builtins(each) for each in adapters]


def number_in(revision: Revision, deployment_id: UUID) -> int | None:
    """Where the adapter stands among those that the revision's replicas load. None: they do not."""
    if not revision.adapters:
        return None
    wanted = str(deployment_id)
    return next((number for number, each in enumerate(carried(revision)) if each.deployment == wanted), None)


def alias_of(org: str, deployment: Deployment, revision: Revision) -> str:
    """What the engine calls the model itself: as clients do, unless they mean an adapter by that name."""
    name = f"{org}/{deployment.name}"
    return name if number_in(revision, deployment.pk) is None else f"{name}:base"


def standing_beside(base: Deployment) -> QuerySet[Deployment]:
    """Adapters that the base's replicas are to load, in the order in which they came."""
    rows = Deployment.objects.for_org(base.org_id).filter(beside=base).exclude(state=State.DELETED)
    return rows.exclude(desired=Desired.DELETED).select_related("revision__version__model").order_by("created_at", "pk")


def wanted_beside(base: Deployment, own: Carried | None = None) -> list[Carried]:
    """What the next revision of the base is to carry: itself, if it is an adapter that runs alone, and those beside it."""
    found = [own] if own is not None else []
    for deployment in standing_beside(base):
        if deployment.revision is not None:
            found.append(of_deployment(deployment, deployment.revision.artefact))
    return found


def of_deployment(deployment: Deployment, artefact: Artefact) -> Carried:
    rank = adapter_facts(artefact.adapter).rank if artefact.adapter else 1
    return Carried(str(deployment.pk), deployment.name, str(artefact.pk), rank)


def files_of(version: ModelVersion, engine: str) -> Artefact | None:
    """The adapter's files that this engine loads beside a base; None: it does not."""
    rows = (
        Artefact.objects.for_org(version.org_id)
        .filter(version=version, adapter__isnull=False)
        .order_by("-format", "pk")
    )
    fitting = (each for each in rows if each.adapter and engine in adapter_facts(each.adapter).engines)
    return next(fitting, None)


def engines_of(version: ModelVersion) -> frozenset[str]:
    """Those that load the adapter beside its base."""
    rows = Artefact.objects.for_org(version.org_id).filter(version=version, adapter__isnull=False)
    return frozenset(engine for each in rows if each.adapter for engine in adapter_facts(each.adapter).engines)


def bases_for(version: ModelVersion) -> list[Deployment]:
    """Deployments whose replicas could load the adapter too: of its base version, on an engine that can; the oldest first."""
    rows = (
        Deployment.objects.for_org(version.org_id)
        .filter(beside=None, desired=Desired.RUNNING, revision__artefact__version=version.base_id)
        .exclude(Q(state=State.DELETED) | Q(state=State.FAILED))
        .select_related("org", "revision__artefact", "revision__version__model")
        .order_by("created_at", "pk")
    )
    engines = engines_of(version)
    return [each for each in rows if each.revision is not None and each.revision.engine in engines]


def base_named(version: ModelVersion, name: str) -> Deployment:
    """The deployment of that name, if the adapter can stand beside it. Raises ApiError."""
    found = next((each for each in bases_for(version) if each.name == name), None)
    if found is None:
        raise ApiError(
            "adapter.no_such_base",
            f"{name} is no running deployment of the adapter's base on an engine that loads it. "
            "Name another, or leave `beside` out.",
            field="beside",
            status=422,
        )
    return found


def check_room(base: Deployment) -> None:
    if standing_beside(base).count() >= MOST:
        raise Conflict("adapter.too_many", f"{base.name} carries {MOST} adapters, the most that one deployment may.")


def check_still_fits(base: Deployment, artefact: Artefact, engine: str) -> None:
    """Raises Conflict if what the base is to become could not carry the adapters beside it."""
    lost = [
        each.name
        for each in standing_beside(base)
        if each.revision is not None
        and (each.revision.version.base_id != artefact.version_id or files_of(each.revision.version, engine) is None)
    ]
    if lost:
        raise Conflict(
            "adapter.would_be_lost",
            f"Adapters stand beside this deployment that were made for another version of the model, or that {engine} does not load: "
            f"{', '.join(lost[:5])}. Delete them first, or deploy the new version beside the old one.",
            params={"deployments": lost[:20]},
        )


def check_nobody_stands(base: Deployment) -> None:
    """Raises Conflict where adapters would lose the replicas that they stand on."""
    names = list(standing_beside(base).values_list("name", flat=True))
    if names:
        raise Conflict(
            "adapter.stands_on_it",
            f"Adapters are served by this deployment's replicas: {', '.join(names[:5])}. Delete them first.",
            params={"deployments": names[:20]},
        )


def memory_of(org_id: UUID, adapters: Collection[Carried]) -> int:
    """Bytes that they take in a replica."""
    if not adapters:
        return 0
    sizes = Artefact.objects.for_org(org_id).filter(pk__in=[each.artefact for each in adapters])
    return PARSED * sum(sizes.values_list("size", flat=True))


def chosen_base(version: ModelVersion, beside: str | None, *, pinned: bool = False) -> Deployment | None:
    """Beside which deployment an adapter is to stand: the named one, or the first that can. None: it gets replicas of its own (it is no
    adapter, none can, `beside` is empty, or nobody named one and something is pinned, such as what it was merged into). Raises
    ApiError."""
    if version.base_id is None:
        if beside:
            raise ApiError("adapter.none", "Only an adapter can stand beside a deployment.", field="beside", status=422)
        return None
    if beside == "" or (beside is None and pinned):
        return None
    if beside is not None:
        return base_named(version, beside)
    return next(iter(bases_for(version)), None)


def plan_beside(base: Deployment, files: Artefact) -> dict[str, Any]:
    """As the planner would say it: the base's plan, and no cost."""
    like = base.revision
    if like is None:  # made in one transaction with it
        raise ValueError("a deployment without a revision")
    choice = dict(like.plan.get("choice") or {})
    held = PARSED * files.size
    memory = {
        "weights": held,
        "kv": 0,
        "overhead": 0,
        "total": held,
        "available": (choice.get("memory") or {}).get("available", held),
    }
    choice |= {
        "artefact": {"id": str(files.pk), "quantization": files.quantization, "size": files.size},
        "memory": memory,
        "price_per_hour": "0",
        "reasons": [
            {
                "code": "beside_base",
                "message": f"The replicas of {base.name} load it beside their own model, so it costs no replica.",
                "params": {"base": base.name},
            }
        ],
    }
    return {
        "format": like.plan.get("format", 1),
        "fits": True,
        "choice": choice,
        "rejected": [],
        "changes": [],
        "pins": {},
    }
