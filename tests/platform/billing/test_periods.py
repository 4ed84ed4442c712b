"""Months in time zones."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.billing.periods import bounds, following, is_period, open_period, period_of, periods_between

ZONES = [
    "UTC",
    "Asia/Shanghai",
    "America/New_York",
    "Pacific/Kiritimati",
    "Pacific/Pago_Pago",
    "Asia/Kathmandu",
    "America/Sao_Paulo",
]
instants = st.datetimes(datetime(2001, 1, 1), datetime(2090, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


@given(instants, st.sampled_from(ZONES))
@settings(max_examples=200, deadline=None)
def test_every_instant_lies_in_exactly_its_month(at: datetime, zone: str) -> None:
    period = period_of(at, zone)
    starts_at, ends_at = bounds(period, zone)
    assert starts_at <= at < ends_at
    assert bounds(following(period), zone)[0] == ends_at
    assert period_of(starts_at, zone) == period
    assert is_period(period)


@given(instants, st.sampled_from(ZONES), st.sets(st.integers(0, 5)))
@settings(max_examples=100, deadline=None)
def test_booked_in_the_first_month_that_is_open(at: datetime, zone: str, closed: set[int]) -> None:
    own = period_of(at, zone)
    run = [own]
    for _ in range(6):
        run.append(following(run[-1]))
    shut = {run[index] for index in closed}
    booked = open_period(at, zone, shut)
    assert booked not in shut
    assert all(period in shut for period in run[: run.index(booked)])


def test_by_hand() -> None:
    assert period_of(datetime(2026, 11, 30, 16, 0, tzinfo=UTC), "Asia/Shanghai") == "2026-12"
    assert bounds("2026-12", "Asia/Shanghai")[0] == datetime(2026, 11, 30, 16, 0, tzinfo=UTC)
    assert following("2026-12") == "2027-01"
    assert periods_between("2026-11", "2027-02") == ["2026-11", "2026-12", "2027-01", "2027-02"]
    assert periods_between("2027-01", "2026-12") == []


@pytest.mark.parametrize(
    "text", ["2026-13", "2026-00", "0000-01", "2026-1", "2026-011", "२०२६-११", "", "2026-11\n", "9999-12"]
)
def test_what_is_no_month(text: str) -> None:
    assert not is_period(text)
