"""The Celery application. Tasks live in each app's `tasks.py`; the schedule below is all that runs on its own."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from celery.signals import task_postrun, task_prerun
from django.db import close_old_connections

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "berth.settings")

app = Celery("berth")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
app.autodiscover_tasks(["berth.catalog.conversion"])


@task_prerun.connect
@task_postrun.connect
def let_go_of_bad_connections(**_: Any) -> None:
    """What Django does around a request: a connection to PostgreSQL that broke, or is older than CONN_MAX_AGE, ends, and
    the next query makes another. All others are kept for the next task."""
    close_old_connections()


# `expires` keeps a backlog from forming while workers are away: the next tick does the same work.
app.conf.beat_schedule = {
    "ingest usage events": {"task": "berth.metering.tasks.ingest", "schedule": 1.0, "options": {"expires": 5}},
    "ingest records": {"task": "berth.privacy.tasks.ingest", "schedule": 2.0, "options": {"expires": 5}},
    "expire records": {"task": "berth.privacy.tasks.expire", "schedule": 600.0, "options": {"expires": 600}},
    "rate usage events": {"task": "berth.billing.tasks.rate", "schedule": 2.0, "options": {"expires": 5}},
    "watch budgets": {"task": "berth.billing.tasks.watch_budgets", "schedule": 2.0, "options": {"expires": 5}},
    "close months": {"task": "berth.billing.tasks.close", "schedule": 3600.0, "options": {"expires": 3600}},
    "sweep deployments": {"task": "berth.deployments.tasks.sweep", "schedule": 2.0, "options": {"expires": 5}},
    "scale deployments": {"task": "berth.deployments.tasks.scale", "schedule": 2.0, "options": {"expires": 5}},
    "check plans": {"task": "berth.deployments.tasks.check_plans", "schedule": 60.0, "options": {"expires": 60}},
    "wake what is asked for": {"task": "berth.deployments.tasks.wake", "schedule": 0.5, "options": {"expires": 5}},
    "make artefacts": {"task": "berth.catalog.conversion.tasks.convert", "schedule": 2.0, "options": {"expires": 5}},
    "move imports": {"task": "berth.catalog.tasks.sweep_imports", "schedule": 2.0, "options": {"expires": 5}},
    "tidy the model store": {"task": "berth.catalog.tasks.tidy", "schedule": 300.0, "options": {"expires": 300}},
    "adopt stray contents": {
        "task": "berth.catalog.tasks.adopt_strays",
        "schedule": 21_600.0,
        "options": {"expires": 3600},
    },
    "publish what changed": {"task": "berth.publishing.tasks.publish", "schedule": 5.0, "options": {"expires": 5}},
}
