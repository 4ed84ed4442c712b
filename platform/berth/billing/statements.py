"""Statements: the ledger of a month, in lines of deployment, price version and unit.

An open month is summed up when it is asked for. A closed one is rows that never change and a hash over them; usage of its time
that arrives later stands on the next open month's statement.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Literal
from uuid import UUID, uuid5

from django.conf import settings
from django.db import OperationalError, transaction
from django.db.models import Min, Sum
from django.utils import timezone

from berth.billing.ledger import receivables
from berth.billing.locks import while_closing
from berth.billing.models import LedgerEntry, PriceVersion, Statement, StatementLine
from berth.billing.periods import bounds, following, is_period, period_of, periods_between
from berth.billing.rating import text, to_micro, total
from berth.deployments.models import Deployment
from berth.metering.models import PendingEvent, UsageEvent
from berth.orgs.models import Organisation
from berth.web.errors import Conflict, NotFound
from berth.web.events import publish_event

log = logging.getLogger(__name__)

CLOSE_AFTER = timedelta(hours=48)  # gateways may be cut off and bring usage later
LINE_SPACE = UUID("0d6f0a52-94a1-5c0c-9d5e-3a3f3d1e7b11")


@dataclass(frozen=True)
class Line:
    id: UUID
    deployment_id: UUID
    deployment_name: str
    price_id: UUID
    price_number: int
    unit: str
    unit_price: Decimal
    quantity: int
    exact: Decimal
    amount_micro: int


@dataclass(frozen=True)
class Month:
    """A statement, open or closed. `total_micro` is the sum of the lines' rounded amounts."""

    period: str
    status: Literal["open", "closed"]
    starts_at: datetime
    ends_at: datetime
    currency: str
    lines: tuple[Line, ...]
    content_hash: str | None = None

    @property
    def total_micro(self) -> int:
        return sum(line.amount_micro for line in self.lines)

    @property
    def exact(self) -> Decimal:
        return total(line.exact for line in self.lines)


def line_id(org_id: UUID, period: str, deployment_id: UUID, price_id: UUID, unit: str) -> UUID:
    return uuid5(LINE_SPACE, f"{org_id}/{period}/{deployment_id}/{price_id}/{unit}")


def currency() -> str:
    """That of the prices, once there are any: it cannot change."""
    return PriceVersion.objects.order_by("number").values_list("currency", flat=True).first() or settings.CURRENCY


def months(org: Organisation, *, now: datetime | None = None) -> list[Month]:
    """Every month from the organisation's first to the current one, newest first."""
    now = now or timezone.now()
    rows = Statement.objects.for_org(org).prefetch_related("lines__price")
    closed = {row.period: row for row in rows}
    return [
        _closed(closed[period]) if period in closed else _open(org, period) for period in reversed(_periods(org, now))
    ]


def month(org: Organisation, period: str, *, now: datetime | None = None) -> Month:
    """NotFound for a month that is none of the organisation's."""
    now = now or timezone.now()
    if not is_period(period):
        raise NotFound("statement")
    closed = Statement.objects.for_org(org).filter(period=period).first()
    if closed is not None:
        return _closed(closed)
    if period not in _periods(org, now):
        raise NotFound("statement")
    return _open(org, period)


def close_month(org: Organisation, period: str, *, now: datetime | None = None) -> Statement:
    """Closes a month that has ended. Closing again returns the same statement; months close in order."""
    now = now or timezone.now()
    with transaction.atomic():
        while_closing()
        made = Statement.objects.for_org(org).filter(period=period).first()
        if made is not None:
            return made
        periods = _periods(org, now)
        if period not in periods:
            raise NotFound("statement")
        if bounds(period, org.time_zone)[1] > now:
            raise Conflict("month_not_over", "This month is not over in the organisation's time zone.")
        closed = set(Statement.objects.for_org(org).values_list("period", flat=True))
        if any(earlier not in closed for earlier in periods if earlier < period):
            raise Conflict("earlier_month_open", "An earlier month is still open. Close it first.")
        made = _write(org, _open(org, period))
        publish_event(org.pk, "statements", period, int(now.timestamp() * 1000), {"status": "closed"})
        return made


def close_due(*, now: datetime | None = None) -> int:
    """Closes every month that is over for good; returns how many. A month waits while usage of it is still to be rated.

    What is wrong with one organisation stops no other: it is logged by its id, and tried again the next time.
    """
    now = now or timezone.now()
    done = 0
    for org in Organisation.objects.order_by("id"):
        try:
            done += _close_those_of(org, now)
        except OperationalError:
            raise  # the database is away: nobody's month can be closed
        except Exception as error:  # noqa: BLE001
            log.error("month_not_closed", extra={"org_id": str(org.pk), "reason": type(error).__name__})
    return done


