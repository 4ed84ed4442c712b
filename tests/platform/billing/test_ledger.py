"""Booked once, on both sides, and never changed."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connection, transaction
from django.db.models import Count, Sum
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from berth.billing import ledger, tasks
from berth.billing.ledger import imbalance, rate_pending, receivables, reverse
from berth.billing.models import LedgerEntry, PriceVersion, RatedEvent, Statement, StatementLine
from berth.billing.prices import DEFAULT, SINCE_EVER, PriceBook, book_for, ensure_default, set_price
from berth.billing.rating import Prices
from berth.billing.statements import close_month
from berth.deployments.models import Deployment
from berth.keys.models import ApiKey
from berth.metering.models import PendingEvent, UsageEvent
from berth.orgs.tenancy import new_id
from berth.web.errors import ApiError, Conflict, NotFound
from tests import make

pytestmark = pytest.mark.django_db
NOW = make.NOON


@pytest.fixture
def deployment() -> Deployment:
    return make.deployment(make.org())


@pytest.fixture
def key(deployment: Deployment) -> ApiKey:
    return make.key(make.member(deployment.org))[0]


def entries() -> Any:
    return LedgerEntry.objects.across_orgs("test")


def test_an_event_is_booked_once_on_both_sides(deployment: Deployment, key: ApiKey) -> None:
    event = make.usage_event(deployment, key, prompt_tokens=1000, cached_tokens=400, completion_tokens=200)
    assert rate_pending() == 1
    assert rate_pending() == 0
    rows = entries().order_by("unit", "account").values_list("unit", "account", "quantity", "amount")
    assert list(rows) == [
        ("cached_token", "receivable", 400, Decimal("0.00003")),
        ("cached_token", "revenue", 400, Decimal("-0.00003")),
        ("input_token", "receivable", 600, Decimal("0.00009")),
        ("input_token", "revenue", 600, Decimal("-0.00009")),
        ("output_token", "receivable", 200, Decimal("0.00012")),
        ("output_token", "revenue", 200, Decimal("-0.00012")),
    ]
    assert RatedEvent.objects.for_org(deployment.org).get(pk=event.pk).amount == Decimal("0.00024")
    assert {entry.period for entry in entries()} == {"2026-11"}
    assert {(entry.key_id, entry.deployment_id, entry.at) for entry in entries()} == {(key.pk, deployment.pk, NOW)}
    assert imbalance() == 0
    assert not PendingEvent.objects.exists()


@pytest.mark.threat("B4")
@pytest.mark.parametrize(
    ("fields", "amount"),
    [
        (
            {
                "outcome": "client_closed",
                "status": 499,
                "prompt_tokens": 9,
                "completion_tokens": 0,
                "first_token_ms": None,
            },
            "0",
        ),
        ({"outcome": "client_closed", "status": 499, "prompt_tokens": 9, "completion_tokens": 3}, "0.00000315"),
        ({"outcome": "rejected", "status": 400, "prompt_tokens": 9, "completion_tokens": 3}, "0"),
        ({"outcome": "interrupted", "prompt_tokens": 0, "completion_tokens": 0, "counted_by": "none"}, "0"),
        ({"outcome": "ok", "prompt_tokens": 10, "completion_tokens": 0, "first_token_ms": None}, "0.0000015"),
        ({"outcome": "timeout", "prompt_tokens": 10, "completion_tokens": 0, "first_token_ms": 3.0}, "0.0000015"),
        ({"outcome": "ok", "prompt_tokens": 10, "completion_tokens": 0, "counted_by": "estimate"}, "0"),
    ],
)
def test_what_was_produced_is_billed_and_nothing_else(
    fields: dict[str, Any], amount: str, deployment: Deployment, key: ApiKey
) -> None:
    event = make.usage_event(deployment, key, **fields)
    rate_pending()
    assert RatedEvent.objects.for_org(deployment.org).get(pk=event.pk).amount == Decimal(amount)
    assert (receivables(deployment.org).aggregate(sum=Sum("amount"))["sum"] or 0) == Decimal(amount)


def test_the_price_of_that_moment_counts(deployment: Deployment, key: ApiKey) -> None:
    org = deployment.org
    change = NOW + timedelta(hours=1)
    dear = Prices(Decimal("0.000001"), Decimal("0.000001"), Decimal("0.000001"))
    free = Prices(Decimal(0), Decimal(0), Decimal(0))
    set_price(dear, org=org, valid_from=change, now=NOW)
    set_price(free, org=org, deployment=deployment.name, valid_from=change + timedelta(hours=1), now=NOW)
    other = make.deployment(org)
    stranger = make.deployment(make.org())
    stranger_key = make.key(make.member(stranger.org))[0]

    def cost(of: Deployment, by: ApiKey, at: datetime) -> Decimal:
        event = make.usage_event(of, by, accepted_at=at, prompt_tokens=0, completion_tokens=10)
        rate_pending()
        return RatedEvent.objects.for_org(of.org).get(pk=event.pk).amount

    just_before = change - timedelta(microseconds=1)
    assert cost(deployment, key, just_before) == Decimal("0.000006")
    assert cost(deployment, key, change) == Decimal("0.00001")
    assert cost(deployment, key, change + timedelta(hours=1)) == 0
    assert cost(other, key, change + timedelta(hours=1)) == Decimal("0.00001")
    assert cost(stranger, stranger_key, change + timedelta(hours=1)) == Decimal("0.000006")


@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_the_newest_begun_version_of_the_narrowest_scope_is_valid(data: st.DataObject) -> None:
    org, deployment = new_id(), new_id()
    scopes = [(org, deployment), (org, None), (None, None), (new_id(), None), (org, new_id())]
    hours = st.tuples(st.sampled_from(scopes), st.integers(0, 20))
    drawn = data.draw(st.lists(hours, unique=True, max_size=12))
    versions = [
        PriceVersion(org_id=scope[0], deployment_id=scope[1], valid_from=NOW + timedelta(hours=hour))
        for scope, hour in drawn
    ]
    at = data.draw(st.integers(0, 20))
    expected = None
    for scope in scopes[:3]:
        begun = [hour for of, hour in drawn if of == scope and hour <= at]
        if begun:
            expected = (scope, max(begun))
            break
    book = PriceBook(versions)
    if expected is None:
        with pytest.raises(LookupError):
            book.at(org, deployment, NOW + timedelta(hours=at))
    else:
        found = book.at(org, deployment, NOW + timedelta(hours=at))
        assert ((found.org_id, found.deployment_id), found.valid_from) == (
            expected[0],
            NOW + timedelta(hours=expected[1]),
        )


def test_prices_are_announced_and_never_retroactive(deployment: Deployment) -> None:
    with pytest.raises(ApiError) as soon:
        set_price(DEFAULT, valid_from=NOW, now=NOW)
    assert soon.value.code == "price_too_soon"
    made = set_price(DEFAULT, now=NOW)
    assert made.valid_from >= NOW + timedelta(minutes=1)
    with pytest.raises(ApiError) as twice:
        set_price(DEFAULT, valid_from=made.valid_from, now=NOW)
    assert twice.value.code == "price_exists"
    with pytest.raises(ApiError, match="currency_differs"), pytest.MonkeyPatch.context() as patch:
        patch.setattr("django.conf.settings.CURRENCY", "CNY")
        set_price(DEFAULT, now=NOW + timedelta(days=1))


def test_set_price_command(deployment: Deployment) -> None:
    out = StringIO()
    common = ["--input", "0.2", "--cached", "0", "--output", "1.25", "--org", deployment.org.slug]
    call_command("set_price", *common, "--deployment", deployment.name, stdout=out)
    made = PriceVersion.objects.get(deployment_id=deployment.pk)
    assert (made.input_token, made.cached_token, made.output_token) == (
        Decimal("0.0000002"), Decimal(0), Decimal("0.00000125"),
    )  # fmt: skip
    assert f"version {made.number}" in out.getvalue()
    for wrong in (["--input", "cheap"], ["--input", "-1"], ["--input", "0.0000001"], ["--org", "nobody"]):
        with pytest.raises(CommandError):
            call_command("set_price", *common, *wrong)


def test_an_event_that_cannot_be_rated_holds_up_no_other(deployment: Deployment, key: ApiKey) -> None:
    early = make.usage_event(deployment, key, accepted_at=SINCE_EVER - timedelta(days=1))
    fine = make.usage_event(deployment, key)
    rate_pending()
    assert [row.pk for row in RatedEvent.objects.for_org(deployment.org)] == [fine.pk]
    assert list(PendingEvent.objects.values_list("pk", "held")) == [(early.pk, "LookupError")]
    assert rate_pending() == 0
    out = StringIO()
    call_command("retry_rejected", stdout=out)
    assert "1 held events" in out.getvalue()
    assert rate_pending() == 1, "tried again, and held again: there is still no price"
    assert PendingEvent.objects.get().held == "LookupError"


def test_an_event_that_waits_twice_is_booked_once(deployment: Deployment, key: ApiKey) -> None:
    event = make.usage_event(deployment, key)
    rate_pending()
    PendingEvent.objects.create(id=event.pk, org=event.org)
    rate_pending()
    assert entries().count() == 4
    assert not PendingEvent.objects.exists()


@pytest.mark.parametrize("step", ["book_for", "_postings", "total"])
def test_failing_in_the_middle_books_nothing(
    step: str, deployment: Deployment, key: ApiKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    make.usage_event(deployment, key)
    make.usage_event(deployment, key)
    real, calls = getattr(ledger, step), []

    def failing(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 2 or step == "book_for":
            raise RuntimeError("killed here")
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(ledger, step, failing)
        with pytest.raises(RuntimeError):
            rate_pending()
    assert entries().count() == RatedEvent.objects.for_org(deployment.org).count() == 0
    tasks.rate()
    assert (entries().count(), RatedEvent.objects.for_org(deployment.org).count()) == (8, 2)


@pytest.mark.django_db(transaction=True)
def test_concurrent_workers_rate_each_event_once(deployment: Deployment, key: ApiKey) -> None:
    for _ in range(120):
        make.usage_event(deployment, key)
    counts: list[int] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            counts.append(rate_pending(limit=7))
        except BaseException as error:
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rate_pending()
    assert errors == []
    assert sum(counts) <= 120
    assert RatedEvent.objects.for_org(deployment.org).count() == 120
    per_event = entries().values("event_id").annotate(n=Count("pk")).values_list("n", flat=True)
    assert set(per_event) == {4}
    assert imbalance() == 0
    assert PriceVersion.objects.count() == 1, "the default price is made once"


events = st.fixed_dictionaries(
    {
        "prompt_tokens": st.integers(0, 5000),
        "completion_tokens": st.integers(0, 5000),
        "first_token_ms": st.none() | st.just(1.0),
        "outcome": st.sampled_from(["ok", "client_closed", "rejected", "timeout"]),
    }
)


@given(drawn=st.lists(events, max_size=12), share=st.floats(0, 1), limit=st.integers(1, 5))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_books_balance_and_equal_the_rated_events(
    drawn: list[dict[str, Any]], share: float, limit: int, deployment: Deployment, key: ApiKey
) -> None:
    before = UsageEvent.objects.for_org(deployment.org).count()
    for fields in drawn:
        make.usage_event(deployment, key, cached_tokens=int(fields["prompt_tokens"] * share), **fields)
    rate_pending(limit=limit, rounds=100)
    rated = RatedEvent.objects.for_org(deployment.org)
    assert rated.count() == before + len(drawn)
    assert imbalance() == 0
    assert (receivables(deployment.org).aggregate(sum=Sum("amount"))["sum"] or 0) == (
        rated.aggregate(sum=Sum("amount"))["sum"] or 0
    )
    unequal = entries().values("event_id", "unit").annotate(sum=Sum("amount")).exclude(sum=0)
    assert not unequal.exists()


def test_taking_back_is_a_new_posting(deployment: Deployment, key: ApiKey) -> None:
    event = make.usage_event(deployment, key)
    rate_pending()
    out = StringIO()
    call_command("reverse_usage", deployment.org.slug, str(event.pk), stdout=out)
    assert "4 entries" in out.getvalue()
    assert receivables(deployment.org).aggregate(sum=Sum("amount"))["sum"] == 0
    assert receivables(deployment.org).aggregate(sum=Sum("quantity"))["sum"] == 0
    assert imbalance() == 0
    with pytest.raises(Conflict):
        reverse(deployment.org, event.pk)
    with pytest.raises(NotFound):
        reverse(make.org(), event.pk)
    with pytest.raises(CommandError):
        call_command("reverse_usage", deployment.org.slug, str(event.pk))


BOOKED = [LedgerEntry, RatedEvent, Statement, StatementLine, PriceVersion]


@pytest.mark.threat("B3")
@pytest.mark.parametrize("model", BOOKED)
@pytest.mark.parametrize("statement", ["UPDATE {table} SET id = id", "DELETE FROM {table}", "TRUNCATE {table} CASCADE"])
def test_the_database_refuses_to_change_what_is_booked(
    statement: str, model: Any, deployment: Deployment, key: ApiKey
) -> None:
    """Plain SQL as the application's own role, in a session like the application's."""
    make.usage_event(deployment, key)
    rate_pending()
    close_month(deployment.org, "2026-11", now=datetime(2027, 1, 1, tzinfo=UTC))
    table = model._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM {table}")
        count = cursor.fetchone()[0]
        assert count > 0
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE; SET LOCAL berth.tests = 'off'")
        with pytest.raises(IntegrityError, match="only ever added to"), transaction.atomic():
            cursor.execute(statement.format(table=table))
        cursor.execute(f"SELECT count(*) FROM {table}")
        assert cursor.fetchone()[0] == count


@pytest.mark.threat("B3")
@pytest.mark.parametrize(
    "wrong",
    [
        {"quantity": -1},
        {"quantity": 0},
        {"amount": Decimal("-1")},
        {"account": "revenue", "amount": Decimal(1)},
    ],
)
def test_the_database_refuses_wrong_signs(wrong: dict[str, Any], deployment: Deployment, key: ApiKey) -> None:
    ensure_default()
    price = book_for([deployment.org_id]).at(deployment.org_id, deployment.pk, NOW)
    values: dict[str, Any] = {
        "org": deployment.org,
        "event_id": deployment.pk,
        "unit": "input_token",
        "account": "receivable",
        "quantity": 1,
        "amount": Decimal(1),
        "price": price,
        "deployment_id": deployment.pk,
        "key_id": key.pk,
        "at": NOW,
        "period": "2026-11",
    }
    with pytest.raises(IntegrityError, match="ledger_signs"), transaction.atomic():
        LedgerEntry.objects.create(**values | wrong)
    LedgerEntry.objects.create(**values)
    with pytest.raises(IntegrityError, match="ledger_event_once"), transaction.atomic():
        LedgerEntry.objects.create(**values)
