"""Celery doors to the reconciler."""

from __future__ import annotations

import logging
from typing import Any
from uuid import UUID, uuid4

from celery.signals import worker_ready
from django.utils import timezone

from berth.celery import app
from berth.compute.provider import ProviderError, ProviderUnavailable
from berth.compute.registry import default_provider
from berth.deployments import kick, scaling_lease, scaling_pass, sweep, waking
from berth.deployments.checks import check_plans
from berth.deployments.reconcile import reconcile as look
from berth.outbox.valkey import UNAVAILABLE

log = logging.getLogger(__name__)

SOON = 2.0  # seconds: what is to be looked at sooner asks for itself, the rest is left to the sweep

MARGIN = 0.02  # seconds: a task that comes before its time finds nothing due


@app.task(name="berth.deployments.tasks.sweep")
def sweep_all() -> None:
    """By the clock, and when a worker begins to work: nothing has to be remembered for a restart."""
    provider = default_provider()
    try:
        sweep.notice(provider, timezone.now())
    except ProviderUnavailable:
        log.warning("provider_unavailable", extra={"provider": provider.name})
    for deployment_id in sweep.due(timezone.now()):
        kick.ask(deployment_id)


@app.task(name="berth.deployments.tasks.wake")
def wake_asked() -> None:
    """By the clock, several times in a second's time: a request waits for each."""
    try:
        waking.wake_those_asked_for()
    except UNAVAILABLE as error:
        log.warning("wake_deferred", extra={"reason": type(error).__name__})


@app.task(name="berth.deployments.tasks.scale")
def scale() -> None:
    """By the clock. One worker at a time; while the load is not known, the numbers stay as they are."""
    holder = uuid4()
    try:
        scaling_pass.scale_all(holder, timezone.now())
    except UNAVAILABLE as error:
        log.warning("scaling_deferred", extra={"reason": type(error).__name__})
    finally:
        scaling_lease.release(holder)


@app.task(name="berth.deployments.tasks.check_plans")
def check_plans_by_the_clock() -> None:
    """What is planned, held against what was measured."""
    provider = default_provider()
    try:
        check_plans(provider, timezone.now())
    except ProviderError:
        log.warning("provider_unavailable", extra={"provider": provider.name})


@app.task(name=kick.RECONCILE_TASK)
def reconcile(*, deployment_id: str) -> None:
    check_at = look(UUID(deployment_id), default_provider())
    if check_at is None:
        return
    wait = (check_at - timezone.now()).total_seconds()
    if wait <= SOON:
        kick.ask(UUID(deployment_id), in_seconds=max(0.0, wait) + MARGIN)


@worker_ready.connect
def _at_start(sender: Any = None, **_: Any) -> None:
    """A restarted platform serves again within seconds: the first sweep does not wait for the clock."""
    sweep_all.delay()
