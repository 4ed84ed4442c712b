"""Statements: lines that sum to their total, drill down to their events, and stay as they are once closed."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.models import Sum
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from berth.billing import statements, tasks
from berth.billing.events import line_entries
from berth.billing.ledger import rate_pending, receivables, reverse
from berth.billing.models import PriceVersion, Statement
from berth.billing.prices import set_price
from berth.billing.rating import Prices, to_micro, total
from berth.deployments.models import Deployment
from berth.keys.models import ApiKey
from berth.web.errors import ApiError, Conflict, NotFound
from tests import make

pytestmark = pytest.mark.django_db
NOW = make.NOON  # 30 November 2026
NEW_YEAR = datetime(2027, 1, 1, tzinfo=UTC)
ODD = Prices(Decimal("0.000000333333"), Decimal("0.000000000001"), Decimal("0.000001999999"))


@pytest.fixture
def deployment() -> Deployment:
    return make.deployment(make.org())


@pytest.fixture
def key(deployment: Deployment) -> ApiKey:
    return make.key(make.member(deployment.org))[0]


def used(deployment: Deployment, key: ApiKey, at: datetime = NOW, **fields: Any) -> None:
    make.usage_event(deployment, key, accepted_at=at, **fields)
    rate_pending()


def test_an_open_month_in_lines(deployment: Deployment, key: ApiKey) -> None:
    used(deployment, key, prompt_tokens=1000, cached_tokens=400, completion_tokens=200)
    used(deployment, key, prompt_tokens=1, completion_tokens=1)
    month = statements.month(deployment.org, "2026-11", now=NOW)
    assert (month.status, month.currency, month.content_hash) == ("open", "USD", None)
    assert [(line.unit, line.quantity, line.exact, line.amount_micro) for line in month.lines] == [
        ("cached_token", 400, Decimal("0.00003"), 30),
        ("input_token", 601, Decimal("0.00009015"), 90),
        ("output_token", 201, Decimal("0.0001206"), 121),
    ]
    assert month.total_micro == 241


batches = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 59), st.integers(0, 99_999), st.integers(0, 99_999), st.booleans()),
    min_size=1,
    max_size=15,
)


@given(drawn=batches)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_lines_sum_to_the_total_and_drill_down_to_their_events(
    drawn: list[tuple[int, int, int, int, bool]], key: ApiKey, deployment: Deployment
) -> None:
    """Two deployments, two price versions in the month, tokens of any number: each line is the exact sum of the entries behind
    it, equals quantity times price, and rounds once; the lines' amounts sum to the total; no entry is on two lines or none."""
    org = deployment.org
    if not PriceVersion.objects.filter(org=org).exists():
        set_price(ODD, org=org, valid_from=NOW + timedelta(minutes=30), now=NOW)
    rooms = [deployment, *(Deployment.objects.for_org(org).exclude(pk=deployment.pk) or [make.deployment(org)])]
    for which, minute, prompt, completion, cached in drawn:
        make.usage_event(
            rooms[which % 2],
            key,
            accepted_at=NOW + timedelta(minutes=minute),
            prompt_tokens=prompt,
            cached_tokens=prompt // 2 if cached else 0,
            completion_tokens=completion,
        )
    rate_pending()
    month = statements.month(org, "2026-11", now=NOW)
    seen: set[Any] = set()
    for line in month.lines:
        entries = list(line_entries(org, line.id, "2026-11", now=NOW))
        assert total(entry.amount for entry in entries) == line.exact
        assert sum(entry.quantity for entry in entries) == line.quantity
        assert line.exact == line.quantity * line.unit_price
        assert line.amount_micro == to_micro(line.exact)
        assert not seen & {entry.pk for entry in entries}
        seen |= {entry.pk for entry in entries}
    assert seen == set(receivables(org).values_list("pk", flat=True))
    assert month.total_micro == sum(line.amount_micro for line in month.lines)
    assert month.exact == (receivables(org).aggregate(sum=Sum("amount"))["sum"] or 0)
    assert abs(Decimal(month.total_micro) - month.exact * 10**6) <= Decimal(len(month.lines)) / 2


