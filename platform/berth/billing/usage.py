"""Usage with its cost, summed up from the events and the ledger whenever it is asked for: nothing that could drift."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db import connection
from django.utils import timezone

from berth.billing import statements
from berth.billing.locks import one_moment
from berth.billing.models import LedgerAccount
from berth.billing.periods import bounds, period_of
from berth.billing.rating import EXACT, to_micro, total
from berth.keys.models import ApiKey
from berth.metering.selectors import behind_seconds
from berth.orgs.models import Organisation
from berth.web.errors import ApiError

LONGEST = timedelta(days=400)
LONGEST_BY_HOUR = timedelta(days=32)
EARLIEST, LATEST = datetime(1970, 1, 2, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)  # months can be counted between

# The only pieces of SQL that vary; what users send is never among them.
_GROUPS = {
    "deployment": "u.deployment_id::text",
    "key": "u.key_id::text",
    "day": "to_char(u.accepted_at AT TIME ZONE %(zone)s, 'YYYY-MM-DD')",
    "hour": """to_char(date_trunc('hour', u.accepted_at), 'YYYY-MM-DD"T"HH24:MI:SS"Z"')""",
    "outcome": "u.outcome",
}
GROUPS = tuple(_GROUPS)

_SUMS = """
SELECT {group}, count(*), sum(u.prompt_tokens), sum(u.cached_tokens), sum(u.completion_tokens), coalesce(sum(l.amount), 0)
FROM metering_usageevent u
LEFT JOIN (
  SELECT event_id, sum(amount) AS amount FROM billing_ledgerentry
  WHERE org_id = %(org)s AND account = %(account)s AND at >= %(start)s AND at < %(end)s GROUP BY event_id
) l ON l.event_id = u.id
WHERE u.org_id = %(org)s AND u.accepted_at >= %(start)s AND u.accepted_at < %(end)s
GROUP BY 1
"""
_STATEMENTS = {name: _SUMS.format(group=group) for name, group in _GROUPS.items()}


@dataclass(frozen=True)
class Sums:
    """`cached_tokens` is a part of `prompt_tokens`. `amount` is exact; usage that is still to be rated has none yet."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    amount: Decimal = Decimal(0)

    def __add__(self, other: Sums) -> Sums:
        return Sums(
            self.requests + other.requests,
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
            self.completion_tokens + other.completion_tokens,
            total((self.amount, other.amount)),
        )


@dataclass(frozen=True)
class Group:
    key: str
    label: str
    sums: Sums


@dataclass(frozen=True)
class Reconciliation:
    """`difference_micro`: what the statement's lines say less what the usage shown here says. Not 0 when late usage of a closed
    month stands on a later statement, or of an earlier one on this."""

    period: str
    difference_micro: int


@dataclass(frozen=True)
class Usage:
    start: datetime
    end: datetime
    as_of: datetime
    behind_seconds: float | None
    groups: tuple[Group, ...]
    totals: Sums
    reconciles_with: Reconciliation | None


def usage(
    org: Organisation, start: datetime | None, end: datetime | None, group_by: str, *, now: datetime | None = None
) -> Usage:
    """Usage accepted in [start, end); without them, of the current month in the organisation's time zone."""
    now = now or timezone.now()
    month_start, month_end = bounds(period_of(now, org.time_zone), org.time_zone)
    start, end = start or month_start, end or max(month_end, start or month_end)
    _check(start, end, group_by)
    with one_moment():
        found = _sums(org, start, end, group_by)
        totals = sum(found.values(), Sums())
        reconciliation = _reconcile(org, start, end, totals.amount, now)
    labels = _labels(org, group_by, found.keys())
    groups = tuple(Group(key, labels.get(key, key), sums) for key, sums in found.items())
    return Usage(
        start=start,
        end=end,
        as_of=now,
        behind_seconds=behind_seconds(org.pk, now),
        groups=groups,
        totals=totals,
        reconciles_with=reconciliation,
    )


def _check(start: datetime, end: datetime, group_by: str) -> None:
    for field, instant in (("from", start), ("to", end)):
        if not EARLIEST <= instant <= LATEST:
            raise ApiError("invalid", "Choose an instant between the years 1970 and 9000.", field=field)
    if start >= end:
        raise ApiError("invalid", "The end must lie after the beginning.", field="to")
    longest = LONGEST_BY_HOUR if group_by == "hour" else LONGEST
    if end - start > longest:
        raise ApiError(
            "range_too_long",
            f"Grouped by {group_by}, at most {longest.days} days can be shown. Choose a shorter range.",
            field="to",
            params={"days": longest.days},
        )


def _sums(org: Organisation, start: datetime, end: datetime, group_by: str) -> dict[str, Sums]:
    """By group key; times in order, everything else the most used first."""
    parameters: dict[str, Any] = {
        "org": org.pk,
        "account": LedgerAccount.RECEIVABLE.value,
        "start": start,
        "end": end,
        "zone": ZoneInfo(org.time_zone).key,
    }
    statement = _STATEMENTS[group_by]
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        rows = [
            (key, Sums(int(requests), int(prompt), int(cached), int(completion), amount))
            for key, requests, prompt, cached, completion, amount in cursor.fetchall()
        ]
    if group_by in {"day", "hour"}:
        rows.sort(key=lambda row: row[0])
    else:
        # Not by amount: the order would tell about money to those who may not see it.
        rows.sort(key=lambda row: (-row[1].requests, row[0]))
    return dict(rows)


def _labels(org: Organisation, group_by: str, keys: Any) -> dict[str, str]:
    """Names for ids. Revoked keys and deleted deployments keep theirs."""
    if group_by == "deployment":
        names = statements.deployment_names(org, [UUID(key) for key in keys])
    elif group_by == "key":
        names = key_names(org, [UUID(key) for key in keys])
    else:
        return {}
    return {str(pk): name for pk, name in names.items()}


def key_names(org: Organisation, ids: list[UUID]) -> dict[UUID, str]:
    return dict(ApiKey.objects.for_org(org).filter(pk__in=ids).values_list("pk", "name"))


def _reconcile(
    org: Organisation, start: datetime, end: datetime, amount: Decimal, now: datetime
) -> Reconciliation | None:
    """Only for a range that is exactly a month, or the current month up to now."""
    period = period_of(start, org.time_zone)
    starts_at, ends_at = bounds(period, org.time_zone)
    if start != starts_at or not (end == ends_at or now <= end < ends_at):
        return None
    if period not in {each.period for each in statements.months(org, now=now)}:
        return None
    made = statements.month(org, period, now=now)
    return Reconciliation(period, to_micro(EXACT.subtract(made.exact, amount)))
