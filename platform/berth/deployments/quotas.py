"""The most that an organisation's replicas may hold together."""

from __future__ import annotations

from django.db import transaction

from berth.deployments.models import Quota
from berth.orgs.models import Organisation
from berth.planner.shapes import Choice
from berth.web.errors import Conflict, NotFound


def quota_of(org: Organisation) -> Quota:
    """Without a row of its own: no limits."""
    return Quota.objects.filter(org=org).first() or Quota(org=org)


@transaction.atomic
def set_quota(slug: str, **limits: int | None) -> Quota:
    """An operator's act. What is not named stays; None: no limit. What runs already goes on. Raises NotFound."""
    org = Organisation.objects.filter(slug=slug).first()
    if org is None:
        raise NotFound("organisation")
    quota, _ = Quota.objects.select_for_update().get_or_create(org=org)
    for name, value in limits.items():
        setattr(quota, name, value)
    quota.save()
    return quota


def check_quota(org: Organisation, choice: Choice) -> None:
    """Raises Conflict for what could never run whole, however long it waited."""
    quota = quota_of(org)
    over = quota.replicas is not None and choice.replicas > quota.replicas
    over = over or (quota.memory is not None and choice.replicas * choice.memory.total > quota.memory)
    if over:
        raise Conflict(
            "over_quota",
            "This is more than your organisation may have altogether. Ask for fewer or smaller replicas, or your operator for a "
            "larger quota.",
        )
