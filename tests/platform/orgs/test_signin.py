"""Sign-in through the mounted allauth views, as the dashboard does it."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
from django.contrib.auth.hashers import Argon2PasswordHasher
from django.http import HttpRequest
from django.test import Client

from berth.orgs.recent import confirmed_at
from tests import make

pytestmark = pytest.mark.django_db
LOGIN = "/api/v1/auth/browser/v1/auth/login"
SESSION = "/api/v1/auth/browser/v1/auth/session"
CHANGE = "/api/v1/auth/browser/v1/account/password/change"
CONFIRM = "/api/v1/auth/browser/v1/auth/reauthenticate"


def sign_in(client: Client, email: str, password: str = make.PASSWORD, **headers: str) -> Any:
    return client.post(LOGIN, {"email": email, "password": password}, "application/json", headers=headers)


def test_signing_in_opens_the_api_and_signing_out_closes_it() -> None:
    make.user("ann@example.org", password=make.PASSWORD, name="Ann")
    client = make.client()
    assert client.get("/api/v1/me").status_code == 401
    assert sign_in(client, "Ann@Example.org").status_code == 200
    me = client.get("/api/v1/me").json()
    assert (me["email"], me["name"], me["memberships"]) == ("ann@example.org", "Ann", [])
    assert client.get(SESSION).status_code == 200
    assert client.delete(SESSION).status_code == 204
    assert client.get("/api/v1/me").json()["error"]["code"] == "signed_out"
    assert client.get(SESSION).json()["error"]["code"] == "signed_out"


@pytest.mark.threat("A3")
def test_the_password_can_be_confirmed_and_counts_from_then() -> None:
    person = make.user("ann@example.org", password=make.PASSWORD)
    client = make.confirmed(make.client(person), ago=5000)

    def confirmed() -> float | None:
        request = HttpRequest()
        request.session = client.session  # type: ignore[assignment]
        return confirmed_at(request)

    before = confirmed()
    wrong = client.post(CONFIRM, {"password": "not the password"}, "application/json")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "password.wrong")
    assert confirmed() == before
    assert client.post(CONFIRM, {"password": make.PASSWORD}, "application/json").status_code == 200
    after = confirmed()
    assert before is not None and after is not None and after > before + 4000
    assert make.client().post(CONFIRM, {"password": make.PASSWORD}, "application/json").status_code == 401
    fresh = make.client()
    sign_in(fresh, "ann@example.org")
    client = fresh
    assert confirmed() is not None, "signing in counts"


@pytest.mark.threat("A3")
def test_unknown_address_and_wrong_password_answer_and_cost_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    make.user("known@example.org", password=make.PASSWORD)
    hashed: list[str] = []
    for name in ("encode", "verify"):
        original = getattr(Argon2PasswordHasher, name)
        monkeypatch.setattr(
            Argon2PasswordHasher,
            name,
            lambda self, *args, _name=name, _original=original: (hashed.append(_name), _original(self, *args))[1],
        )

    def attempt(email: str) -> tuple[int, Any, int]:
        hashed.clear()
        answer = sign_in(make.client(), email, "not the password")
        error = answer.json()["error"]
        error.pop("request_id")
        return answer.status_code, error, len(hashed)

    known, unknown = attempt("known@example.org"), attempt("nobody@example.org")
    assert known == unknown
    assert known[0] == 400 and known[1]["code"] == "sign_in.wrong"
    assert known[2] == 1


@pytest.mark.threat("A3")
def test_twenty_failures_lock_the_account_even_for_the_right_password() -> None:
    make.user("ann@example.org", password=make.PASSWORD)
    make.user("bob@example.org", password=make.PASSWORD)
    with mock.patch.object(Argon2PasswordHasher, "verify", lambda self, password, encoded: password == make.PASSWORD):
        for _ in range(20):
            assert sign_in(make.client(), "ann@example.org", "wrong").status_code == 400
        locked = sign_in(make.client(), "ann@example.org")
        assert locked.status_code == 429
        assert locked.json()["error"]["code"] == "throttled"
        assert int(locked.headers["Retry-After"]) > 0
        assert sign_in(make.client(), "bob@example.org").status_code == 200


@pytest.mark.threat("G11")
def test_a_forged_address_does_not_lift_the_limit_on_an_address(settings: Any) -> None:
    settings.ACCOUNT_RATE_LIMITS = {"login": "3/m/ip"}
    codes = [
        make.client().post(
            LOGIN,
            {"email": f"n{i}@example.org", "password": ""},
            "application/json",
            headers={"X-Forwarded-For": f"203.0.113.{i}"},
        )
        for i in range(5)
    ]
    assert [c.status_code for c in codes] == [400, 400, 400, 429, 429]


@pytest.mark.threat("A2")
def test_the_session_gets_a_new_key_and_the_old_one_is_dead() -> None:
    make.user("ann@example.org", password=make.PASSWORD)
    client = make.client()
    planted = client.session
    planted["theme"] = "dark"
    planted.save()
    client.cookies["berth_session"] = planted.session_key
    assert sign_in(client, "ann@example.org").status_code == 200
    assert client.cookies["berth_session"].value != planted.session_key
    thief = make.client()
    thief.cookies["berth_session"] = planted.session_key
    assert thief.get("/api/v1/me").status_code == 401


@pytest.mark.threat("A2")
def test_every_changing_call_by_cookie_needs_the_token() -> None:
    user = make.user("ann@example.org", password=make.PASSWORD)
    stranger = make.client(enforce_csrf_checks=True)
    assert sign_in(stranger, "ann@example.org").json()["error"]["code"] == "csrf_failed"
    assert stranger.post("/api/v1/invitations/accept", {"token": "x"}, "application/json").status_code == 403
    client = make.client(user, enforce_csrf_checks=True)
    refused = client.patch("/api/v1/me", {"name": "Mallory"}, "application/json")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "csrf_failed")
    assert client.get("/api/v1/csrf").status_code == 204
    token = {"X-CSRFToken": client.cookies["berth_csrf"].value}
    allowed = client.patch("/api/v1/me", {"name": "Ann"}, "application/json", headers=token)
    assert (allowed.status_code, allowed.json()["name"]) == (200, "Ann")


@pytest.mark.threat("A2")
@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
def test_only_json_is_read(kind: str) -> None:
    user = make.user("ann@example.org", password=make.PASSWORD)
    form = '{"email":"ann@example.org","password":"correct horse battery staple"}'
    assert make.client().post(LOGIN, form, kind).status_code == 415
    refused = make.client(user).patch("/api/v1/me", '{"name":"Mallory"}', kind)
    assert (refused.status_code, refused.json()["error"]["code"]) == (415, "unsupported_media_type")


def test_a_new_password_ends_the_other_sessions_and_is_checked() -> None:
    make.user("ann@example.org", password=make.PASSWORD)
    here, there = make.client(), make.client()
    assert sign_in(here, "ann@example.org").status_code == sign_in(there, "ann@example.org").status_code == 200
    weak = here.post(CHANGE, {"current_password": make.PASSWORD, "new_password": "short"}, "application/json")
    assert (weak.status_code, weak.json()["error"]["field"]) == (400, "new_password")
    wrong = here.post(CHANGE, {"current_password": "no", "new_password": "a much longer one"}, "application/json")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "password.wrong")
    sent = {"current_password": make.PASSWORD, "new_password": "a much longer one"}
    assert here.post(CHANGE, sent, "application/json").status_code == 200
    assert here.get("/api/v1/me").status_code == 200
    assert there.get("/api/v1/me").status_code == 401


def test_a_password_that_berth_made_is_temporary_until_it_is_changed() -> None:
    user = make.user("ann@example.org", password=make.PASSWORD)
    user.password_is_temporary = True
    user.save()
    client = make.client()
    sign_in(client, "ann@example.org")
    assert client.get("/api/v1/me").json()["password_is_temporary"] is True
    weak = client.post(CHANGE, {"current_password": make.PASSWORD, "new_password": "short"}, "application/json")
    assert weak.status_code == 400
    assert client.get("/api/v1/me").json()["password_is_temporary"] is True
    renamed = client.patch("/api/v1/me", {"name": "Ann"}, "application/json")
    assert renamed.json()["password_is_temporary"] is True
    sent = {"current_password": make.PASSWORD, "new_password": "a much longer one"}
    assert client.post(CHANGE, sent, "application/json").status_code == 200
    assert client.get("/api/v1/me").json()["password_is_temporary"] is False


@pytest.mark.parametrize("text", ["[1]", "{", "[" * 100_000, '"x"'])
def test_bodies_that_are_no_object_are_refused(text: str) -> None:
    answer = make.client().post(LOGIN, text, "application/json")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_request")


@pytest.mark.threat("K3")
def test_sign_in_takes_its_two_fields_only() -> None:
    sent = {"email": "a@example.org", "password": "x", "is_operator": True}
    error = make.client().post(LOGIN, sent, "application/json").json()["error"]
    assert (error["code"], error["field"]) == ("unknown_field", "is_operator")


def test_what_allauth_offers_beside_that_does_not_exist() -> None:
    for address in ("signup", "password/request", "password/reset", "../account/email", "code/request"):
        answer = make.client().post(f"/api/v1/auth/browser/v1/auth/{address}", {}, "application/json")
        assert answer.status_code == 404, address


@pytest.mark.threat("A2")
def test_private_answers_are_not_cached_anywhere() -> None:
    make.user("ann@example.org", password=make.PASSWORD)
    client = make.client()
    assert sign_in(client, "ann@example.org").headers["Cache-Control"] == "no-store"
    assert client.get("/api/v1/me").headers["Cache-Control"] == "no-store"


@pytest.mark.threat("A2")
def test_an_api_key_opens_nothing_of_the_management_api() -> None:
    ann = make.member(make.org(), "owner")
    _, secret = make.key(ann)
    for headers in ({"Authorization": f"Bearer {secret}"}, {"X-API-Key": secret}):
        answer = make.client().get(f"/api/v1/orgs/{ann.org.slug}/keys", headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "signed_out")
        assert secret not in answer.content.decode()
