"""Rows of revisions: never changed, only followed by the next."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from berth.deployments import adapters
from berth.deployments.models import Deployment, Revision
from berth.orgs.models import User

_COPIED: Final = (
    "version_id", "artefact_id", "engine", "tier", "context_length", "slots", "threads", "replicas", "needs", "plan", "gpus", "options",
)  # fmt: skip


def next_revision(deployment: Deployment, actor: User | None, **fields: Any) -> Revision:
    rows = Revision.objects.for_org(deployment.org_id)
    latest = rows.filter(deployment=deployment).order_by("-number").first()
    return rows.create(
        org_id=deployment.org_id,
        deployment=deployment,
        number=latest.number + 1 if latest else 1,
        created_by=actor,
        **fields,
    )


def carry(deployment: Deployment, actor: User | None, like: Revision, reason: str, **other: Any) -> Revision:
    """A revision as `like` but for `other`, with the adapters that are to be carried now; in the caller's transaction, and not yet
    wanted."""
    before, me = adapters.carried(like), str(deployment.pk)
    own = next((each for each in before if each.deployment == me), None)
    carried = adapters.wanted_beside(deployment, own)
    bytes_of = partial(adapters.memory_of, deployment.org_id)
    return next_revision(
        deployment,
        actor,
        **{name: getattr(like, name) for name in _COPIED} | other,
        memory=like.memory - bytes_of(before) + bytes_of(carried),
        adapters=adapters.as_stored(carried),
        reason=reason[:200],
    )