def test_the_month_is_the_organisations(deployment: Deployment, key: ApiKey) -> None:
    org = deployment.org
    org.time_zone = "Asia/Shanghai"
    org.save()
    border = datetime(2026, 11, 30, 16, 0, tzinfo=UTC)
    used(deployment, key, border - timedelta(microseconds=1), prompt_tokens=1, completion_tokens=0, first_token_ms=1.0)
    used(deployment, key, border, prompt_tokens=2, completion_tokens=0, first_token_ms=1.0)
    november = statements.month(org, "2026-11", now=border)
    december = statements.month(org, "2026-12", now=border)
    assert [line.quantity for line in november.lines] == [1]
    assert [line.quantity for line in december.lines] == [2]
    assert november.ends_at == december.starts_at == border


def test_closing_keeps_every_number_and_says_the_same_ever_after(deployment: Deployment, key: ApiKey) -> None:
    org = deployment.org
    used(deployment, key, prompt_tokens=7, completion_tokens=3)
    before = statements.month(org, "2026-11", now=NOW)
    statement = statements.close_month(org, "2026-11", now=NEW_YEAR)
    closed = statements.month(org, "2026-11", now=NEW_YEAR)
    assert (closed.lines, closed.total_micro) == (before.lines, before.total_micro)
    assert closed.status == "closed"
    assert statement.total_micro == closed.total_micro
    assert closed.content_hash == statement.content_hash == statements.content_hash(org.pk, closed)

    again = statements.close_month(org, "2026-11", now=NEW_YEAR + timedelta(days=5))
    assert again.pk == statement.pk
    org.time_zone = "Asia/Shanghai"
    org.save()
    type(deployment).objects.for_org(org).filter(pk=deployment.pk).update(name="renamed")
    later = statements.month(org, "2026-11", now=NEW_YEAR)
    assert statements.content_hash(org.pk, later) == statement.content_hash
    out = StringIO()
    call_command("close_month", org.slug, "2026-11", stdout=out)
    assert statement.content_hash in out.getvalue()


@pytest.mark.threat("B3")
def test_the_hash_covers_every_number(deployment: Deployment, key: ApiKey) -> None:
    used(deployment, key)
    month = statements.month(deployment.org, "2026-11", now=NOW)
    line = month.lines[0]
    changes: list[dict[str, Any]] = [
        {"quantity": line.quantity + 1},
        {"exact": line.exact + Decimal("0.000000000001")},
        {"amount_micro": line.amount_micro + 1},
        {"deployment_name": "other"},
        {"unit_price": line.unit_price * 2},
    ]
    hashes = {
        statements.content_hash(deployment.org_id, replace(month, lines=(replace(line, **change), *month.lines[1:])))
        for change in changes
    }
    assert len(hashes | {statements.content_hash(deployment.org_id, month)}) == len(changes) + 1


def test_late_usage_of_a_closed_month_stands_on_the_next_open_one(deployment: Deployment, key: ApiKey) -> None:
    org = deployment.org
    used(deployment, key, prompt_tokens=10, completion_tokens=0, first_token_ms=1.0)
    statement = statements.close_month(org, "2026-11", now=datetime(2026, 12, 3, tzinfo=UTC))
    used(deployment, key, NOW, prompt_tokens=5, completion_tokens=0, first_token_ms=1.0)
    november = statements.month(org, "2026-11", now=NEW_YEAR)
    december = statements.month(org, "2026-12", now=NEW_YEAR)
    assert [line.quantity for line in november.lines] == [10]
    assert november.content_hash == statement.content_hash
    assert [line.quantity for line in december.lines] == [5]
    (entry,) = line_entries(org, december.lines[0].id, now=NEW_YEAR)
    assert entry.at == NOW


def test_a_correction_stands_in_the_open_month(deployment: Deployment, key: ApiKey) -> None:
    org = deployment.org
    event = make.usage_event(deployment, key, prompt_tokens=10, completion_tokens=0, first_token_ms=1.0)
    rate_pending()
    statements.close_month(org, "2026-11", now=datetime(2026, 12, 3, tzinfo=UTC))
    reverse(org, event.pk, now=datetime(2026, 12, 4, tzinfo=UTC))
    (line,) = statements.month(org, "2026-12", now=NEW_YEAR).lines
    assert (line.quantity, line.amount_micro, line.exact) == (-10, -2, Decimal("-0.0000015"))
    assert [line.quantity for line in statements.month(org, "2026-11", now=NEW_YEAR).lines] == [10]


