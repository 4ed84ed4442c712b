"""Celery doors to conversions."""

from __future__ import annotations

from django.utils import timezone

from berth.catalog.conversion import work
from berth.celery import app


@app.task(name="berth.catalog.conversion.tasks.convert")
def convert() -> None:
    """By the clock: starts what waits on this machine, follows what runs, keeps what is finished."""
    for conversion_id in work.due(timezone.now()):
        work.look(conversion_id, timezone.now())
