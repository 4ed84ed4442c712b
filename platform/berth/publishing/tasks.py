"""Celery doors to publishing."""

from __future__ import annotations

import logging

from django.db import OperationalError

from berth.celery import app
from berth.outbox.valkey import UNAVAILABLE
from berth.publishing import services

log = logging.getLogger(__name__)


@app.task(name="berth.publishing.tasks.publish")
def publish() -> None:
    """Asked for at every change, and by the clock for whatever went wrong in between."""
    try:
        services.publish()
        services.tidy()
    except (*UNAVAILABLE, OperationalError) as error:
        log.warning("publish_deferred", extra={"reason": type(error).__name__})
