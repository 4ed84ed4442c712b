"""Usage, statements and prices over HTTP: totals that reconcile, money only for those who may see it."""

from __future__ import annotations

import csv
import io
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from berth.billing import statements, usage
from berth.billing.csvfile import cell, statement_csv
from berth.billing.ledger import rate_pending, reverse
from berth.billing.models import LedgerEntry
from berth.billing.prices import set_price
from berth.billing.rating import Prices
from berth.deployments.models import Deployment
from berth.keys.models import ApiKey
from berth.orgs.models import Organisation
from tests import make

pytestmark = pytest.mark.django_db
NOW = make.NOON
NOVEMBER = {"from": "2026-11-01T00:00:00Z", "to": "2026-12-01T00:00:00Z"}


@pytest.fixture
def deployment() -> Deployment:
    return make.deployment(make.org(), "bot")


@pytest.fixture
def key(deployment: Deployment) -> ApiKey:
    return make.key(make.member(deployment.org), name="web")[0]


def web(org: Organisation, role: str = "billing") -> Client:
    return make.client(make.member(org, role).user)


def get(client: Client, org: Organisation, path: str, query: dict[str, Any] | None = None, status: int = 200) -> Any:
    answer = client.get(f"/api/v1/orgs/{org.slug}/{path}", query or {})
    assert answer.status_code == status, answer.content
    return answer.json()


def all_pages(client: Client, org: Organisation, path: str, query: dict[str, Any]) -> list[Any]:
    items, cursor = [], None
    while True:
        page = get(client, org, path, query | ({"cursor": cursor} if cursor else {}))
        items += page["items"]
        cursor = page["next"]
        if cursor is None:
            return items


def test_usage_by_everything_sums_to_the_same_totals(deployment: Deployment, key: ApiKey) -> None:
    org = deployment.org
    other = make.deployment(org, "other")
    for number in range(6):
        make.usage_event(
            deployment if number % 2 else other,
            key,
            accepted_at=NOW - timedelta(hours=number * 9),
            prompt_tokens=100 + number,
            cached_tokens=number,
            outcome="ok" if number else "client_closed",
        )
    stranger = make.deployment(make.org())
    make.usage_event(stranger, make.key(make.member(stranger.org))[0])
    rate_pending()
    client = web(org)
    for group_by in usage.GROUPS:
        answer = get(client, org, "usage", NOVEMBER | {"group_by": group_by})
        totals = answer["totals"]
        assert (totals["requests"], totals["prompt_tokens"], totals["cached_tokens"]) == (6, 615, 15)
        for name in ("requests", "prompt_tokens", "cached_tokens", "completion_tokens"):
            assert sum(group[name] for group in answer["groups"]) == totals[name]
        assert sum(Decimal(group["amount"]) for group in answer["groups"]) == Decimal(totals["amount"])
        assert answer["reconciles_with"] == {"period": "2026-11", "difference_micro": 0}
        assert answer["behind_seconds"] == 0
    labels = {group["label"] for group in get(client, org, "usage", NOVEMBER)["groups"]}
    assert labels == {"bot", "other"}
    days = [group["key"] for group in get(client, org, "usage", NOVEMBER | {"group_by": "day"})["groups"]]
    assert days == ["2026-11-28", "2026-11-29", "2026-11-30"]
    (hour, *_) = get(client, org, "usage", NOVEMBER | {"group_by": "hour"})["groups"]
    assert hour["key"] == "2026-11-28T15:00:00Z"
    assert [group["key"] for group in get(client, org, "usage", NOVEMBER | {"group_by": "outcome"})["groups"]] == [
        "ok",
        "client_closed",
    ]
    assert get(client, org, "usage", NOVEMBER | {"group_by": "key"})["groups"][0]["label"] == "web"


def test_days_are_those_of_the_organisations_zone(deployment: Deployment, key: ApiKey) -> None:
    org = deployment.org
    org.time_zone = "Asia/Shanghai"
    org.save()
    make.usage_event(deployment, key, accepted_at=datetime(2026, 11, 29, 15, 59, tzinfo=UTC))
    make.usage_event(deployment, key, accepted_at=datetime(2026, 11, 29, 16, 0, tzinfo=UTC))
    answer = get(web(org), org, "usage", NOVEMBER | {"group_by": "day"})
    assert [(group["key"], group["requests"]) for group in answer["groups"]] == [("2026-11-29", 1), ("2026-11-30", 1)]
    assert answer["time_zone"] == "Asia/Shanghai"
    assert answer["reconciles_with"] is None, "the month of UTC is not the organisation's"