def test_months_close_when_over_in_order_and_only_then(deployment: Deployment, key: ApiKey) -> None:
    org = deployment.org
    used(deployment, key)
    with pytest.raises(Conflict) as early:
        statements.close_month(org, "2026-11", now=NOW)
    assert early.value.code == "month_not_over"
    with pytest.raises(Conflict) as order:
        statements.close_month(org, "2026-12", now=NEW_YEAR)
    assert order.value.code == "earlier_month_open"
    for nonsense in ("2026-10", "2027-02", "2026-13", "november"):
        with pytest.raises(NotFound):
            statements.close_month(org, nonsense, now=NEW_YEAR)
    assert not Statement.objects.for_org(org).exists()


def test_closing_by_the_clock_waits_for_late_and_unrated_usage(deployment: Deployment, key: ApiKey) -> None:
    org = deployment.org
    used(deployment, key)
    ends_at = datetime(2026, 12, 1, tzinfo=UTC)
    assert statements.close_due(now=ends_at + timedelta(hours=47)) == 0
    make.usage_event(deployment, key)
    assert statements.close_due(now=ends_at + timedelta(hours=49)) == 0
    rate_pending()
    assert statements.close_due(now=ends_at + timedelta(hours=49)) == 1
    assert statements.close_due(now=ends_at + timedelta(hours=49)) == 0
    assert Statement.objects.for_org(org).get().total_micro == statements.month(org, "2026-11", now=NOW).total_micro
    assert statements.close_due(now=datetime(2027, 2, 5, tzinfo=UTC)) == 2, "months without usage close as well"
    periods = Statement.objects.for_org(org).order_by("period").values_list("period", flat=True)
    assert list(periods) == ["2026-11", "2026-12", "2027-01"]
    tasks.close()  # the door itself


def test_an_organisation_that_cannot_be_closed_stops_no_other(
    deployment: Deployment, key: ApiKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make.org()
    first, second = sorted([deployment.org, other], key=lambda org: org.pk)
    close_month = statements.close_month

    def breaks_for_the_first(org: Any, period: str, **options: Any) -> Statement:
        if org.pk == first.pk:
            raise ValueError("a fault of its own")
        return close_month(org, period, **options)

    monkeypatch.setattr(statements, "close_month", breaks_for_the_first)
    assert statements.close_due(now=datetime(2026, 12, 4, tzinfo=UTC)) == 1
    assert Statement.objects.for_org(second).exists()
    assert not Statement.objects.for_org(first).exists()


@pytest.mark.django_db(transaction=True)
def test_closing_while_rating_loses_no_entry_and_closes_once(deployment: Deployment, key: ApiKey) -> None:
    """Whatever is booked is on exactly one statement, however closing and rating interleave."""
    org = deployment.org
    for _ in range(60):
        make.usage_event(deployment, key)
    rate_pending(limit=5, rounds=1)
    errors: list[BaseException] = []

    def run(act: Any) -> None:
        try:
            act()
        except BaseException as error:
            errors.append(error)
        finally:
            connection.close()

    acts = [
        lambda: rate_pending(limit=3),
        lambda: rate_pending(limit=3),
        lambda: statements.close_month(org, "2026-11", now=NEW_YEAR),
        lambda: statements.close_month(org, "2026-11", now=NEW_YEAR),
    ]
    threads = [threading.Thread(target=run, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rate_pending()
    assert errors == []
    assert Statement.objects.for_org(org).count() == 1
    closed = statements.month(org, "2026-11", now=NEW_YEAR)
    december = statements.month(org, "2026-12", now=NEW_YEAR)
    booked = receivables(org).filter(period="2026-11").aggregate(sum=Sum("amount"))["sum"]
    assert closed.exact == booked, "an entry slipped into a month that was already counted"
    assert closed.exact + december.exact == 60 * (10 * Decimal("0.00000015") + 5 * Decimal("0.0000006"))


def test_lines_of_others_are_not_found(deployment: Deployment, key: ApiKey) -> None:
    used(deployment, key)
    (line, *_) = statements.month(deployment.org, "2026-11", now=NOW).lines
    with pytest.raises(NotFound):
        line_entries(make.org(), line.id, now=NOW)
    with pytest.raises(ApiError):
        line_entries(deployment.org, line.id, "2026-12", now=NEW_YEAR)
    assert line_entries(deployment.org, line.id, now=NOW).count() == 1
