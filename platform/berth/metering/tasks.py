"""Celery doors to metering."""

from __future__ import annotations

import logging

from django.db import OperationalError

from berth.celery import app
from berth.metering import ingest as ingester
from berth.outbox.valkey import UNAVAILABLE

log = logging.getLogger(__name__)


@app.task(name="berth.metering.tasks.ingest")
def ingest() -> None:
    """Runs every second. While PostgreSQL or Valkey is away, usage waits where it is."""
    try:
        ingester.ingest()
    except (*UNAVAILABLE, OperationalError) as error:
        log.warning("ingest_deferred", extra={"reason": type(error).__name__})