def test_usage_without_a_range_is_the_current_month(deployment: Deployment, key: ApiKey) -> None:
    now = timezone.now()
    make.usage_event(deployment, key, accepted_at=now)
    make.usage_event(deployment, key, accepted_at=now - timedelta(days=40))
    rate_pending()
    answer = get(web(deployment.org), deployment.org, "usage")
    assert answer["totals"]["requests"] == 1
    assert answer["reconciles_with"] == {"period": f"{now:%Y-%m}", "difference_micro": 0}


def test_a_difference_is_told(deployment: Deployment, key: ApiKey) -> None:
    """A late event of a closed month: usage shows it when it happened, the statement does not have it."""
    org = deployment.org
    make.usage_event(deployment, key)
    rate_pending()
    statements.close_month(org, "2026-11", now=datetime(2026, 12, 3, tzinfo=UTC))
    make.usage_event(deployment, key, prompt_tokens=0, completion_tokens=10)
    rate_pending()
    found = usage.usage(
        org,
        datetime(2026, 11, 1, tzinfo=UTC),
        datetime(2026, 12, 1, tzinfo=UTC),
        "key",
        now=datetime(2026, 12, 9, tzinfo=UTC),
    )
    assert found.reconciles_with == usage.Reconciliation("2026-11", -6)


def test_what_waits_shows_without_amount_and_says_so(deployment: Deployment, key: ApiKey) -> None:
    make.usage_event(deployment, key)
    client = web(deployment.org)
    answer = get(client, deployment.org, "usage", NOVEMBER)
    assert answer["totals"]["requests"] == 1
    assert Decimal(answer["totals"]["amount"]) == 0
    assert get(client, deployment.org, "usage/events")["items"][0]["amount"] is None


@pytest.mark.parametrize(
    ("role", "money"), [("owner", True), ("admin", True), ("billing", True), ("developer", False), ("viewer", False)]
)
def test_money_is_for_those_who_may_see_it(role: str, money: bool, deployment: Deployment, key: ApiKey) -> None:
    org = deployment.org
    make.usage_event(deployment, key)
    rate_pending()
    (line, *_) = statements.month(org, "2026-11", now=NOW).lines
    client = web(org, role)
    answer = get(client, org, "usage", NOVEMBER)
    events = get(client, org, "usage/events")
    amounts = [answer["totals"]["amount"], answer["groups"][0]["amount"], events["items"][0]["amount"]]
    assert all((amount is not None) == money for amount in amounts)
    assert (answer["reconciles_with"] is not None) == money
    status = 200 if money else 403
    get(client, org, "statements", status=status)
    get(client, org, "statements/2026-11", status=status)
    get(client, org, f"statements/2026-11/lines/{line.id}/events", status=status)
    get(client, org, "usage/events", {"statement_line": line.id}, status=status)
    get(client, org, "prices", status=status)
    assert client.get(f"/api/v1/orgs/{org.slug}/statements/2026-11/csv").status_code == status


def test_events_filtered(deployment: Deployment, key: ApiKey) -> None:
    org = deployment.org
    other = make.deployment(org, "other")
    other_key = make.key(make.member(org))[0]
    first = make.usage_event(deployment, key, accepted_at=NOW - timedelta(hours=2))
    second = make.usage_event(other, other_key, outcome="timeout", status=504)
    rate_pending()
    client = web(org)

    def found(**query: Any) -> set[str]:
        return {item["id"] for item in get(client, org, "usage/events", query)["items"]}

    assert found() == {str(first.pk), str(second.pk)}
    assert found(deployment="bot") == found(deployment=str(deployment.pk)) == found(key=key.pk) == {str(first.pk)}
    assert found(outcome="timeout") == found(**{"from": (NOW - timedelta(hours=1)).isoformat()}) == {str(second.pk)}
    assert found(to=(NOW - timedelta(hours=1)).isoformat()) == {str(first.pk)}
    assert found(deployment="nothing") == set()
    item = get(client, org, "usage/events", {"deployment": "bot"})["items"][0]
    assert item["deployment"] == {"id": str(deployment.pk), "name": "bot"}
    assert item["key"] == {"id": str(key.pk), "name": "web"}
    assert item["amount"] == "0.000004500000"
    assert item["accepted_at"] == "2026-11-30T10:00:00Z"


