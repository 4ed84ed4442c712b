"""Usage events one by one, with what each cost; and the events behind a statement's line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db.models import QuerySet, Sum
from django.utils import timezone

from berth.billing import statements
from berth.billing.ledger import receivables
from berth.billing.models import LedgerEntry, RatedEvent, StatementLine
from berth.billing.usage import key_names
from berth.deployments.models import Deployment
from berth.metering.models import UsageEvent
from berth.orgs.models import Organisation
from berth.web.errors import NotFound


@dataclass(frozen=True)
class Shown:
    """`amount` is None while the event is not rated. Behind a line, it is what the event put on that line, of which it is
    `quantity` units; `correction` marks what was taken back."""

    event: UsageEvent
    deployment_name: str
    key_name: str
    amount: Decimal | None
    quantity: int | None = None
    correction: bool = False


def events(org: Organisation, filters: dict[str, Any]) -> QuerySet[UsageEvent]:
    """`filters`: deployment and key (name or id), start, end, outcome; each may be absent."""
    rows = UsageEvent.objects.for_org(org)
    if "deployment" in filters:
        rows = rows.filter(deployment_id__in=_ids(filters["deployment"], Deployment.objects.for_org(org)))
    if "key" in filters:
        rows = rows.filter(key_id=filters["key"])
    if "start" in filters:
        rows = rows.filter(accepted_at__gte=filters["start"])
    if "end" in filters:
        rows = rows.filter(accepted_at__lt=filters["end"])
    if "outcome" in filters:
        rows = rows.filter(outcome=filters["outcome"])
    return rows


def show(org: Organisation, rows: Sequence[UsageEvent]) -> list[Shown]:
    """A page of events with their names and whole cost."""
    ids = [row.pk for row in rows]
    amounts: dict[UUID, Decimal] = dict(RatedEvent.objects.for_org(org).filter(pk__in=ids).values_list("pk", "amount"))
    # The ledger has the last word: what was taken back costs nothing any more.
    sums = receivables(org).filter(event_id__in=ids).values("event_id").annotate(sum=Sum("amount"))
    amounts |= {row["event_id"]: row["sum"] for row in sums}
    deployments, keys = _names(org, rows)
    return [
        Shown(row, deployments.get(row.deployment_id, ""), keys.get(row.key_id, ""), amounts.get(row.pk))
        for row in rows
    ]


def line_entries(
    org: Organisation, line_id: UUID, period: str | None = None, *, now: datetime | None = None
) -> QuerySet[LedgerEntry]:
    """The ledger entries behind a line; their amounts sum to its `exact`. NotFound for a line that is none of the
    organisation's, or not of `period`."""
    now = now or timezone.now()
    row = StatementLine.objects.for_org(org).select_related("statement").filter(pk=line_id).first()
    if row is not None and period in {None, row.statement.period}:
        return _behind(org, row.statement.period, row.deployment_id, row.price_id, row.unit)
    searched = statements.months(org, now=now) if period is None else [statements.month(org, period, now=now)]
    for month in searched:
        for line in month.lines:
            if line.id == line_id:
                return _behind(org, month.period, line.deployment_id, line.price_id, line.unit)
    raise NotFound("statement line")


def show_entries(org: Organisation, entries: Sequence[LedgerEntry]) -> list[Shown]:
    """A page of a line's entries as the events that they are about."""
    found = UsageEvent.objects.for_org(org).in_bulk([entry.event_id for entry in entries])
    deployments, keys = _names(org, list(found.values()))
    return [
        Shown(
            event=(event := found[entry.event_id]),
            deployment_name=deployments.get(event.deployment_id, ""),
            key_name=keys.get(event.key_id, ""),
            amount=entry.amount,
            quantity=entry.quantity,
            correction=entry.reverses_id is not None,
        )
        for entry in entries
    ]


def _behind(org: Organisation, period: str, deployment_id: UUID, price_id: UUID, unit: str) -> QuerySet[LedgerEntry]:
    return receivables(org).filter(period=period, deployment_id=deployment_id, price_id=price_id, unit=unit)


def _names(org: Organisation, rows: Sequence[UsageEvent]) -> tuple[dict[UUID, str], dict[UUID, str]]:
    return (
        statements.deployment_names(org, {row.deployment_id for row in rows}),
        key_names(org, list({row.key_id for row in rows})),
    )


def _ids(text: str, rows: QuerySet[Deployment]) -> list[UUID]:
    """Of a deployment's id or name; a name may have belonged to several, one after the other."""
    try:
        return list(rows.filter(pk=UUID(text)).values_list("pk", flat=True))
    except ValueError:
        return list(rows.filter(name=text).values_list("pk", flat=True))
