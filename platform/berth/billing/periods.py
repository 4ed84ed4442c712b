"""Months as an organisation counts them. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

_FORM = re.compile(r"(?!0000)[0-9]{4}-(0[1-9]|1[0-2])", re.ASCII)


def is_period(text: str) -> bool:
    return _FORM.fullmatch(text) is not None and text != "9999-12"


def period_of(at: datetime, zone: str) -> str:
    """The month ("2026-11") in which an instant lies there."""
    local = at.astimezone(ZoneInfo(zone))
    return f"{local.year:04}-{local.month:02}"


def following(period: str) -> str:
    year, month = map(int, period.split("-"))
    return f"{year + month // 12:04}-{month % 12 + 1:02}"


def bounds(period: str, zone: str) -> tuple[datetime, datetime]:
    """First instant of the month and of the next one, in UTC."""
    return _start(period, zone), _start(following(period), zone)


def open_period(at: datetime, zone: str, closed: Collection[str]) -> str:
    """The month in which an event is booked: its own, or the first later one that is still open."""
    period = period_of(at, zone)
    while period in closed:
        period = following(period)
    return period


def periods_between(first: str, last: str) -> list[str]:
    """Both included, in order; empty when `first` is later."""
    found = []
    while first <= last:
        found.append(first)
        first = following(first)
    return found


def _start(period: str, zone: str) -> datetime:
    year, month = map(int, period.split("-"))
    return datetime(year, month, 1, tzinfo=ZoneInfo(zone)).astimezone(UTC)
