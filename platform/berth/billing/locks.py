"""Advisory locks of the books, each held until the running transaction ends; and reading them as of one moment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from django.db import connection, transaction

_CLOSING = 0x6265727468_02
_PRICES = 0x6265727468_03
_BUDGETS = 0x62657274  # with a part of the organisation's id


def while_booking() -> None:
    """Many may book at once, but not while a month is being closed: no entry slips into a statement that is already counted."""
    _lock("SELECT pg_advisory_xact_lock_shared(%s)", _CLOSING)


def while_closing() -> None:
    """Alone: what is booked by now is all there will be for the month."""
    _lock("SELECT pg_advisory_xact_lock(%s)", _CLOSING)


def while_pricing() -> None:
    """One price version at a time."""
    _lock("SELECT pg_advisory_xact_lock(%s)", _PRICES)


@contextmanager
def one_moment() -> Iterator[None]:
    """All reads inside see the books as of the same instant, so that sums of two tables agree while others book. Inside a
    transaction that has begun already, reads are as it makes them."""
    if connection.in_atomic_block:
        yield
        return
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield


def while_budgeting(org_id: UUID) -> None:
    """One change of an organisation's budgets at a time."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [_BUDGETS, org_id.int % 2**31])


def _lock(statement: str, key: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, [key])
