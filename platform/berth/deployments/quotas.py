"""The most that an organisation's replicas may hold together, and the regions in which they may run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from django.db import transaction

from berth.deployments.models import Quota
from berth.orgs.models import Organisation
from berth.planner.shapes import Choice
from berth.web.errors import Conflict, NotFound

REGION_NOT_ALLOWED: Final = "region_not_allowed"


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


def allowed_regions(org_id: UUID) -> tuple[str, ...] | None:
    """Where its replicas may run. None: anywhere."""
    regions = Quota.objects.filter(org=org_id).values_list("regions", flat=True).first()
    return None if regions is None else tuple(regions)


def in_region(region: str | None, allowed: Sequence[str] | None) -> bool:
    """Hardware of which nobody says where it is, is nowhere that was allowed."""
    return allowed is None or region in allowed


def region_sentence(allowed: Sequence[str] | None) -> str:
    named = ", ".join(allowed or ()) or "none"
    return (
        f"No hardware is in a region that your organisation allows ({named}). "
        "Allow another region, or ask your operator for hardware there."
    )


@transaction.atomic
def set_regions(org: Organisation, regions: Sequence[str] | None) -> Quota:
    """Where replicas may be started from now on. None: anywhere. What runs already goes on until it is replaced."""
    quota, _ = Quota.objects.select_for_update().get_or_create(org=org)
    quota.regions = None if regions is None else sorted(set(regions))
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
