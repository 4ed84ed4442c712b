"""One error shape, whatever goes wrong and wherever."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test import Client
from redis.exceptions import ConnectionError as ValkeyConnectionError

from berth.host.child import free_port
from tests import make

KEYS = {"code", "message", "params", "field", "request_id"}


def error_of(answer: Any) -> dict[str, Any]:
    content = answer.json()
    assert set(content) == {"error"} and set(content["error"]) == KEYS
    assert content["error"]["request_id"] == answer.headers["X-Request-Id"] and content["error"][
        "request_id"
    ].startswith("req_")
    return dict(content["error"])


@pytest.mark.django_db
def test_every_kind_of_refusal_has_the_shape() -> None:
    ann = make.member(make.org(), "viewer")
    client, base = make.client(ann.user), f"/api/v1/orgs/{ann.org.slug}"
    boss = make.client(make.member(ann.org, "owner").user)
    cases = [
        (make.client().get("/api/v1/me"), 401, "signed_out"),
        (client.get("/api/v1/nothing/here"), 404, "not_found"),
        (client.get("/api/v1/orgs/nobody"), 404, "not_found"),
        (client.put("/api/v1/me", {}, "application/json"), 405, "method_not_allowed"),
        (client.get(f"{base}/keys"), 403, "permission.denied"),
        (client.patch("/api/v1/me", "{", "application/json"), 400, "parse_error"),
        (client.patch("/api/v1/me", "[]", "application/json"), 400, "invalid"),
        (client.patch("/api/v1/me", {"language": "fr"}, "application/json"), 400, "invalid"),
        (client.patch("/api/v1/me", {"is_operator": True}, "application/json"), 400, "unknown_field"),
        (client.get("/api/v1/me", headers={"Host": "evil.example"}), 400, "bad_request"),
        (boss.get(f"{base}/keys?ordering=created_by__password"), 400, "unknown_field"),
        (boss.get(f"{base}/keys?cursor=%00"), 400, None),
        (boss.get(f"{base}/keys?cursor=bm9uc2Vuc2U"), 400, "cursor_invalid"),
        (boss.get(f"{base}/keys?limit=9999"), 400, "invalid"),
    ]
    for answer, status, code in cases:
        error = error_of(answer)
        assert answer.status_code == status, error
        assert code is None or error["code"] == code
    assert error_of(cases[4][0])["params"] == {"action": "keys.read_own"}
    assert error_of(cases[8][0])["field"] == "is_operator"


@pytest.mark.parametrize("place", ["middleware", "view"])
@pytest.mark.django_db
def test_a_database_that_is_away_is_503(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = make.client(make.user())
    client.raise_request_exception = False

    def away(*args: Any, **kwargs: Any) -> Any:
        raise OperationalError("connection to server at 10.0.0.7 failed: secret detail")

    target = {
        "middleware": "django.contrib.sessions.backends.db.SessionStore.load",
        "view": "berth.orgs.services.memberships_of",
    }
    monkeypatch.setattr(target[place], away)
    answer = client.get("/api/v1/me")
    error = error_of(answer)
    assert (answer.status_code, error["code"], error["params"]) == (503, "unavailable", {"service": "database"})
    assert answer.headers["Retry-After"] and "10.0.0.7" not in answer.content.decode()
    assert make.client().get("/api/v1/health").json() == {"status": "ok"}


@pytest.mark.django_db
def test_a_broker_that_is_away_is_503_at_open_doors(settings: Any) -> None:
    cache = settings.CACHES["default"]
    settings.CACHES = {"default": {**cache, "LOCATION": f"redis://127.0.0.1:{free_port()}/0"}}
    client = make.client(raise_request_exception=False)
    sent = {"email": "a@example.org", "password": "x"}
    for address, body in (("auth/browser/v1/auth/login", sent), ("invitations/accept", {"token": "x"})):
        answer = client.post(f"/api/v1/{address}", body, "application/json")
        assert (answer.status_code, error_of(answer)["params"]) == (503, {"service": "broker"})


@pytest.mark.django_db
def test_our_own_faults_tell_nothing(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    client = make.client(make.user(), raise_request_exception=False)

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("canary-7f3a in a local")

    monkeypatch.setattr("berth.orgs.services.memberships_of", broken)
    answer = client.get("/api/v1/me")
    assert (answer.status_code, error_of(answer)["code"]) == (500, "internal")
    assert "canary" not in answer.content.decode()


def test_health_needs_neither_database_nor_session(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Client().get("/api/v1/health")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_the_csrf_cookie_is_set_and_readable_by_the_page() -> None:
    answer = Client().get("/api/v1/csrf")
    assert answer.status_code == 204
    cookie = answer.cookies["berth_csrf"]
    assert cookie["samesite"] == "Lax" and not cookie["httponly"]


def test_a_valkey_error_in_a_service_is_503_too() -> None:
    from berth.web.errors import exception_handler

    answer = exception_handler(ValkeyConnectionError("Error 111 connecting to 10.0.0.7"), {"request": None})
    assert answer is not None and answer.status_code == 503 and "10.0.0.7" not in json.dumps(answer.data)


@pytest.mark.django_db(transaction=True)
def test_a_database_that_really_refuses_is_503_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    client = make.client(make.user(), raise_request_exception=False)
    assert client.get("/api/v1/me").status_code == 200
    connection.close()
    with monkeypatch.context() as patch:
        patch.setitem(connection.settings_dict, "PORT", str(free_port()))
        for address in ("/api/v1/me", "/api/v1/orgs/any/keys"):
            answer = client.get(address)
            assert (answer.status_code, error_of(answer)["params"]) == (503, {"service": "database"})
    assert client.get("/api/v1/me").status_code == 200
