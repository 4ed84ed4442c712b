"""Asking the reconciler to look now."""

from __future__ import annotations

import functools
import logging
from uuid import UUID

from django.db import transaction
from django.db.models.functions import Now
from kombu.exceptions import OperationalError

from berth.celery import app
from berth.deployments.models import Deployment

log = logging.getLogger(__name__)

RECONCILE_TASK = "berth.deployments.tasks.reconcile"


def kick(deployment: Deployment) -> None:
    """Makes the deployment due, and asks for a look once the running transaction has committed."""
    Deployment.objects.for_org(deployment.org_id).filter(pk=deployment.pk).update(check_at=Now())
    transaction.on_commit(functools.partial(ask, deployment.pk))


def ask(deployment_id: UUID, *, in_seconds: float = 0.0) -> None:
    """Sends the task. With the broker away, the next scheduled sweep finds what is due."""
    try:
        app.send_task(
            RECONCILE_TASK, kwargs={"deployment_id": str(deployment_id)}, countdown=in_seconds or None, retry=False
        )
    except (OperationalError, OSError):
        log.warning("reconcile_deferred", extra={"deployment_id": str(deployment_id), "reason": "broker_unavailable"})
