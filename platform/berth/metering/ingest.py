"""Usage events from gateways into PostgreSQL, exactly once, whatever is killed when.

The order is the proof: entries are read from the stream's beginning, stored in one transaction together with the gateways'
positions, and only after its commit deleted from the stream and acknowledged. Killed before the commit, nothing has happened and
the entries are still there; killed after it, they are read again and found to be known.
"""

from __future__ import annotations

import logging
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DataError, IntegrityError, connection, transaction
from django.utils import timezone

from berth.metering.batches import Fault, read_batch
from berth.metering.models import GatewayPosition, PendingEvent, RejectedBatch, UsageEvent
from berth.metering.store import note, reject, store
from berth.outbox.valkey import client
from berth_gateway.contract import USAGE_POSITION_KEY, USAGE_STREAM, usage_key

log = logging.getLogger(__name__)

LOCK = 0x6265727468_01  # advisory: one ingester at a time
ENTRIES = 20  # batches in one transaction, of some hundred events each
ROUNDS = 200  # transactions in one run; the next run goes on
MASTER_KEY = "usage_master_key"

Entry = tuple[bytes, dict[bytes, bytes]]


class Ingested(NamedTuple):
    batches: int
    events: int  # that were new


def ingest(*, now: datetime | None = None) -> Ingested:
    """Takes everything that waits in the stream, up to a bound. Does nothing while another ingester is at it."""
    now = now or timezone.now()
    batches = events = 0
    for _ in range(ROUNDS):
        taken, new = _round(now)
        batches, events = batches + len(taken), events + new
        if taken:
            forget(taken)
        tell_positions()
        if len(taken) < ENTRIES:
            break
    if batches:
        log.info("usage_ingested", extra={"count": events, "size": batches})
    return Ingested(batches, events)


def _round(now: datetime) -> tuple[list[bytes], int]:
    """One transaction. Returns the entries that are safely stored, and how many events were new."""
    with transaction.atomic():
        if not _alone():
            return [], 0
        entries = fetch()
        new: list[UsageEvent] = []
        for _, fields in entries:
            new += _take(fields.get(b"batch", b""), now)
        note(new)
    return [entry_id for entry_id, _ in entries], len(new)


def _alone() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [LOCK])
        return bool(cursor.fetchone()[0])


def _take(raw: bytes, now: datetime) -> list[UsageEvent]:
    """One batch. What the database refuses although it passed every check is kept aside too: it may not block the others."""
    reading = read_batch(raw, gateway_key, now.timestamp())
    try:
        with transaction.atomic():
            return store(reading, raw)
    except (DataError, IntegrityError):
        reject(reading.gateway, Fault("refused_by_database"), raw)
        return []


def fetch() -> list[Entry]:
    """The oldest entries of the stream. No consumer group: what is stored is deleted, so the beginning is always new."""
    return cast("list[Entry]", client().xrange(USAGE_STREAM, count=ENTRIES))


def forget(entry_ids: list[bytes]) -> None:
    client().xdel(USAGE_STREAM, *cast("list[Any]", entry_ids))


def tell_positions() -> None:
    """Makes Valkey say what PostgreSQL knows, whatever it has lost or a slower ingester has overwritten."""
    known = {row.gateway.encode(): str(row.position).encode() for row in GatewayPosition.objects.all()}
    said = cast("dict[bytes, bytes]", client().hgetall(USAGE_POSITION_KEY)) if known else {}
    changed = {name: value for name, value in known.items() if said.get(name) != value}
    if changed:
        client().hset(USAGE_POSITION_KEY, mapping=cast("dict[Any, Any]", changed))


def retry_rejected(*, now: datetime | None = None) -> Ingested:
    """Reads rejected batches again, after whatever was wrong has been put right. Resolved ones stay as a record."""
    now = now or timezone.now()
    resolved = events = 0
    for row in RejectedBatch.objects.filter(resolved_at=None).order_by("id"):
        with transaction.atomic():
            raw = bytes(row.raw)
            reading = read_batch(raw, gateway_key, now.timestamp())
            if not _alone():
                raise RuntimeError("The ingester is at work. Try again in a second.")
            new = store(reading, raw)
            note(new)
            events += len(new)
            if not reading.faults and UsageEvent.objects.across_orgs("is all of it stored?").filter(
                pk__in=[event.event_id for event in reading.events]
            ).count() == len({event.event_id for event in reading.events}):
                row.resolved_at = now
                row.save(update_fields=["resolved_at"])
                resolved += 1
    return Ingested(resolved, events)


def release_held() -> int:
    """Lets events that could not be rated wait for the next rating again; returns how many."""
    return PendingEvent.objects.exclude(held="").update(held="")


def gateway_key(gateway: str) -> bytes:
    return usage_key(_master(settings.SECRETS_DIR / MASTER_KEY), gateway)


@cache
def _master(path: Path) -> bytes:
    if not path.is_file():
        raise ImproperlyConfigured(
            f"The key that proves usage is missing at {path}. It is made on the first start; restore it from your backup. "
            "Until then usage stays in the gateways' spools."
        )
    return bytes.fromhex(path.read_text().strip())
