"""The one door to tenant data.

Every model that belongs to an organisation derives from `OrgOwned`. Its rows are reached by `Model.objects.for_org(org)`;
work that is about all organisations (reconciling, rating, publishing) says so by `Model.objects.across_orgs(reason)`. A test
reads the source and fails on any other use of a tenant model's manager.
"""

from __future__ import annotations

import uuid
from typing import Any, TypeVar

import uuid_utils
from django.db import models

M = TypeVar("M", bound=models.Model)


def new_id() -> uuid.UUID:
    """A UUIDv7: unique, and sorted by time of creation, so that it can serve as a paging cursor."""
    return uuid.UUID(int=uuid_utils.uuid7().int)


class OrgManager(models.Manager[M]):
    """`org` is an Organisation or its id."""

    def for_org(self, org: Any) -> models.QuerySet[M]:
        return self.get_queryset().filter(org_id=getattr(org, "pk", org))

    def across_orgs(self, reason: str) -> models.QuerySet[M]:
        """All organisations' rows, for platform work. `reason` is for whoever reads the call."""
        if not reason:
            raise ValueError("Say why this query is about all organisations.")
        return self.get_queryset()


class OrgOwned(models.Model):
    """A row that belongs to one organisation for ever."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    org = models.ForeignKey("orgs.Organisation", on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    objects = OrgManager()

    class Meta:
        abstract = True
