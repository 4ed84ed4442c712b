"""Celery doors to billing."""

from __future__ import annotations

import logging

from django.db import OperationalError

from berth.billing.ledger import rate_pending
from berth.billing.statements import close_due
from berth.billing.watch import look
from berth.celery import app
from berth.outbox.valkey import UNAVAILABLE

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


@app.task(name="berth.billing.tasks.watch_budgets")
def watch_budgets() -> None:
    """Runs every two seconds. While PostgreSQL or Valkey is away, gateways go on with what they hold."""
    try:
        look()
    except (*UNAVAILABLE, OperationalError) as error:
        log.warning("budgets_deferred", extra={"reason": type(error).__name__})