@pytest.mark.threat("A8")
@pytest.mark.parametrize(
    ("path", "query", "field"),
    [
        ("usage", {"group_by": "secret"}, "group_by"),
        ("usage", {"from": "yesterday"}, "from"),
        ("usage", {"from": "2026-11-02T00:00:00Z", "to": "2026-11-01T00:00:00Z"}, "to"),
        ("usage", {"from": "2020-11-02T00:00:00Z", "to": "2026-11-01T00:00:00Z"}, "to"),
        ("usage", NOVEMBER | {"to": "2026-12-20T00:00:00Z", "group_by": "hour"}, "to"),
        ("usage", {"org_id": "x"}, "org_id"),
        ("usage/events", {"key": "x"}, "key"),
        ("usage/events", {"outcome": "x"}, "outcome"),
        ("usage/events", {"cursor": "x"}, "cursor"),
        ("usage/events", {"key__name": "x"}, "key__name"),
    ],
)
def test_bad_questions_get_a_sentence(path: str, query: dict[str, str], field: str, deployment: Deployment) -> None:
    error = get(web(deployment.org), deployment.org, path, query, status=400)["error"]
    assert error["field"] == field
    assert error["message"]


def test_statement_and_its_lines_down_to_the_events(deployment: Deployment, key: ApiKey) -> None:
    org = deployment.org
    for number in range(7):
        make.usage_event(deployment, key, prompt_tokens=11 + number, completion_tokens=number)
    rate_pending()
    client = web(org)
    listed = get(client, org, "statements")["items"]
    november = next(item for item in listed if item["period"] == "2026-11")
    detail = get(client, org, "statements/2026-11")
    assert november == {name: value for name, value in detail.items() if name != "lines"}
    assert detail["status"] == "open"
    assert (detail["starts_at"], detail["ends_at"]) == ("2026-11-01T00:00:00Z", "2026-12-01T00:00:00Z")
    assert detail["total_micro"] == sum(line["amount_micro"] for line in detail["lines"])
    for line in detail["lines"]:
        path = f"statements/2026-11/lines/{line['id']}/events"
        events = all_pages(client, org, path, {"limit": 3})
        assert sum(Decimal(event["amount"]) for event in events) == Decimal(line["exact"])
        assert sum(event["quantity"] for event in events) == line["quantity"]
        assert len({event["id"] for event in events}) == len(events)
        same = all_pages(client, org, "usage/events", {"statement_line": line["id"], "limit": 4})
        assert [event["id"] for event in same] == [event["id"] for event in events]
        assert line["deployment"] == {"id": str(deployment.pk), "name": "bot"}


def test_the_same_line_id_before_and_after_closing(deployment: Deployment, key: ApiKey) -> None:
    org = deployment.org
    event = make.usage_event(deployment, key)
    rate_pending()
    client = web(org)
    before = get(client, org, "statements/2026-11")
    statements.close_month(org, "2026-11", now=datetime(2026, 12, 3, tzinfo=UTC))
    after = get(client, org, "statements/2026-11")
    assert after["lines"] == before["lines"]
    assert after["status"] == "closed"
    assert len(after["content_hash"]) == 64
    path = f"statements/2026-11/lines/{after['lines'][0]['id']}/events"
    assert [item["id"] for item in get(client, org, path)["items"]] == [str(event.pk)]
    reverse(org, event.pk, now=datetime(2026, 12, 4, tzinfo=UTC))
    assert len(get(client, org, path)["items"]) == 1, "the correction is on December's line, not on this one"
    assert get(client, org, "usage/events")["items"][0]["amount"] == "0.000000000000"


def test_unknown_months_and_lines_are_404(deployment: Deployment, key: ApiKey) -> None:
    org = deployment.org
    client = web(org)
    for path in (
        "statements/1999-01",
        "statements/2026-13",
        "statements/x",
        f"statements/2026-11/lines/{key.pk}/events",
    ):
        get(client, org, path, status=404)
    get(client, org, "usage/events", {"statement_line": key.pk}, status=404)


