"""Celery doors to imports and housekeeping."""

from __future__ import annotations

import logging
import threading
from uuid import UUID

from django.db import OperationalError
from django.utils import timezone
from kombu.exceptions import OperationalError as BrokerAway

from berth.catalog import housekeeping, leases
from berth.catalog.errors import StoreUnavailable
from berth.catalog.importer import run_import
from berth.celery import app

log = logging.getLogger(__name__)

AT_ONCE = 2  # imports of one worker process, which has other things to do too
_places = threading.BoundedSemaphore(AT_ONCE)


@app.task(name="berth.catalog.tasks.sweep_imports")
def sweep_imports() -> None:
    """By the clock: new imports, those whose pause is over, and those whose worker died."""
    for import_id in leases.due(timezone.now()):
        try:
            app.send_task("berth.catalog.tasks.move_import", kwargs={"import_id": str(import_id)}, retry=False)
        except (BrokerAway, OSError):
            log.warning("import_deferred", extra={"reason": "broker_unavailable"})
            return


@app.task(name="berth.catalog.tasks.move_import")
def move_import(*, import_id: str) -> None:
    if not _places.acquire(blocking=False):
        return  # the sweep asks again
    try:
        run_import(UUID(import_id))
    finally:
        _places.release()


@app.task(name="berth.catalog.tasks.tidy")
def tidy() -> None:
    try:
        housekeeping.tidy(timezone.now())
    except (StoreUnavailable, OperationalError) as error:
        log.warning("tidying_deferred", extra={"reason": type(error).__name__})


@app.task(name="berth.catalog.tasks.adopt_strays")
def adopt_strays() -> None:
    try:
        housekeeping.adopt_strays(timezone.now())
    except (StoreUnavailable, OperationalError) as error:
        log.warning("tidying_deferred", extra={"reason": type(error).__name__})
