"""Every route names what one must be allowed, and the answers follow the table: role × action over all routes."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction
from rest_framework.permissions import BasePermission

from berth.orgs.models import Role
from berth.orgs.permissions import MATRIX, Action, allows
from berth.web.auth import DenyByDefault, Open, Operator, SignedIn
from tests import make
from tests.routes import Route, World, api_routes, call, code_of, of_class, org_routes

# Everything that answers without a session. A new one is a decision, so it is written down here too.
OPEN = {
    "/csrf",
    "/health",
    "/invitations/accept",
    "/auth/browser/v1/auth/login",
    "/auth/browser/v1/auth/reauthenticate",
    "/auth/browser/v1/auth/session",
    "/auth/browser/v1/account/password/change",
}
BY_HAND = {r for r in OPEN if r.startswith("/auth/")}  # allauth's views ask for a session themselves


def names(routes: list[Route]) -> list[str]:
    return [str(route) for route in routes]


@pytest.mark.parametrize("route", api_routes(), ids=names(api_routes()))
def test_every_route_names_its_permission(route: Route) -> None:
    if str(route) in BY_HAND:
        return
    if route.is_org:
        assert route.methods and set(route.methods) == set(route.actions), (
            "each method of an organisation's view needs an action"
        )
        assert all(isinstance(action, Action) for action in route.actions.values())
        assert of_class(route) or route.view_class is None
        return
    assert route.view_class is not None
    permissions: list[type[BasePermission]] = list(route.view_class.permission_classes)  # type: ignore[arg-type]
    assert permissions and DenyByDefault not in permissions
    assert set(permissions) <= {Open, SignedIn, Operator}
    assert (Open in permissions) == (str(route) in OPEN)
    assert (Operator in permissions) == str(route).startswith("/operator/")


def test_the_walk_finds_routes() -> None:
    assert {"/me", "/orgs/<slug:org>/keys", "/orgs/<slug:org>/events", *OPEN} <= set(names(api_routes()))


def test_every_action_is_in_the_table_and_every_role_somewhere() -> None:
    assert set(MATRIX) == set(Action)
    assert set.union(*(set(roles) for roles in MATRIX.values())) == set(Role)


@pytest.mark.threat("A1")
@pytest.mark.django_db
@pytest.mark.parametrize("route", org_routes(), ids=names(org_routes()))
def test_role_by_action(route: Route) -> None:
    world = World()
    for method, action in route.actions.items():
        for role in Role:
            client = make.client(make.member(world.org, role).user)
            answer = _tried(client, method, world.address(route))
            told = f"{method} as {role}: {answer.status_code} {code_of(answer)}"
            if allows(role, action):
                assert answer.status_code < 500 and answer.status_code != 401, told
                assert code_of(answer) != "permission.denied", told
            else:
                assert (answer.status_code, code_of(answer)) == (403, "permission.denied"), told
                assert answer.json()["error"]["params"] == {"action": action.value}


@pytest.mark.threat("A1")
@pytest.mark.django_db
@pytest.mark.parametrize("route", org_routes(), ids=names(org_routes()))
def test_who_is_not_a_member_cannot_tell_an_organisation_from_none(route: Route) -> None:
    world, elsewhere = World(), World()
    operator = make.user(operator=True)
    for method in route.actions:
        for person in (elsewhere.owner.user, operator):
            client = make.client(person)
            real = _tried(client, method, world.address(route))
            none = _tried(client, method, world.address(route, org="no-such-org"))
            assert real.status_code == none.status_code == 404
            assert _without_id(real) == _without_id(none)
        assert _tried(make.client(), method, world.address(route)).status_code == 401


@pytest.mark.threat("A2")
@pytest.mark.django_db
@pytest.mark.parametrize("route", [r for r in api_routes() if str(r) not in BY_HAND], ids=str)
def test_changing_calls_need_the_csrf_token(route: Route) -> None:
    world = World()
    client = make.client(world.owner.user, enforce_csrf_checks=True)
    for method in set(route.methods) - {"GET"}:
        answer = _tried(client, method, world.address(route))
        assert (answer.status_code, code_of(answer)) == (403, "csrf_failed")


@pytest.mark.threat("A7")
@pytest.mark.django_db
@pytest.mark.parametrize("route", [r for r in api_routes() if "GET" in (r.methods or ["GET"])], ids=str)
def test_every_answer_carries_the_security_headers(route: Route) -> None:
    world = World()
    headers = call(make.client(world.owner.user), "GET", world.address(route)).headers
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff" and headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "no-referrer" and headers["Permissions-Policy"]
    assert headers["Cross-Origin-Opener-Policy"] == headers["Cross-Origin-Resource-Policy"] == "same-origin"
    policy = headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy and "*" not in policy
    assert headers["X-Request-Id"].startswith("req_")


def _tried(client: Any, method: str, address: str) -> Any:
    """The answer; what the call changed is undone."""
    with transaction.atomic():
        answer = call(client, method, address)
        transaction.set_rollback(True)
    return answer


def _without_id(answer: Any) -> dict[str, Any]:
    error = answer.json()["error"]
    error.pop("request_id")
    return dict(error)
