"""What an operator allows an organisation to store."""

from __future__ import annotations

from berth.catalog.models import StorageQuota
from berth.orgs.models import Organisation
from berth.web.errors import NotFound


def set_quota(slug: str, most: int | None) -> Organisation:
    """`most` in bytes; None: no limit. What is stored already stays. Raises NotFound."""
    org = Organisation.objects.filter(slug=slug).first()
    if org is None:
        raise NotFound("organisation")
    StorageQuota.objects.for_org(org).update_or_create(org=org, defaults={"bytes": most})
    return org
