"""Advisory locks of the books; each is held until the running transaction ends."""

from __future__ import annotations

from django.db import connection

_CLOSING = 0x6265727468_02
_PRICES = 0x6265727468_03


def while_booking() -> None:
    """Many may book at once, but not while a month is being closed: no entry slips into a statement that is already counted."""
    _lock("SELECT pg_advisory_xact_lock_shared(%s)", _CLOSING)


def while_closing() -> None:
    """Alone: what is booked by now is all there will be for the month."""
    _lock("SELECT pg_advisory_xact_lock(%s)", _CLOSING)


def while_pricing() -> None:
    """One price version at a time."""
    _lock("SELECT pg_advisory_xact_lock(%s)", _PRICES)


def _lock(statement: str, key: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, [key])
