"""The ledger: what usage costs, booked once, both sides, never changed."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet, Sum
from django.utils import timezone

from berth.billing.locks import while_booking
from berth.billing.models import LedgerAccount, LedgerEntry, PriceVersion, RatedEvent, Statement
from berth.billing.periods import open_period
from berth.billing.prices import PriceBook, book_for, prices_of
from berth.billing.rating import Charge, rate, total
from berth.billing.spending import note, usage_of
from berth.metering.models import PendingEvent, UsageEvent
from berth.orgs.models import Organisation
from berth.web.errors import Conflict, NotFound

log = logging.getLogger(__name__)

BATCH = 500
ROUNDS = 40


def rate_pending(*, limit: int = BATCH, rounds: int = ROUNDS) -> int:
    """Rates what waits and books it; returns how many events. Any number of workers may run at once: each takes rows that no
    other holds, and an event's postings, its mark and the end of its waiting are one transaction."""
    done = 0
    for _ in range(rounds):
        taken = _rate_some(limit)
        done += taken
        if taken < limit:
            break
    if done:
        log.info("usage_rated", extra={"count": done})
    return done


@transaction.atomic
def _rate_some(limit: int) -> int:
    while_booking()
    waiting = PendingEvent.objects.select_for_update(skip_locked=True).filter(held="").order_by("id")[:limit]
    ids = [pending.pk for pending in waiting]
    if not ids:
        return 0
    across = "rating is for all organisations"
    rated = set(RatedEvent.objects.across_orgs(across).filter(pk__in=ids).values_list("pk", flat=True))
    events = list(UsageEvent.objects.across_orgs(across).filter(pk__in=ids).exclude(pk__in=rated).order_by("id"))
    _book(events, book_for({event.org_id for event in events}))
    PendingEvent.objects.filter(pk__in=ids, held="").delete()
    return len(ids)


def _book(events: Sequence[UsageEvent], book: PriceBook) -> None:
    periods = _Periods({event.org_id for event in events})
    entries: list[LedgerEntry] = []
    marks: list[RatedEvent] = []
    for event in events:
        try:
            version = book.at(event.org_id, event.deployment_id, event.accepted_at)
            charges = rate(usage_of(event), prices_of(version))
        except (LookupError, ValueError, ArithmeticError) as error:
            # One event that cannot be rated waits for the operator; it must not hold up the rest.
            PendingEvent.objects.filter(pk=event.pk).update(held=type(error).__name__)
            log.error("usage_not_rated", extra={"event_id": event.pk, "reason": type(error).__name__})
            continue
        entries += _postings(event, version, charges, periods.of(event.org_id, event.accepted_at))
        amount = total(charge.amount for charge in charges)
        marks.append(RatedEvent(id=event.pk, org_id=event.org_id, amount=amount))
    # Plain inserts: were an event here twice, the unique constraints stop the whole transaction.
    RatedEvent.objects.bulk_create(marks)
    LedgerEntry.objects.bulk_create(entries, batch_size=1000)
    amounts = {mark.pk: mark.amount for mark in marks}
    note((event, amounts[event.pk]) for event in events if event.pk in amounts)


def _postings(event: UsageEvent, version: PriceVersion, charges: Sequence[Charge], period: str) -> list[LedgerEntry]:
    """Both sides of each charge."""
    return [
        LedgerEntry(
            org_id=event.org_id,
            event_id=event.pk,
            unit=charge.unit,
            account=account,
            quantity=charge.quantity,
            amount=charge.amount.copy_negate() if account == LedgerAccount.REVENUE else charge.amount,
            price=version,
            deployment_id=event.deployment_id,
            key_id=event.key_id,
            at=event.accepted_at,
            period=period,
        )
        for charge in charges
        for account in (LedgerAccount.RECEIVABLE, LedgerAccount.REVENUE)
    ]


@transaction.atomic
def reverse(org: Organisation, event_id: UUID, *, now: datetime | None = None) -> list[LedgerEntry]:
    """Takes back what an event was billed, by postings of the opposite sign in the month that is open now. Returns them."""
    now = now or timezone.now()
    while_booking()
    entries = list(LedgerEntry.objects.for_org(org).filter(event_id=event_id, reverses=None).order_by("id"))
    if not entries:
        raise NotFound("usage event")
    if LedgerEntry.objects.for_org(org).filter(reverses__in=entries).exists():
        raise Conflict("already_reversed", "This event was taken back already; it is on the statement as a correction.")
    period = _Periods({org.pk}).of(org.pk, now)
    return LedgerEntry.objects.bulk_create(
        [
            LedgerEntry(
                org_id=entry.org_id,
                event_id=entry.event_id,
                unit=entry.unit,
                account=entry.account,
                quantity=-entry.quantity,
                amount=entry.amount.copy_negate(),
                price_id=entry.price_id,
                deployment_id=entry.deployment_id,
                key_id=entry.key_id,
                at=entry.at,
                period=period,
                reverses=entry,
            )
            for entry in entries
        ]
    )


class _Periods:
    """In which month an event of these organisations is booked. Late events of a closed month go into the next open one."""

    def __init__(self, org_ids: set[UUID]) -> None:
        self._zones = dict(Organisation.objects.filter(pk__in=org_ids).values_list("pk", "time_zone"))
        self._closed: dict[UUID, set[str]] = defaultdict(set)
        closed = Statement.objects.across_orgs("which months are closed?").filter(org_id__in=org_ids)
        for org_id, period in closed.values_list("org_id", "period"):
            self._closed[org_id].add(period)

    def of(self, org_id: UUID, at: datetime) -> str:
        return open_period(at, self._zones[org_id], self._closed[org_id])


def receivables(org: Organisation) -> QuerySet[LedgerEntry]:
    return LedgerEntry.objects.for_org(org).filter(account=LedgerAccount.RECEIVABLE)


def imbalance() -> Decimal:
    """The sum of all entries: 0, or something is wrong."""
    entries = LedgerEntry.objects.across_orgs("the books balance as a whole")
    return entries.aggregate(sum=Sum("amount"))["sum"] or Decimal(0)
