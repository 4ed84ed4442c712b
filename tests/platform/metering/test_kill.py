"""The ingester killed with SIGKILL, again and again, on real PostgreSQL and Valkey: nothing is lost, nothing is double."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time

import pytest
import redis
from django.conf import settings
from django.db import connection

from berth.billing.ledger import rate_pending
from berth.billing.models import LedgerEntry, RatedEvent
from berth.metering.ingest import ingest
from berth.metering.models import PendingEvent, UsageEvent
from berth_gateway.contract import USAGE_POSITION_KEY, USAGE_STREAM
from tests import make
from tests.platform.metering import gateway

WORKER = """
import django
django.setup()
from berth.billing.ledger import rate_pending
from berth.metering import ingest
ingest.ENTRIES = 3
print("working", flush=True)
while True:
    ingest.ingest()
    rate_pending(limit=5)
"""


def start_worker() -> subprocess.Popen[bytes]:
    base = connection.settings_dict
    url = f"postgresql://{base['USER']}:{base['PASSWORD']}@{base['HOST']}:{base['PORT']}/{base['NAME']}"
    roots = [str(settings.PROJECT_DIR / "platform"), str(settings.PROJECT_DIR / "runtime")]
    env = os.environ | {
        "DJANGO_SETTINGS_MODULE": "berth.settings",
        "DATABASE_URL": url,
        "PYTHONPATH": os.pathsep.join(roots),
    }
    return subprocess.Popen([sys.executable, "-c", WORKER], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


@pytest.mark.django_db(transaction=True)
def test_killed_again_and_again(valkey: redis.Redis) -> None:
    deployment = make.deployment(make.org())
    key = make.key(make.member(deployment.org))[0]
    dice = random.Random(7)
    events = [gateway.event(deployment, key, accepted_at=time.time()) for _ in range(400)]
    gateway.send(valkey, *(gateway.batch([event], at, at + 1) for at, event in enumerate(events)))

    for _ in range(3):
        worker = start_worker()
        try:
            assert worker.stdout is not None
            assert worker.stdout.readline() == b"working\n"
            time.sleep(dice.uniform(0.05, 0.4))
        finally:
            worker.kill()
            worker.wait()
            worker.stdout.close()

    # The killed workers' database sessions may hold their locks for a moment longer.
    deadline = time.monotonic() + 60
    while (valkey.xlen(USAGE_STREAM) or PendingEvent.objects.exists()) and time.monotonic() < deadline:
        ingest()
        rate_pending()
    expected = {event.event_id for event in events}
    rows = UsageEvent.objects.across_orgs("test").values_list("pk", flat=True)
    assert {str(pk) for pk in rows} == expected
    assert {str(pk) for pk in RatedEvent.objects.across_orgs("test").values_list("pk", flat=True)} == expected
    assert LedgerEntry.objects.across_orgs("test").count() == 400 * 2 * 2  # input and output, both sides
    assert valkey.hget(USAGE_POSITION_KEY, gateway.NAME) == b"400"
