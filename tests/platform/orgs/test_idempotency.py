"""The same creating request sent twice creates once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from berth.keys import services
from berth.keys.models import ApiKey
from berth.orgs.models import IdempotentAnswer, Member
from tests import make

KEY = "4c7e3a0e-8a53-4b0e-9f5e-1d2c3b4a5f60"


def create(client: Client, member: Member, name: str = "ci", key: str = KEY) -> Any:
    address = f"/api/v1/orgs/{member.org.slug}/keys"
    return client.post(address, {"name": name}, "application/json", headers={"Idempotency-Key": key})


@pytest.mark.django_db
def test_the_answer_comes_again_with_its_secret_and_nothing_is_made_twice() -> None:
    ann = make.member(make.org())
    client = make.client(ann.user)
    first, second = create(client, ann), create(client, ann)
    assert first.status_code == second.status_code == 201
    assert first.json() == second.json()
    assert "Idempotency-Replayed" not in first.headers and second.headers["Idempotency-Replayed"] == "true"
    assert ApiKey.objects.for_org(ann.org).count() == 1


@pytest.mark.django_db
def test_another_body_is_refused() -> None:
    ann = make.member(make.org())
    client = make.client(ann.user)
    create(client, ann)
    other = create(client, ann, name="cd")
    assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency_mismatch")


@pytest.mark.django_db
def test_an_error_is_not_kept() -> None:
    ann = make.member(make.org())
    client = make.client(ann.user)
    old, _ = make.key(ann, name="ci")
    assert create(client, ann).status_code == 409
    ApiKey.objects.for_org(ann.org).filter(pk=old.pk).update(revoked_at=timezone.now())
    assert create(client, ann).status_code == 201


@pytest.mark.threat("A1")
@pytest.mark.django_db
def test_a_key_counts_for_one_user_and_one_address() -> None:
    org = make.org()
    ann, bob = make.member(org), make.member(org)
    create(make.client(ann.user), ann)
    assert create(make.client(bob.user), bob).json()["error"]["code"] == "key.name_taken"
    elsewhere = make.member(make.org(), person=ann.user)
    answer = create(make.client(ann.user), elsewhere)
    assert answer.status_code == 201 and "Idempotency-Replayed" not in answer.headers


@pytest.mark.django_db
def test_after_a_day_the_key_is_new_again() -> None:
    ann = make.member(make.org())
    client = make.client(ann.user)
    create(client, ann)
    IdempotentAnswer.objects.update(created_at=timezone.now() - timedelta(hours=25))
    assert create(client, ann).json()["error"]["code"] == "key.name_taken"


@pytest.mark.parametrize("key", ["short", "x" * 129, "with space here", "umlaut-ü-in-it"])
@pytest.mark.django_db
def test_malformed_keys_are_refused(key: str) -> None:
    ann = make.member(make.org())
    answer = create(make.client(ann.user), ann, key=key)
    assert answer.json()["error"]["code"] == "idempotency_key_invalid"


@pytest.mark.threat("K1")
@pytest.mark.django_db
def test_the_kept_answer_is_sealed_by_the_clients_own_key() -> None:
    ann = make.member(make.org())
    secret = create(make.client(ann.user), ann).json()["secret"]
    row = IdempotentAnswer.objects.get()
    assert row.answer is not None
    kept = bytes(row.answer) + bytes(row.digest) + bytes(row.body_digest or b"")
    assert secret.encode() not in kept and KEY.encode() not in kept
    IdempotentAnswer.objects.update(answer=bytes(row.answer[:-1]) + bytes([row.answer[-1] ^ 1]))
    assert create(make.client(ann.user), ann).json()["error"]["code"] == "idempotency_mismatch"


@pytest.mark.django_db(transaction=True)
def test_of_many_at_once_one_creates_and_the_others_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    ann = make.member(make.org())
    begun, others_done = threading.Event(), threading.Event()
    original = services.create_key

    def slow(*args: Any, **kwargs: Any) -> services.Issued:
        begun.set()
        assert others_done.wait(30)
        return original(*args, **kwargs)

    monkeypatch.setattr(services, "create_key", slow)

    def call() -> Any:
        try:
            return create(make.client(ann.user), ann)
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(call)
        assert begun.wait(30)
        meanwhile = [future.result(30) for future in [pool.submit(call) for _ in range(3)]]
        others_done.set()
        assert first.result(30).status_code == 201
    assert [(a.status_code, a.json()["error"]["code"]) for a in meanwhile] == [(409, "idempotency_in_progress")] * 3
    assert create(make.client(ann.user), ann).headers["Idempotency-Replayed"] == "true"
    assert ApiKey.objects.for_org(ann.org).count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_crash_between_effect_and_answer_leaves_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    ann = make.member(make.org())
    client = make.client(ann.user, raise_request_exception=False)
    with monkeypatch.context() as patch:
        patch.setattr("berth.orgs.idempotency._seal", lambda scope, plain: 1 / 0)
        assert create(client, ann).status_code == 500
    assert ApiKey.objects.for_org(ann.org).count() == 0
    assert create(client, ann).status_code == 201
