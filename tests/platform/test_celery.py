"""What holds for every task: connections to PostgreSQL are kept between tasks, and a broken one harms none."""

from __future__ import annotations

import psycopg
import pytest
from celery.fixups.django import DjangoWorkerFixup
from celery.signals import task_postrun, task_prerun
from django.db import connection

from berth.celery import app
from berth.deployments.tasks import sweep_all
from tests.settings import POSTGRES

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def fixup(monkeypatch: pytest.MonkeyPatch) -> DjangoWorkerFixup:
    """What a worker of Celery does around each task. The connection is a new one, kept as workers keep theirs, even where
    this process has loaded the web application, which keeps none."""
    monkeypatch.setitem(connection.settings_dict, "CONN_MAX_AGE", 60)
    connection.close()
    return DjangoWorkerFixup(app)


def backend() -> int:
    """The process of PostgreSQL that serves this thread's connection."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def between_two_tasks(fixup: DjangoWorkerFixup) -> None:
    fixup.on_task_postrun(sweep_all)
    task_postrun.send(sender=sweep_all)
    fixup.on_task_prerun(sweep_all)
    task_prerun.send(sender=sweep_all)


def test_tasks_share_a_connection(fixup: DjangoWorkerFixup) -> None:
    first = backend()
    between_two_tasks(fixup)
    assert backend() == first


def test_the_task_after_a_restart_of_postgresql_connects_anew(fixup: DjangoWorkerFixup) -> None:
    first = backend()
    with psycopg.connect(POSTGRES.url, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", [first])
    between_two_tasks(fixup)
    assert backend() != first


def test_a_connection_older_than_its_time_is_not_kept(fixup: DjangoWorkerFixup) -> None:
    first = backend()
    connection.close_at = 0.0
    between_two_tasks(fixup)
    assert backend() != first