def _close_those_of(org: Organisation, now: datetime) -> int:
    done = 0
    closed = set(Statement.objects.for_org(org).values_list("period", flat=True))
    for period in _periods(org, now):
        if period in closed:
            continue
        ends_at = bounds(period, org.time_zone)[1]
        if now < ends_at + CLOSE_AFTER or _unrated(org, ends_at):
            break
        close_month(org, period, now=now)
        done += 1
    return done


def content_hash(org_id: UUID, made: Month) -> str:
    """SHA-256 over everything that a statement says, in a fixed form."""
    content = {
        "org": str(org_id),
        "period": made.period,
        "starts_at": made.starts_at.astimezone(UTC).isoformat(),
        "ends_at": made.ends_at.astimezone(UTC).isoformat(),
        "currency": made.currency,
        "total_micro": made.total_micro,
        "lines": [
            {
                "id": str(line.id),
                "deployment": str(line.deployment_id),
                "deployment_name": line.deployment_name,
                "price": str(line.price_id),
                "unit": line.unit,
                "unit_price": text(line.unit_price),
                "quantity": line.quantity,
                "exact": text(line.exact),
                "amount_micro": line.amount_micro,
            }
            for line in sorted(made.lines, key=lambda line: line.id)
        ],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _periods(org: Organisation, now: datetime) -> list[str]:
    first = period_of(org.created_at, org.time_zone)
    booked: str | None = LedgerEntry.objects.for_org(org).aggregate(first=Min("period"))["first"]
    last_closed = Statement.objects.for_org(org).order_by("-period").values_list("period", flat=True).first()
    # A changed time zone may put "now" back into a month that is closed.
    last = max(period_of(now, org.time_zone), following(last_closed) if last_closed else "")
    return periods_between(min(first, booked or first), last)


def _unrated(org: Organisation, before: datetime) -> bool:
    pending = PendingEvent.objects.filter(org=org, held="").values("pk")
    return UsageEvent.objects.for_org(org).filter(pk__in=pending, accepted_at__lt=before).exists()


def _open(org: Organisation, period: str) -> Month:
    sums = list(
        receivables(org)
        .filter(period=period)
        .values("deployment_id", "price_id", "unit")
        .annotate(quantities=Sum("quantity"), exact=Sum("amount"))
    )
    names = deployment_names(org, {row["deployment_id"] for row in sums})
    prices = PriceVersion.objects.in_bulk({row["price_id"] for row in sums})
    lines = [
        Line(
            id=line_id(org.pk, period, row["deployment_id"], row["price_id"], row["unit"]),
            deployment_id=row["deployment_id"],
            deployment_name=names.get(row["deployment_id"], ""),
            price_id=row["price_id"],
            price_number=prices[row["price_id"]].number,
            unit=row["unit"],
            unit_price=getattr(prices[row["price_id"]], row["unit"]),
            quantity=int(row["quantities"]),
            exact=row["exact"],
            amount_micro=to_micro(row["exact"]),
        )
        for row in sums
    ]
    starts_at, ends_at = bounds(period, org.time_zone)
    return Month(period, "open", starts_at, ends_at, currency(), _sorted(lines))


def _closed(statement: Statement) -> Month:
    lines = [
        Line(
            id=row.pk,
            deployment_id=row.deployment_id,
            deployment_name=row.deployment_name,
            price_id=row.price_id,
            price_number=row.price.number,
            unit=row.unit,
            unit_price=row.unit_price,
            quantity=row.quantity,
            exact=row.exact,
            amount_micro=row.amount_micro,
        )
        for row in statement.lines.all()
    ]
    return Month(
        statement.period,
        "closed",
        statement.starts_at,
        statement.ends_at,
        statement.currency,
        _sorted(lines),
        statement.content_hash,
    )


def _write(org: Organisation, made: Month) -> Statement:
    statement = Statement.objects.create(
        org=org,
        period=made.period,
        starts_at=made.starts_at,
        ends_at=made.ends_at,
        currency=made.currency,
        total_micro=made.total_micro,
        content_hash=content_hash(org.pk, made),
    )
    StatementLine.objects.bulk_create(
        [
            StatementLine(
                id=line.id,
                org=org,
                statement=statement,
                deployment_id=line.deployment_id,
                deployment_name=line.deployment_name,
                price_id=line.price_id,
                unit=line.unit,
                quantity=line.quantity,
                unit_price=line.unit_price,
                exact=line.exact,
                amount_micro=line.amount_micro,
            )
            for line in made.lines
        ]
    )
    return statement


def _sorted(lines: Iterable[Line]) -> tuple[Line, ...]:
    return tuple(
        sorted(lines, key=lambda line: (line.deployment_name, line.deployment_id, line.price_number, line.unit))
    )


def deployment_names(org: Organisation, ids: Iterable[UUID]) -> dict[UUID, str]:
    """Deleted ones keep their name."""
    return dict(Deployment.objects.for_org(org).filter(pk__in=set(ids)).values_list("pk", "name"))
