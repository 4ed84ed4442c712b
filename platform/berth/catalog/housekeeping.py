"""What nobody needs any more: uploads that were given up, scratch of imports that are over, contents without references."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from berth.catalog import references, staging
from berth.catalog.files import drop_drafts
from berth.catalog.import_models import FINAL, ImportState
from berth.catalog.models import ModelImport
from berth.catalog.store import store

GIVEN_UP: Final = timedelta(days=7)  # without a part
PUT_GIVEN_UP: Final = timedelta(
    days=1
)  # a put to a bucket, without a part: whoever was at it would have gone on long ago
_WHY = "housekeeping serves every organisation"


def tidy(now: datetime) -> None:
    """Harmless at any time and from several workers at once."""
    waiting = ModelImport.objects.across_orgs(_WHY).filter(state=ImportState.RECEIVING, check_at__lt=now - GIVEN_UP)
    waiting.update(
        state=ImportState.FAILED,
        finished_at=now,
        code="upload_given_up",
        message="No part of the upload arrived for seven days. Start it again.",
    )
    there = set(staging.left_behind())
    running = ModelImport.objects.across_orgs(_WHY).filter(pk__in=there).exclude(state__in=FINAL)
    for import_id in there - set(running.values_list("pk", flat=True)):
        staging.drop_scratch(import_id)
        staging.drop_parts(import_id)
    references.sweep(now)


def adopt_strays(now: datetime) -> None:
    """Rarely: it lists the whole store."""
    references.adopt(now)
    store().drop_abandoned(now - PUT_GIVEN_UP)
    drop_drafts(store().incoming, now - PUT_GIVEN_UP)