@pytest.mark.threat("A1")
def test_another_organisations_line_is_not_found(deployment: Deployment, key: ApiKey) -> None:
    make.usage_event(deployment, key)
    rate_pending()
    (line, *_) = statements.month(deployment.org, "2026-11", now=NOW).lines
    other = make.org()
    client = web(other, "owner")
    get(client, other, "usage/events", {"statement_line": line.id}, status=404)
    get(client, other, f"statements/2026-11/lines/{line.id}/events", status=404)
    assert get(client, other, "usage/events", {"key": key.pk})["items"] == []
    assert get(client, other, "usage/events", {"deployment": str(deployment.pk)})["items"] == []
    get(client, deployment.org, "statements", status=404)


def test_prices_listed(deployment: Deployment) -> None:
    org = deployment.org
    dear = Prices(Decimal("0.000001"), Decimal("0"), Decimal("0.000002"))
    set_price(dear, org=org, now=NOW - timedelta(days=3650 * 2), valid_from=datetime(2021, 1, 1, tzinfo=UTC))
    set_price(dear, org=make.org(), now=NOW)
    items = get(web(org), org, "prices")["items"]
    assert [(item["scope"], item["input_token"], item["current"]) for item in items] == [
        ("organisation", "0.000001000000", True),
        ("platform", "0.000000150000", True),
    ]
    assert items[0]["cached_token"] == "0.000000000000"


@pytest.mark.threat("B2")
def test_csv_is_a_download_of_plain_text_and_exact_numbers(deployment: Deployment, key: ApiKey) -> None:
    org = deployment.org
    make.usage_event(deployment, key, prompt_tokens=1000, completion_tokens=0, first_token_ms=1.0)
    rate_pending()
    answer = web(org).get(f"/api/v1/orgs/{org.slug}/statements/2026-11/csv", headers={"accept": "text/csv"})
    assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"
    assert answer.headers["Content-Disposition"] == f'attachment; filename="statement-{org.slug}-2026-11.csv"'
    (row,) = csv.DictReader(io.StringIO(answer.content.decode()))
    assert (row["deployment"], row["unit"], row["quantity"]) == ("bot", "input_token", "1000")
    assert (row["unit_price"], row["exact"], row["amount_micro"]) == ("0.000000150000", "0.000150000000", "150")


@pytest.mark.threat("B2")
@pytest.mark.parametrize("text", ['=HYPERLINK("http://e")', "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_text_that_could_be_a_formula_is_quoted(text: str, deployment: Deployment, key: ApiKey) -> None:
    assert cell(text) == f"'{text}"
    event = make.usage_event(deployment, key)
    rate_pending()
    reverse(deployment.org, event.pk, now=datetime(2026, 12, 4, tzinfo=UTC))
    month = statements.month(deployment.org, "2026-12", now=datetime(2026, 12, 5, tzinfo=UTC))
    renamed = replace(month, lines=tuple(replace(line, deployment_name=text) for line in month.lines))
    rows = list(csv.DictReader(io.StringIO(statement_csv(renamed), newline="")))
    assert rows
    assert all(row["deployment"] == f"'{text}" for row in rows)
    assert all(row["quantity"].startswith("-") for row in rows), "a credit stays a number"


def test_nothing_but_the_ledger_is_summed_up(deployment: Deployment, key: ApiKey) -> None:
    """Usage, statement and ledger are one: the sum of the API's usage is the sum of the receivables."""
    for number in range(5):
        make.usage_event(deployment, key, prompt_tokens=number * 7 + 1, completion_tokens=number)
    rate_pending()
    org = deployment.org
    ledger = sum(entry.amount for entry in LedgerEntry.objects.for_org(org).filter(account="receivable"))
    assert Decimal(get(web(org), org, "usage", NOVEMBER)["totals"]["amount"]) == ledger


@pytest.mark.django_db(transaction=True)
def test_statement_and_usage_agree_while_others_book(deployment: Deployment, key: ApiKey) -> None:
    """Asked for again and again during rating, usage never differs from the month's statement."""
    for _ in range(150):
        make.usage_event(deployment, key)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            rate_pending(limit=2, rounds=100)
        except BaseException as error:
            errors.append(error)
        finally:
            connection.close()

    worker = threading.Thread(target=work)
    worker.start()
    seen = set()
    start, end = datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)
    while worker.is_alive():
        found = usage.usage(deployment.org, start, end, "key", now=NOW)
        seen.add(found.totals.amount)
        assert found.reconciles_with == usage.Reconciliation("2026-11", 0)
    worker.join()
    assert errors == []
    assert len(seen) > 1, "nothing was booked while asking"
