"""Who works on an import now. A lease is renewed every second or so; one that ran out is anybody's, so a worker that dies holds
nothing up. Whoever writes names their token: who lost the lease writes nothing."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.db.models import Q

from berth.catalog.import_models import FINAL, ImportState
from berth.catalog.models import ModelImport

LEASE: Final = timedelta(seconds=20)


def claim(import_id: UUID, now: datetime) -> ModelImport | None:
    """The import with a fresh token, or None: it is over, still receiving, or somebody else's."""
    token = uuid.uuid4()
    free = Q(lease_until=None) | Q(lease_until__lt=now)
    open_ = ModelImport.objects.across_orgs("the worker serves every organisation").exclude(
        state__in=[*FINAL, ImportState.RECEIVING]
    )
    if not open_.filter(free, pk=import_id).update(lease_token=token, lease_until=now + LEASE):
        return None
    return (
        ModelImport.objects.across_orgs("the worker serves every organisation")
        .select_related("org", "credential", "base", "created_by")
        .get(pk=import_id)
    )


def write(run: ModelImport, now: datetime, **values: Any) -> bool:
    """Changes the import and renews the lease. False: the lease is lost, and nothing was written."""
    mine = ModelImport.objects.for_org(run.org_id).filter(pk=run.pk, lease_token=run.lease_token)
    return bool(mine.update(lease_until=now + LEASE, **values))


def release(run: ModelImport, **values: Any) -> bool:
    """The last word: changes the import and gives the lease back."""
    mine = ModelImport.objects.for_org(run.org_id).filter(pk=run.pk, lease_token=run.lease_token)
    return bool(mine.update(lease_until=None, lease_token=None, **values))


def due(now: datetime) -> list[UUID]:
    """Imports that nobody works on and whose time has come. They are marked, so that the next look leaves them some seconds."""
    waiting = ModelImport.objects.across_orgs("the sweep serves every organisation").exclude(
        state__in=[*FINAL, ImportState.RECEIVING]
    )
    free = Q(lease_until=None) | Q(lease_until__lt=now)
    found = list(waiting.filter(free, check_at__lte=now).order_by("created_at").values_list("pk", flat=True)[:50])
    ModelImport.objects.across_orgs("the sweep serves every organisation").filter(pk__in=found).update(
        check_at=now + timedelta(seconds=10)
    )
    return found
