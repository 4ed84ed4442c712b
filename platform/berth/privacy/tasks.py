"""Celery doors to records."""

from __future__ import annotations

import logging

from django.db import OperationalError

from berth.celery import app
from berth.outbox.valkey import UNAVAILABLE
from berth.privacy import ingest as ingester

log = logging.getLogger(__name__)


@app.task(name="berth.privacy.tasks.ingest")
def ingest() -> None:
    """Runs every two seconds. While PostgreSQL or Valkey is away, records wait where they are, and then gateways drop."""
    try:
        ingester.ingest()
    except (*UNAVAILABLE, OperationalError) as error:
        log.warning("records_deferred", extra={"reason": type(error).__name__})


@app.task(name="berth.privacy.tasks.expire")
def expire() -> None:
    """Runs every ten minutes."""
    ingester.expire()
