"""Usage events into PostgreSQL, each once. Everything here runs inside the ingester's transaction."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.apps import apps
from django.db.models import Q
from django.db.models.functions import Coalesce, Greatest

from berth.keys.models import ApiKey
from berth.metering.batches import Fault, Reading
from berth.metering.models import GatewayPosition, PendingEvent, RejectedBatch, UsageEvent
from berth.web.events import publish_event
from berth_gateway import contract

log = logging.getLogger(__name__)


def store(reading: Reading, raw: bytes) -> list[UsageEvent]:
    """Stores what may be believed, keeps the rest as a rejected batch, moves the gateway's position. Returns the new events."""
    good, strangers = _own(reading.events)
    for fault in (*reading.faults, *strangers):
        reject(reading.gateway, fault, raw)
    new = _insert(good)
    if reading.trusted is not None:
        _advance(reading.trusted)
    return new


def reject(gateway: str, fault: Fault, raw: bytes) -> None:
    """The visible dead letter. The log line is what an alarm watches."""
    log.error("usage_rejected", extra={"gateway": gateway, "reason": fault.reason, "count": fault.left_out})
    RejectedBatch.objects.bulk_create(
        [
            RejectedBatch(
                gateway=gateway, reason=fault.reason, count=fault.left_out, raw=raw, digest=hashlib.sha256(raw).digest()
            )
        ],
        ignore_conflicts=True,
    )


def _own(events: Iterable[contract.UsageEvent]) -> tuple[list[contract.UsageEvent], list[Fault]]:
    """Splits off events whose key or deployment is not the organisation's (threat D3). Revoked keys and deleted deployments keep
    their rows, so an honest late event finds them."""
    events = list(events)
    keys = _owners(ApiKey, {event.key_id for event in events})
    # Deployments stand above metering; only the owner of an id is asked for, and nothing of the room is imported.
    deployments = _owners(apps.get_model("deployments", "Deployment"), {event.deployment_id for event in events})
    good: list[contract.UsageEvent] = []
    wrong: dict[str, int] = {}
    for event in events:
        if keys.get(event.key_id) != event.org_id:
            wrong["foreign_key_id"] = wrong.get("foreign_key_id", 0) + 1
        elif deployments.get(event.deployment_id) != event.org_id:
            wrong["foreign_deployment"] = wrong.get("foreign_deployment", 0) + 1
        else:
            good.append(event)
    return good, [Fault(*item) for item in sorted(wrong.items())]


def _owners(model: Any, ids: set[str]) -> dict[str, str]:
    rows = (
        model.objects.across_orgs("whose is what a usage event names?").filter(pk__in=ids).values_list("pk", "org_id")
    )
    return {str(pk): str(org_id) for pk, org_id in rows}


def _insert(events: Sequence[contract.UsageEvent]) -> list[UsageEvent]:
    """Rows for the events that are not there yet; what arrives again later, even altered, changes nothing."""
    wanted = {UUID(event.event_id): event for event in reversed(events)}  # the first of two with one id wins
    known = set(
        UsageEvent.objects.across_orgs("event ids are unique over all organisations")
        .filter(pk__in=wanted.keys())
        .values_list("pk", flat=True)
    )
    rows = [_row(event) for event_id, event in wanted.items() if event_id not in known]
    # The ingester is alone (its lock), so a conflict cannot happen; were it to, the transaction fails and is tried again.
    UsageEvent.objects.bulk_create(rows, batch_size=1000)
    PendingEvent.objects.bulk_create([PendingEvent(id=row.pk, org_id=row.org_id) for row in rows], batch_size=1000)
    return rows


def _row(event: contract.UsageEvent) -> UsageEvent:
    return UsageEvent(
        id=UUID(event.event_id),
        org_id=UUID(event.org_id),
        gateway=event.gateway,
        key_id=UUID(event.key_id),
        deployment_id=UUID(event.deployment_id),
        revision=event.revision,
        endpoint=event.endpoint,
        stream=event.stream,
        accepted_at=datetime.fromtimestamp(event.accepted_at, UTC),
        duration_ms=event.duration_ms,
        first_token_ms=event.first_token_ms,
        outcome=event.outcome.value,
        status=event.status,
        counted_by=event.counted_by.value,
        prompt_tokens=event.prompt_tokens,
        cached_tokens=event.cached_tokens,
        completion_tokens=event.completion_tokens,
        reasoning_tokens=event.reasoning_tokens,
    )


def _advance(batch: contract.UsageBatch) -> None:
    """A gap is left as it is: the gateway sees that its position stays and sends again from there."""
    GatewayPosition.objects.get_or_create(gateway=batch.gateway)
    moved = GatewayPosition.objects.filter(gateway=batch.gateway, position__gte=batch.start).update(
        position=Greatest("position", batch.end), updated_at=datetime.now(UTC)
    )
    if not moved:
        log.warning("usage_gap", extra={"gateway": batch.gateway})


def note(new: Sequence[UsageEvent]) -> None:
    """What follows from new events: keys know when they were last used, dashboards hear of it at commit."""
    last: dict[UUID, datetime] = {}
    per_org: dict[UUID, int] = {}
    for event in new:
        last[event.key_id] = max(event.accepted_at, last.get(event.key_id, event.accepted_at))
        per_org[event.org_id] = per_org.get(event.org_id, 0) + 1
    for key_id, at in sorted(last.items()):
        stale = Q(last_used_at=None) | Q(last_used_at__lt=at)
        ApiKey.objects.across_orgs("usage of many organisations arrives together").filter(stale, pk=key_id).update(
            last_used_at=Greatest(Coalesce("last_used_at", at), at)
        )
    for org_id, count in per_org.items():
        newest = max(event.accepted_at for event in new if event.org_id == org_id)
        publish_event(org_id, "usage", "events", int(newest.timestamp() * 1000), {"new": count})
