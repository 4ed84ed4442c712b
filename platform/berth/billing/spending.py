"""What was spent, for budgets: the ledger by quarters of an hour, and what is still to be booked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Q, QuerySet, Sum

from berth.billing.models import BudgetScope, LedgerAccount, LedgerEntry, SpentSlice
from berth.billing.prices import PriceBook, book_for, prices_of
from berth.billing.rating import EXACT, Usage, rate, total
from berth.keys.models import ApiKey, KeyKind
from berth.metering.models import PendingEvent, UsageEvent
from berth.orgs.models import Member
from berth_gateway.contract import CountedBy, Outcome, Period

QUARTER = 900  # seconds; every time zone's day begins with one
_PICO = Decimal(10**12)

_ADD = """
INSERT INTO billing_spentslice (org_id, gateway, deployment_id, key_id, at, amount) VALUES (%s, %s, %s, %s, %s, %s)
ON CONFLICT ON CONSTRAINT spent_slice_once DO UPDATE SET amount = billing_spentslice.amount + EXCLUDED.amount
"""
_REBUILD = """
INSERT INTO billing_spentslice (org_id, gateway, deployment_id, key_id, at, amount)
SELECT u.org_id, u.gateway, u.deployment_id, u.key_id,
  to_timestamp(floor(extract(epoch FROM u.accepted_at) / 900) * 900) AS quarter, sum(r.amount)
FROM metering_usageevent u JOIN billing_ratedevent r ON r.id = u.id
WHERE r.amount > 0 GROUP BY u.org_id, u.gateway, u.deployment_id, u.key_id, quarter
"""


@dataclass(frozen=True)
class Subject:
    """Whose spending is meant."""

    org_id: UUID
    scope: str
    subject_id: UUID


def pico(amount: Decimal) -> int:
    """In 10^-12 of the currency; exact, because amounts have at most 12 places."""
    return int(EXACT.multiply(amount, _PICO))


def usage_of(event: UsageEvent) -> Usage:
    """An answer that the engine itself ended and counted has used its prompt, even if its first token was the end of it."""
    finished = event.outcome == Outcome.OK and event.counted_by == CountedBy.ENGINE
    return Usage(
        prompt_tokens=event.prompt_tokens,
        cached_tokens=event.cached_tokens,
        completion_tokens=event.completion_tokens,
        first_token=finished or event.first_token_ms is not None,
        rejected=event.outcome == Outcome.REJECTED,
    )


def note(booked: Iterable[tuple[UsageEvent, Decimal]]) -> None:
    """Adds what was just booked, in the same transaction. A correction does not come here: what it gives back stands on the
    statement, and a budget counts what was used."""
    sums: dict[tuple[str, datetime, str, str, str], Decimal] = defaultdict(Decimal)
    for event, amount in booked:
        if amount:
            at = datetime.fromtimestamp(event.accepted_at.timestamp() // QUARTER * QUARTER, UTC)
            name = (str(event.org_id), at, event.gateway, str(event.deployment_id), str(event.key_id))
            sums[name] = EXACT.add(sums[name], amount)
    # In one order, so that two who book at once wait for each other and never for ever.
    rows = [
        (org, gateway, deployment, key, at, amount)
        for (org, at, gateway, deployment, key), amount in sorted(sums.items())
    ]
    if rows:
        with connection.cursor() as cursor:
            cursor.executemany(_ADD, rows)


@transaction.atomic
def rebuild() -> int:
    """Sums everything up anew from the rated events; returns how many slices there are. Rating waits meanwhile."""
    with connection.cursor() as cursor:
        cursor.execute("LOCK TABLE billing_ratedevent IN SHARE MODE")
        cursor.execute("DELETE FROM billing_spentslice")
        cursor.execute(_REBUILD)
    return SpentSlice.objects.count()


class Waiting:
    """Events that are stored and not booked yet, with what they will cost. Read once for many budgets."""

    def __init__(self, org_ids: Collection[UUID]) -> None:
        ids = PendingEvent.objects.filter(org_id__in=org_ids).values_list("pk", flat=True)
        events = UsageEvent.objects.across_orgs("what is not booked yet counts against budgets too").filter(pk__in=ids)
        found = list(events)
        book = book_for({event.org_id for event in found}) if found else None
        self.events = [(event, _cost(event, book)) for event in found if book is not None]

    def spent(self, subject: Subject, period: Period, keys: Collection[UUID]) -> dict[str, Decimal]:
        sums: dict[str, Decimal] = defaultdict(Decimal)
        for event, cost in self.events:
            at = event.accepted_at.timestamp()
            if period.starts_at <= at < period.ends_at and _concerns(event, subject, keys):
                sums[event.gateway] = EXACT.add(sums[event.gateway], cost)
        return sums


def _concerns(event: UsageEvent, subject: Subject, keys: Collection[UUID]) -> bool:
    if event.org_id != subject.org_id:
        return False
    if subject.scope == BudgetScope.DEPLOYMENT:
        return event.deployment_id == subject.subject_id
    return subject.scope == BudgetScope.ORG or event.key_id in keys


def _cost(event: UsageEvent, book: PriceBook) -> Decimal:
    """0 for what cannot be rated: it waits for the operator."""
    try:
        version = book.at(event.org_id, event.deployment_id, event.accepted_at)
        return total(charge.amount for charge in rate(usage_of(event), prices_of(version)))
    except (LookupError, ValueError, ArithmeticError):
        return Decimal(0)


def spent_by_gateway(subject: Subject, period: Period, waiting: Waiting) -> dict[str, Decimal]:
    """What each gateway's requests have cost that were accepted in the period, booked or not."""
    keys = _keys(subject)
    rows = _slices(subject, period, keys).values("gateway").annotate(sum=Sum("amount")).values_list("gateway", "sum")
    sums: dict[str, Decimal] = defaultdict(Decimal, rows)
    for gateway, amount in waiting.spent(subject, period, keys).items():
        sums[gateway] = EXACT.add(sums[gateway], amount)
    return dict(sums)


def _slices(subject: Subject, period: Period, keys: Collection[UUID]) -> QuerySet[SpentSlice]:
    start, end = (datetime.fromtimestamp(at, UTC) for at in (period.starts_at, period.ends_at))
    rows = SpentSlice.objects.filter(org_id=subject.org_id, at__gte=start, at__lt=end)
    if subject.scope == BudgetScope.DEPLOYMENT:
        return rows.filter(deployment_id=subject.subject_id)
    return rows if subject.scope == BudgetScope.ORG else rows.filter(key_id__in=keys)


def _keys(subject: Subject) -> set[UUID]:
    if subject.scope == BudgetScope.KEY:
        return {subject.subject_id}
    if subject.scope != BudgetScope.MEMBER:
        return set()
    person = Member.objects.for_org(subject.org_id).filter(pk=subject.subject_id).values("user_id")
    keys = ApiKey.objects.for_org(subject.org_id).filter(created_by__in=person).exclude(kind=KeyKind.SERVICE)
    return set(keys.values_list("pk", flat=True))


def booked(org_id: UUID) -> Decimal:
    """All receivables of an organisation that are no corrections: what its slices must sum up to."""
    entries = LedgerEntry.objects.for_org(org_id).filter(account=LedgerAccount.RECEIVABLE).filter(Q(reverses=None))
    return entries.aggregate(sum=Sum("amount"))["sum"] or Decimal(0)
