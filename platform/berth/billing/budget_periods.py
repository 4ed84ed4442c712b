"""A budget's days and months, as its organisation counts them. Pure."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from berth.billing.periods import bounds, following, period_of
from berth_gateway.contract import Period

FOREVER = Period("total", 0.0, datetime(9999, 1, 1, tzinfo=UTC).timestamp())
AHEAD = 2  # periods beyond the current one: a gateway may go on with a day-old snapshot


def period_at(kind: str, at: datetime, zone: str) -> Period:
    """The period ("day", "month", "total") in which an instant lies there."""
    return periods_from(kind, at, zone, 1)[0]


def periods_from(kind: str, at: datetime, zone: str, count: int = 1 + AHEAD) -> tuple[Period, ...]:
    """The period of an instant and those after it."""
    if kind == "total":
        return (FOREVER,)
    if kind == "month":
        names = [period_of(at, zone)]
        while len(names) < count:
            names.append(following(names[-1]))
        return tuple(Period(name, *(each.timestamp() for each in bounds(name, zone))) for name in names)
    first = at.astimezone(ZoneInfo(zone)).date()
    return tuple(_day(first + timedelta(days=number), zone) for number in range(count))


def _day(day: date, zone: str) -> Period:
    return Period(day.isoformat(), _midnight(day, zone), _midnight(day + timedelta(days=1), zone))


def _midnight(day: date, zone: str) -> float:
    return datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(zone)).timestamp()
