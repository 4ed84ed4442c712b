"""Changes are published by the process that makes them, and by a worker's task."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import redis
from django.conf import settings
from django.db import connection, transaction
from django.utils import timezone

from berth.outbox import services as outbox
from berth.outbox.models import Change
from berth.publishing import services
from berth.publishing.here import Publisher, enable
from berth_gateway.contract import SNAPSHOT_KEY, SignedSnapshot, Snapshot
from tests import make

pytestmark = pytest.mark.django_db(transaction=True)


def keys_published(valkey: redis.Redis) -> set[str]:
    packed = valkey.hget(SNAPSHOT_KEY, "signed")
    if packed is None:
        return set()
    signed = msgspec.msgpack.decode(packed, type=SignedSnapshot)
    return {key.key_id for key in msgspec.msgpack.decode(signed.payload, type=Snapshot).keys}


def wait_for(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.threat("K4")
def test_a_commit_is_published_from_the_same_process(valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(outbox, "_listeners", [])
    monkeypatch.setattr(outbox.app, "send_task", lambda name, **_: asked.append(name))
    rounds: list[int | None] = []
    publisher = Publisher(lambda: rounds.append(services.publish()))
    outbox.on_announced(publisher.ask)
    key, _ = make.key(make.member(make.org(), "owner"))
    with transaction.atomic():
        outbox.announce("keys")
        time.sleep(0.2)
        assert rounds == [], "nothing before the commit"
    assert wait_for(lambda: keys_published(valkey) == {str(key.pk)})
    key.revoked_at = timezone.now()
    with transaction.atomic():
        key.save()
        outbox.announce("keys")
    assert wait_for(lambda: keys_published(valkey) == set())
    assert asked == [outbox.PUBLISH_TASK] * 2, "the worker is asked as well, should this process die"
    publisher.stop()
    assert not Change.objects.filter(version=None).exists()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_publisher_outlives_a_failure(valkey: redis.Redis) -> None:
    calls: list[int] = []

    def publish() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise redis.ConnectionError("away")
        if len(calls) == 2:
            raise SystemExit  # even a thread that ended is replaced

    publisher = Publisher(publish)
    for count in (1, 2, 3):
        assert wait_for(lambda count=count: (publisher.ask(), len(calls) >= count)[1])
    publisher.stop()


def test_enabled_by_setting_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "_listeners", [])
    enable()
    assert outbox._listeners == []
    monkeypatch.setattr(settings, "PUBLISH_AT_ONCE", True)
    enable()
    assert len(outbox._listeners) == 1


@pytest.mark.threat("K4")
def test_a_real_worker_publishes_what_was_announced(valkey: redis.Redis, tmp_path: Path) -> None:
    """The task by its name, through the broker, in a worker process as it runs in production."""
    owner = make.member(make.org(), "owner")
    key, _ = make.key(owner)
    stays, _ = make.key(owner)
    base = connection.settings_dict
    url = f"postgresql://{base['USER']}:{base['PASSWORD']}@{base['HOST']}:{base['PORT']}/{base['NAME']}"
    roots = [str(settings.PROJECT_DIR / "platform"), str(settings.PROJECT_DIR / "runtime")]
    env = os.environ | {
        "DJANGO_SETTINGS_MODULE": "berth.settings",
        "DATABASE_URL": url,
        "PYTHONPATH": os.pathsep.join(roots),
    }
    argv = [sys.executable, "-m", "celery", "-A", "berth.celery", "worker", "--pool", "solo", "-Q", "default"]
    log = (tmp_path / "worker.log").open("wb")
    worker = subprocess.Popen([*argv, "--without-gossip", "--without-mingle"], env=env, stdout=log, stderr=log)
    try:
        with transaction.atomic():
            outbox.announce("keys")
        assert wait_for(lambda: keys_published(valkey) == {str(key.pk), str(stays.pk)})
        key.revoked_at = timezone.now()
        with transaction.atomic():
            key.save()
            outbox.announce("keys")
        assert wait_for(lambda: keys_published(valkey) == {str(stays.pk)})
    finally:
        worker.terminate()
        worker.wait(30)
        log.close()
