"""Budgets: who may set what, what was spent, and what Valkey is told."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
import redis
from django.core.management import call_command
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.billing import claims, ledger, spending, watch
from berth.billing.budget_periods import period_at, periods_from
from berth.billing.models import Budget, BudgetPeriod, SpentSlice
from berth.billing.rating import text
from berth.keys.models import ApiKey
from berth.metering.models import GatewayPosition
from berth.orgs.models import Member
from berth.outbox.models import Change
from berth_gateway.contract import BUDGET_PREFIX
from tests import make
from tests.make import NOON

db = pytest.mark.django_db


# --- periods


@pytest.mark.parametrize(
    ("kind", "zone", "name", "start", "end"),
    [
        ("day", "UTC", "2026-11-30", "2026-11-30T00:00Z", "2026-12-01T00:00Z"),
        ("day", "Asia/Shanghai", "2026-11-30", "2026-11-29T16:00Z", "2026-11-30T16:00Z"),
        ("day", "Asia/Kathmandu", "2026-11-30", "2026-11-29T18:15Z", "2026-11-30T18:15Z"),
        ("month", "Europe/Zurich", "2026-11", "2026-10-31T23:00Z", "2026-11-30T23:00Z"),
    ],
)
def test_a_period_is_the_organisations(kind: str, zone: str, name: str, start: str, end: str) -> None:
    found = period_at(kind, NOON, zone)
    shown = [datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%MZ") for at in (found.starts_at, found.ends_at)]
    assert (found.name, shown) == (name, [start, end])


@settings(max_examples=100)
@given(
    st.integers(1_700_000_000, 2_050_000_000).map(lambda at: datetime.fromtimestamp(at, UTC)),
    st.sampled_from(["day", "month", "total"]),
    st.sampled_from(["UTC", "Asia/Shanghai", "America/Sao_Paulo", "Australia/Lord_Howe", "Pacific/Apia"]),
)
def test_periods_follow_each_other_without_a_gap(at: datetime, kind: str, zone: str) -> None:
    periods = periods_from(kind, at, zone, 4)
    assert periods[0].starts_at <= at.timestamp() < periods[0].ends_at
    for before, after in pairwise(periods):
        assert before.ends_at == after.starts_at and before.name != after.name
    assert all(each.starts_at % spending.QUARTER == each.ends_at % spending.QUARTER == 0 for each in periods)


# --- what was spent


class Scene:
    """An organisation with two deployments, two people and a key each."""

    def __init__(self) -> None:
        self.org = make.org()
        self.owner, self.dev = make.member(self.org, "owner"), make.member(self.org, "developer")
        self.key, _ = make.key(self.owner)
        self.dev_key, _ = make.key(self.dev)
        self.chat, self.other = make.deployment(self.org), make.deployment(self.org, created_by=self.dev.user)

    def budget(self, scope: str, subject: Any, amount: str = "1", period: str = "month") -> Budget:
        return make.budget(self.org, scope=scope, subject_id=subject.pk, amount=Decimal(amount), period=period)

    def spent(self, budget: Budget, now: datetime = NOON) -> dict[str, Decimal]:
        subject = spending.Subject(self.org.pk, budget.scope, budget.subject_id)
        period = period_at(budget.period, now, self.org.time_zone)
        return spending.spent_by_gateway(subject, period, spending.Waiting({self.org.pk}))


TOKEN = Decimal("0.000000600000")  # of output, by default


@db
def test_spending_is_the_same_before_and_after_booking_and_when_rebuilt() -> None:
    scene = Scene()
    used = {"prompt_tokens": 0, "completion_tokens": 1}
    make.usage_event(scene.chat, scene.key, gateway="gw-1", **used)
    make.usage_event(scene.chat, scene.dev_key, gateway="gw-1", **used | {"completion_tokens": 10})
    make.usage_event(scene.other, scene.key, gateway="gw-2", **used | {"completion_tokens": 100})
    make.usage_event(scene.chat, scene.key, accepted_at=NOON - timedelta(days=31), **used)
    make.usage_event(scene.chat, scene.key, outcome="rejected", **used)
    stranger = Scene()
    make.usage_event(stranger.chat, stranger.key, **used | {"completion_tokens": 1000})
    expected = {
        ("org", scene.org): {"gw-1": 11, "gw-2": 100},
        ("deployment", scene.chat): {"gw-1": 11},
        ("key", scene.key): {"gw-1": 1, "gw-2": 100},
        ("member", scene.owner): {"gw-1": 1, "gw-2": 100},
        ("member", scene.dev): {"gw-1": 10},
    }
    budgets = {scene.budget(*subject): {g: n * TOKEN for g, n in sums.items()} for subject, sums in expected.items()}

    def check() -> None:
        for budget, sums in budgets.items():
            found = {gateway: amount for gateway, amount in scene.spent(budget).items() if amount}
            assert found == sums, budget.scope

    check()
    ledger.rate_pending(limit=2)
    check()
    slices = sorted(SpentSlice.objects.values_list("gateway", "deployment_id", "key_id", "at", "amount"))
    assert spending.rebuild() == len(slices)
    assert sorted(SpentSlice.objects.values_list("gateway", "deployment_id", "key_id", "at", "amount")) == slices
    check()
    assert sum(s.amount for s in SpentSlice.objects.filter(org=scene.org)) == spending.booked(scene.org.pk)


# --- what Valkey is told


def fields(valkey: redis.Redis, budget: Budget, name: str = "2026-11") -> dict[str, str]:
    found: dict[bytes, bytes] = valkey.hgetall(f"{BUDGET_PREFIX}{budget.pk}:{name}")  # type: ignore[assignment]
    return {key.decode(): value.decode() for key, value in found.items()}


@db
def test_valkey_is_told_what_each_gateway_has_spent_up_to_where(valkey: redis.Redis) -> None:
    scene = Scene()
    budget = scene.budget("org", scene.org)
    GatewayPosition.objects.create(gateway="gw-1", position=7)
    GatewayPosition.objects.create(gateway="gw-idle", position=0)
    make.usage_event(scene.chat, scene.key, gateway="gw-1", prompt_tokens=0, completion_tokens=10)
    assert watch.look(now=NOON) == 1
    found = fields(valkey, budget)
    assert (found["l:gw-1"], found["l:gw-idle"]) == ("6000000 7", "0 0")
    assert (found["limit"], found["left"], found["c:gw-1"]) == ("1000000000000", "999994000000", "6000000")
    make.usage_event(scene.chat, scene.key, gateway="gw-1", prompt_tokens=0, completion_tokens=10)
    watch.look(now=NOON)
    found = fields(valkey, budget)
    assert found["l:gw-1"] == "12000000 7"
    assert (found["c:gw-1"], found["left"]) == ("6000000", "999994000000"), "a claim is the gateway's own to raise"


@db
def test_the_next_period_is_there_before_it_begins(valkey: redis.Redis) -> None:
    scene = Scene()
    budget = scene.budget("org", scene.org, period="day")
    watch.look(now=NOON)
    assert fields(valkey, budget, "2026-11-30") and not fields(valkey, budget, "2026-12-01")
    watch.look(now=NOON.replace(hour=23, minute=50))
    assert fields(valkey, budget, "2026-12-01")["left"] == "1000000000000"


@pytest.mark.threat("G10")
@db
def test_a_valkey_that_lost_everything_is_filled_again_and_opens_later(valkey: redis.Redis) -> None:
    scene = Scene()
    budget = scene.budget("org", scene.org)
    GatewayPosition.objects.create(gateway="gw-1", position=7)
    watch.look(now=NOON)
    first = fields(valkey, budget)
    name = f"{BUDGET_PREFIX}{budget.pk}:2026-11"
    valkey.hincrby(name, "c:gw-1", 500)
    valkey.hincrby(name, "left", -500)
    valkey.hset(name, "c:gw-new", 0)
    watch.look(now=NOON)
    assert BudgetPeriod.objects.get(budget=budget).claims == {"gw-1": "500"}
    valkey.flushall()
    watch.look(now=NOON)
    found = fields(valkey, budget)
    assert (found["c:gw-1"], found["left"]) == ("500", "999999999500"), "what was claimed when it was last seen"
    assert int(found["open_at"]) >= int(first["open_at"]) + claims.LEASE_MS


@db
def test_a_gateway_that_is_gone_for_good_keeps_only_what_it_spent(valkey: redis.Redis) -> None:
    scene = Scene()
    budget = scene.budget("org", scene.org)
    GatewayPosition.objects.create(gateway="gw-1", position=7)
    make.usage_event(scene.chat, scene.key, gateway="gw-1", prompt_tokens=0, completion_tokens=10)
    watch.look(now=NOON)
    name = f"{BUDGET_PREFIX}{budget.pk}:2026-11"
    valkey.hincrby(name, "c:gw-1", 500)
    valkey.hincrby(name, "left", -500)
    GatewayPosition.objects.update(updated_at=NOON - timedelta(hours=23))
    watch.look(now=NOON)
    assert fields(valkey, budget)["c:gw-1"] == "6000500"
    GatewayPosition.objects.update(updated_at=NOON - timedelta(hours=25))
    watch.look(now=NOON)
    assert fields(valkey, budget)["c:gw-1"] == "6000000" and fields(valkey, budget)["left"] == "999994000000"


# --- the routes


def url(member: Member, tail: str = "") -> str:
    return f"/api/v1/orgs/{member.org.slug}/budgets{tail}"


def send(member: Member, method: str, tail: str, **content: Any) -> Any:
    return make.client(member.user).generic(method, url(member, tail), _json(content), "application/json")


def _json(content: dict[str, Any]) -> str:
    return json.dumps(content, default=str)


@pytest.mark.django_db(transaction=True)
def test_a_budget_is_made_shown_changed_and_removed(valkey: redis.Redis) -> None:
    scene = Scene()
    make.usage_event(scene.chat, scene.key, accepted_at=datetime.now(UTC), prompt_tokens=0, completion_tokens=10)
    answer = send(scene.owner, "POST", "", scope="deployment", subject_id=scene.chat.pk, period="month", amount="2.5")
    assert answer.status_code == 201, answer.content
    made = answer.json()
    assert (made["limit"], made["spent"], made["reserved"]) == (
        text(Decimal("2.5")),
        text(10 * TOKEN),
        text(Decimal(0)),
    )
    assert made["left"] == text(Decimal("2.5") - 10 * TOKEN)
    assert made["subject"] == {"id": str(scene.chat.pk), "name": scene.chat.name}
    assert Change.objects.filter(pk=made["change"]["id"], topic="budgets").exists()
    budget = Budget.objects.for_org(scene.org).get()
    assert fields(valkey, budget, made["period_name"])["left"] == "2499994000000", "it holds before gateways hear of it"

    again = send(scene.owner, "POST", "", scope="deployment", subject_id=scene.chat.pk, period="month", amount="3")
    assert (again.status_code, again.json()["error"]["code"]) == (409, "budget_exists")
    changed = send(scene.owner, "PATCH", f"/{made['id']}", amount="0.000001")
    assert changed.status_code == 200 and changed.json()["left"] == text(Decimal(0))
    assert fields(valkey, budget, made["period_name"])["left"] == str(1_000_000 - 6_000_000)
    listed = make.client(scene.owner.user).get(url(scene.owner)).json()
    assert [each["id"] for each in listed["items"]] == [made["id"]] and listed["next"] is None
    assert send(scene.owner, "DELETE", f"/{made['id']}").status_code == 200
    assert make.client(scene.owner.user).get(url(scene.owner, f"/{made['id']}")).status_code == 404


@pytest.mark.threat("K3")
@db
@pytest.mark.parametrize(
    ("role", "scope", "status"),
    [
        ("owner", "org", 201), ("billing", "org", 201), ("admin", "org", 403), ("developer", "org", 403),
        ("admin", "key", 201), ("billing", "key", 201), ("developer", "key", 403), ("admin", "deployment", 201),
        ("developer", "deployment", 403), ("admin", "member", 201), ("developer", "member", 403), ("viewer", "key", 403),
    ],
)  # fmt: skip
def test_who_may_set_which_budget(role: str, scope: str, status: int) -> None:
    scene = Scene()
    member = make.member(scene.org, role)
    subject: Any = {"key": scene.key, "deployment": scene.chat, "member": scene.dev}.get(scope)
    content = {"scope": scope, "period": "day", "amount": "1"} | ({"subject_id": subject.pk} if subject else {})
    assert send(member, "POST", "", **content).status_code == status


@pytest.mark.threat("K3")
@db
def test_a_developer_sets_and_sees_budgets_of_own_keys_and_deployments_only() -> None:
    scene = Scene()
    foreign = scene.budget("key", scene.key)
    for scope, subject in (("key", scene.dev_key), ("deployment", scene.other)):
        answer = send(scene.dev, "POST", "", scope=scope, subject_id=subject.pk, period="day", amount="1")
        assert answer.status_code == 201
    listed = make.client(scene.dev.user).get(url(scene.dev)).json()["items"]
    assert sorted(each["scope"] for each in listed) == ["deployment", "key"]
    for method in ("PATCH", "DELETE"):
        content = {"amount": "9"} if method == "PATCH" else {}
        assert send(scene.dev, method, f"/{foreign.pk}", **content).status_code == 404


@db
def test_a_part_may_not_spend_more_than_the_whole() -> None:
    scene = Scene()
    scene.budget("org", scene.org, "5", period="day")
    content = {"scope": "key", "subject_id": scene.key.pk, "period": "day"}
    refused = send(scene.owner, "POST", "", **content, amount="5.000000000001")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "budget.above_organisation")
    made = send(scene.owner, "POST", "", **content, amount="5")
    assert made.status_code == 201
    refused = send(scene.owner, "PATCH", f"/{made.json()['id']}", amount="6")
    assert (refused.status_code, refused.json()["error"]["field"]) == (400, "amount")


@db
@pytest.mark.parametrize("amount", ["-1", "9000000.1", "1.0000000000001", "NaN", "Infinity", "", None])
def test_an_amount_is_exact_and_bounded(amount: Any) -> None:
    scene = Scene()
    answer = send(scene.owner, "POST", "", scope="org", period="day", amount=amount)
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, "amount")


# --- limits


@pytest.mark.threat("K3")
@db
def test_a_key_is_not_given_more_than_its_maker_has() -> None:
    scene = Scene()
    call_command("set_limits", scene.org.slug, "--rpm", "100")
    call_command("set_limits", scene.org.slug, "--member", scene.dev.user.email, "--rpm", "10", "--tpm", "1000")
    client, address = make.client(scene.dev.user), f"/api/v1/orgs/{scene.org.slug}/keys"
    for limits, field in (({"rpm": 11}, "limits.rpm"), ({"tpm": 1001}, "limits.tpm")):
        refused = client.post(address, {"name": "x", "limits": limits}, "application/json")
        assert (refused.status_code, refused.json()["error"]["field"]) == (400, field)
    made = client.post(address, {"name": "x", "limits": {"rpm": 10, "concurrency": 3}}, "application/json")
    assert made.status_code == 201 and made.json()["limits"] == {"rpm": 10, "tpm": None, "concurrency": 3}
    one = f"{address}/{made.json()['id']}"
    assert client.patch(one, {"limits": {"rpm": 11}}, "application/json").status_code == 400
    changed = client.patch(one, {"limits": {"rpm": None}}, "application/json")
    assert changed.status_code == 200 and changed.json()["limits"] == {"rpm": None, "tpm": None, "concurrency": 3}
    assert client.patch(one, {"limits": {"burst": 1}}, "application/json").json()["error"]["code"] == "unknown_field"


@db
def test_a_service_key_takes_its_makers_limits_along() -> None:
    scene = Scene()
    admin = make.member(scene.org, "admin")
    call_command("set_limits", scene.org.slug, "--member", admin.user.email, "--tpm", "1000")
    body = {"name": "x", "kind": "service", "limits": {"rpm": 5}}
    made = make.client(admin.user).post(f"/api/v1/orgs/{scene.org.slug}/keys", body, "application/json").json()
    assert made["limits"] == {"rpm": 5, "tpm": 1000, "concurrency": None}
    assert ApiKey.objects.for_org(scene.org).get(pk=made["id"]).limit_tpm == 1000


@db
def test_a_deployments_limits_change_without_a_new_revision() -> None:
    scene = Scene()
    address = f"/api/v1/orgs/{scene.org.slug}/deployments/{scene.chat.name}"
    answer = make.client(scene.dev.user).patch(address, {"limits": {"tpm": 5000}}, "application/json")
    assert answer.status_code == 200
    assert answer.json()["limits"] == {"rpm": None, "tpm": 5000, "concurrency": None}
    assert answer.json()["revision"]["number"] == 1
    assert Change.objects.latest("id").topic == "limits"
