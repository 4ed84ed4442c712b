"""How lower layers say "gateways must hear of this" without knowing who publishes."""

from __future__ import annotations

import logging
from collections.abc import Callable

from django.db import transaction
from kombu.exceptions import OperationalError

from berth.celery import app
from berth.outbox.models import Change

log = logging.getLogger(__name__)

PUBLISH_TASK = "berth.publishing.tasks.publish"


def announce(topic: str) -> int:
    """Record a change; call it in the transaction that makes the change. Publishing is asked for at commit and, should the
    broker be away just then, done by the next scheduled run.

    Returns the change's id, with which `GET /orgs/{org}/gateways?change=` tells where it has arrived.
    """
    change = Change.objects.create(topic=topic)
    transaction.on_commit(_ask_to_publish)
    return change.pk


_listeners: list[Callable[[], None]] = []


def on_announced(listener: Callable[[], None]) -> None:
    """Also calls `listener` after each commit with a change. It must return at once and not raise."""
    _listeners.append(listener)


def _ask_to_publish() -> None:
    for listener in _listeners:
        listener()
    # A listener is at it already: the worker only makes sure, and does not compete with it for the same work.
    delay = 1.0 if _listeners else None
    try:
        app.send_task(PUBLISH_TASK, retry=False, countdown=delay)
    except (OperationalError, OSError):
        log.warning("publish_deferred", extra={"reason": "broker_unavailable"})
