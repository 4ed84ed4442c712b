"""The row of a deployment: made once, changed while it is locked, and whoever acts on it told."""

from __future__ import annotations

import re
from typing import Final

from django.db import IntegrityError, transaction

from berth.catalog.models import ModelVersion
from berth.deployments.kick import kick
from berth.deployments.models import Deployment, Desired, Revision, State
from berth.orgs.models import Organisation, User
from berth.outbox.services import announce
from berth.web.errors import ApiError, Conflict, NotFound

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def locked(deployment: Deployment) -> Deployment:
    """The row as it is now. One that is being deleted is not there any more for anybody."""
    row = Deployment.objects.for_org(deployment.org_id).select_for_update().get(pk=deployment.pk)
    if row.desired == Desired.DELETED:
        raise NotFound("deployment")
    return row


def locked_as(deployment: Deployment, before: Revision) -> Deployment:
    """As `locked`, if that revision is still the wanted one: a change rests on what its author saw. Raises Conflict."""
    row = locked(deployment)
    if row.revision_id != before.pk:
        raise Conflict(
            "changed_meanwhile",
            "This deployment was changed by somebody else at the same moment, so yours was not made. Look at it as it is now, and "
            "change it again.",
        )
    return row


def hold_version(version: ModelVersion) -> None:
    """Until the transaction is over nobody deletes it. Raises NotFound if somebody just has."""
    rows = ModelVersion.objects.for_org(version.org_id).select_for_update(no_key=True)
    if rows.filter(pk=version.pk, deleted_at=None).first() is None:
        raise NotFound("model version")


def create(
    org: Organisation, actor: User | None, name: str | None, model_name: str, beside: Deployment | None = None
) -> Deployment:
    """Raises ApiError for a name that is none, Conflict for one that is taken."""
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
                org=org, name=name or _free_name(org, model_name), created_by=actor, beside=beside
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


def wanted_changed(deployment: Deployment) -> None:
    """In the transaction of the change: gateways and the reconciler hear of it when it is committed."""
    announce("routes")
    kick(deployment)
