"""Sealed records from gateways into the table, each once. They are deleted from the stream only after the commit."""

from __future__ import annotations

import hmac
import logging
import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, cast
from uuid import UUID

import msgspec
from django.apps import apps
from django.conf import settings
from django.db import transaction
from django.utils import timezone

from berth.keys.models import ApiKey
from berth.outbox.valkey import client
from berth.privacy.models import InferenceRecord, PrivacyPolicy, SealingKey
from berth_gateway.contract import RECORD_FORMAT, RECORD_STREAM, SealedRecord, record_mac, usage_key

log = logging.getLogger(__name__)

ENTRIES = 50  # in one transaction
ROUNDS = 40
MASTER_KEY = "usage_master_key"
MOST_BOX = 4 * 1024 * 1024

Entry = tuple[bytes, dict[bytes, bytes]]


class Ingested(NamedTuple):
    kept: int
    left: int  # that could not be believed, or are wanted no more


def ingest(*, now: datetime | None = None) -> Ingested:
    """Takes what waits in the stream, up to a bound. Any number may run: a record that is there already changes nothing."""
    now = now or timezone.now()
    kept = left = 0
    for _ in range(ROUNDS):
        entries = cast("list[Entry]", client().xrange(RECORD_STREAM, count=ENTRIES))
        if not entries:
            break
        with transaction.atomic():
            stored = _store([fields.get(b"record", b"") for _, fields in entries], now)
        kept, left = kept + stored, left + len(entries) - stored
        client().xdel(RECORD_STREAM, *[entry_id for entry_id, _ in entries])
    if left:
        log.warning("records_left", extra={"count": left})
    return Ingested(kept, left)


def expire(*, now: datetime | None = None) -> int:
    """Deletes what has outlived its retention. Returns how many records that were."""
    now = now or timezone.now()
    ended = InferenceRecord.objects.across_orgs("every organisation's records end").filter(expires_at__lte=now)
    return ended.delete()[0]


def _store(raws: Sequence[bytes], now: datetime) -> int:
    records = [record for raw in raws if (record := _read(raw)) is not None]
    policies = {
        str(row.org_id): row
        for row in PrivacyPolicy.objects.across_orgs("records of many organisations arrive together").filter(
            recording=True, org_id__in={record.org_id for record in records}
        )
    }
    keys = _owners(ApiKey, {record.api_key_id for record in records})
    # Deployments stand above; only the owner of an id is asked for, and nothing of the room is imported.
    deployments = _owners(apps.get_model("deployments", "Deployment"), {record.deployment_id for record in records})
    sealing = _owners(SealingKey, {record.sealing_key_id for record in records}, destroyed_at=None)
    rows = []
    for record in records:
        policy = policies.get(record.org_id)
        owners = (
            keys.get(record.api_key_id),
            deployments.get(record.deployment_id),
            sealing.get(record.sealing_key_id),
        )
        if policy is None or set(owners) != {record.org_id} or _excluded(policy, record):
            continue
        at = datetime.fromtimestamp(record.accepted_at, UTC)
        end = min(at, now) + timedelta(days=policy.retention_days)
        if end > now:
            rows.append(_row(record, at, end))
    InferenceRecord.objects.bulk_create(rows, ignore_conflicts=True)
    return len(rows)


def _excluded(policy: PrivacyPolicy, record: SealedRecord) -> bool:
    """Whether it was turned off meanwhile."""
    return (
        UUID(record.deployment_id) in policy.excluded_deployment_ids
        or UUID(record.api_key_id) in policy.excluded_key_ids
    )


def _row(record: SealedRecord, at: datetime, end: datetime) -> InferenceRecord:
    return InferenceRecord(
        id=UUID(record.event_id),
        org_id=UUID(record.org_id),
        deployment_id=UUID(record.deployment_id),
        api_key_id=UUID(record.api_key_id),
        sealing_key_id=UUID(record.sealing_key_id),
        accepted_at=at,
        expires_at=end,
        box=record.box,
    )


def _read(raw: bytes) -> SealedRecord | None:
    """A record that its gateway has made; None for anything else."""
    try:
        record = msgspec.msgpack.decode(raw, type=SealedRecord)
        ids = (record.event_id, record.org_id, record.deployment_id, record.api_key_id, record.sealing_key_id)
        if any(str(UUID(each)) != each for each in ids):
            return None
    except (msgspec.MsgspecError, ValueError):
        return None
    if record.format != RECORD_FORMAT or len(record.box) > MOST_BOX or not math.isfinite(record.accepted_at):
        return None
    if not 0 < record.accepted_at < 1e11 or len(record.gateway) > 64:
        return None
    master = bytes.fromhex((settings.SECRETS_DIR / MASTER_KEY).read_text().strip())
    mac = record_mac(usage_key(master, record.gateway), record)
    return record if hmac.compare_digest(mac, record.mac) else None


def _owners(model: Any, ids: set[str], **more: Any) -> dict[str, str]:
    rows = (
        model.objects.across_orgs("whose is what a record names?")
        .filter(pk__in=ids, **more)
        .values_list("pk", "org_id")
    )
    return {str(pk): str(org_id) for pk, org_id in rows}
