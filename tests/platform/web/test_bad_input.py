"""Whatever a client sends, it is told what is wrong with it: never a fault of ours (500)."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from berth.orgs.models import Invitation
from tests import make
from tests.routes import Route, World, api_routes, call

pytestmark = pytest.mark.django_db
LOGIN = "/api/v1/auth/browser/v1/auth/login"
PASSWORD = "/api/v1/auth/browser/v1/account/password/change"
DEEP = "[" * 100_000
HALF = '"\\ud800aaaaaaaaaaaa"'  # of a surrogate pair


def cursor(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def reads() -> list[Route]:
    return [route for route in api_routes() if "GET" in route.methods and not str(route).endswith("/<slug:org>/events")]


@pytest.mark.threat("A8")
def test_a_forged_cursor_is_told_from_a_real_one() -> None:
    world = World()
    make.key(world.owner), make.key(world.owner)
    client = make.client(world.owner.user)
    lists = 0
    for route in reads():
        address = world.address(route)
        for forged in ("p=foo", "p=%00", f"p={'9' * 99}", "r=1&p=2020-01-01", "o=-1", "r=1"):
            answer = client.get(address, {"cursor": cursor(forged)})
            assert answer.status_code < 500, f"{route} {forged}"
            lists += answer.status_code == 400 and answer.json()["error"]["code"] == "cursor_invalid"
    assert lists >= 30
    keys = f"/api/v1/orgs/{world.org.slug}/keys"
    first = client.get(keys, {"limit": 2}).json()
    rest = client.get(keys, {"limit": 2, "cursor": first["next"]}).json()
    assert len(first["items"]) == 2 and len(rest["items"]) == 1 and rest["next"] is None


def test_a_name_with_a_nul_is_unknown() -> None:
    world = World()
    client = make.client(world.owner.user)
    for kind in ("models", "deployments"):
        answer = client.get(f"/api/v1/orgs/{world.org.slug}/{kind}/a%00b")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_json_that_is_nested_too_deep_is_no_json(method: str) -> None:
    world = World()
    client = make.client(world.owner.user)
    tried = 0
    for route in api_routes():
        if method in route.methods:
            answer = call(client, method, world.address(route), DEEP)
            assert 400 <= answer.status_code < 500, str(route)
            tried += answer.status_code == 400
    assert tried >= 3


def test_half_a_character_is_no_text() -> None:
    ann = make.member(make.org(), "owner")
    client = make.client(ann.user)
    body = f'{{"current_password": {HALF}, "new_password": {HALF}}}'
    answer = call(client, "POST", PASSWORD, body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_request")
    answer = call(make.client(), "POST", LOGIN, f'{{"email": {HALF}, "password": {HALF}}}')
    assert answer.status_code == 400


def test_an_address_that_is_too_long_is_refused() -> None:
    ann = make.member(make.org(), "owner")
    sent: dict[str, Any] = {"email": f"{'a' * 250}@example.org", "role": "viewer"}
    answer = call(make.client(ann.user), "POST", f"/api/v1/orgs/{ann.org.slug}/invitations", sent)
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, "email")
    assert not Invitation.objects.for_org(ann.org).exists()


@pytest.mark.parametrize("zone", ["UTC", "Asia/Shanghai", "America/New_York"])
@pytest.mark.parametrize(
    ("start", "end"),
    [
        ("9999-12-01T00:00:00Z", "9999-12-02T00:00:00Z"),
        ("9999-12-31T23:00:00Z", "9999-12-31T23:59:00Z"),
        ("0001-01-01T00:00:00Z", "0001-01-02T00:00:00Z"),
    ],
)
def test_usage_of_the_ends_of_time_is_refused(zone: str, start: str, end: str) -> None:
    ann = make.member(make.org(time_zone=zone), "owner")
    address = f"/api/v1/orgs/{ann.org.slug}/usage"
    answer = make.client(ann.user).get(address, {"from": start, "to": end})
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, "from")


@pytest.mark.parametrize("name", ["think_seconds", "requests_per_second", "ttft_ms", "tokens_per_second", "users"])
@pytest.mark.parametrize("value", ["1e308", "1e400", "1e-300", "1" + "0" * 300])
def test_a_survey_of_an_absurd_demand_is_answered(name: str, value: str) -> None:
    world = World()
    body = f'{{"model": "{world.model.name}", "demand": {{"{name}": {value}}}}}'
    answer = call(make.client(world.owner.user), "POST", f"/api/v1/orgs/{world.org.slug}/plans/anywhere", body)
    assert answer.status_code in {200, 400, 422}
    if answer.status_code != 200:
        assert answer.json()["error"]["code"]
