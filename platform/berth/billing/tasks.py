"""Celery doors to billing."""

from __future__ import annotations

import logging

from django.db import OperationalError

from berth.billing.ledger import rate_pending
from berth.billing.statements import close_due
from berth.celery import app

log = logging.getLogger(__name__)


@app.task(name="berth.billing.tasks.rate")
def rate() -> None:
    """Runs every two seconds."""
    try:
        rate_pending()
    except OperationalError as error:
        log.warning("rating_deferred", extra={"reason": type(error).__name__})


@app.task(name="berth.billing.tasks.close")
def close() -> None:
    """Runs every hour and closes the months that are over for good."""
    try:
        close_due()
    except OperationalError as error:
        log.warning("closing_deferred", extra={"reason": type(error).__name__})
