"""API keys through their routes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client

from berth.deployments.models import State
from berth.keys import services
from berth.keys.models import ApiKey, KeyKind
from berth.keys.secret import digest_of
from berth.orgs.models import Member
from berth.outbox.models import Change
from berth.publishing.snapshot import build
from berth_gateway.contract import KeyInfo, key_well_formed
from tests import make

pytestmark = pytest.mark.django_db


def url(member: Member, tail: str = "") -> str:
    return f"/api/v1/orgs/{member.org.slug}/keys{tail}"


def post(client: Client, address: str, content: dict[str, Any] | None = None, **headers: str) -> Any:
    return client.post(address, content or {}, "application/json", headers=headers)


@pytest.mark.threat("K1")
def test_a_key_is_shown_once_and_kept_as_a_digest() -> None:
    ann = make.member(make.org(), "developer")
    client = make.client(ann.user)
    before = Change.objects.count()
    answer = post(client, url(ann), {"name": "laptop"})
    assert answer.status_code == 201
    made = answer.json()
    secret = made["secret"]
    assert key_well_formed(secret) and made["hint"] == secret[-4:]
    assert made["scopes"] == ["inference"] and made["deployment_ids"] is None and made["status"] == "active"
    assert made["created_by"]["email"] == ann.user.email
    assert Change.objects.count() == before + 1 and made["change"]["id"] == Change.objects.latest("id").pk
    row = ApiKey.objects.for_org(ann.org).get(pk=made["id"])
    assert bytes(row.digest) == digest_of(secret)
    listed = client.get(url(ann)).json()["items"]
    assert [k["id"] for k in listed] == [made["id"]] and "secret" not in listed[0]


@pytest.mark.threat("K1")
def test_no_table_holds_a_secret(tmp_path: Any, valkey: Any) -> None:
    ann = make.member(make.org(), "owner")
    client = make.client(ann.user)
    made = post(client, url(ann), {"name": "a"}, **{"Idempotency-Key": "0d2f8c0e-first"}).json()
    play = post(client, f"/api/v1/orgs/{ann.org.slug}/playground-key").json()
    post(client, url(ann, f"/{made['id']}/revoke"))
    dump = tmp_path / "dump.json"
    call_command("dumpdata", "--output", str(dump))
    stored = dump.read_text() + str([(k, valkey.dump(k)) for k in valkey.scan_iter()])
    assert str(made["id"]) in stored
    for secret in (made["secret"], play["secret"]):
        assert secret not in stored and secret[7:50] not in stored


@pytest.mark.threat("K3")
@pytest.mark.parametrize(
    ("wish", "status", "code"),
    [
        ({"scopes": ["*"]}, 400, "key.scope_unknown"),
        ({"scopes": ["inference", "keys:write"]}, 400, "key.scope_unknown"),
        ({"scopes": []}, 400, "key.no_scope"),
        ({"kind": "service"}, 403, "permission.denied"),
        ({"kind": "playground"}, 400, "invalid"),
        ({"deployment_ids": []}, 400, "key.no_deployment"),
        ({"expires_at": "2020-01-01T00:00:00Z"}, 400, "key.expires_in_past"),
        ({"networks": ["203.0.113.7/24"]}, 400, "key.network_invalid"),
        ({"networks": ["0.0.0.0/0"]}, 400, "key.network_all"),
        ({"networks": ["here"]}, 400, "key.network_invalid"),
        ({"networks": ["192.0.2.1"] * 51}, 400, "invalid"),
        ({"owner": "x"}, 400, "unknown_field"),
        ({"org": "x"}, 400, "unknown_field"),
        ({"created_by": "x"}, 400, "unknown_field"),
        ({"digest": "x"}, 400, "unknown_field"),
        ({"id": "x"}, 400, "unknown_field"),
    ],
)
def test_a_key_never_reaches_further_than_its_maker(wish: dict[str, Any], status: int, code: str) -> None:
    ann = make.member(make.org(), "developer")
    answer = post(make.client(ann.user), url(ann), {"name": "wide", **wish})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert not ApiKey.objects.for_org(ann.org).exists()


@pytest.mark.threat("A1")
def test_foreign_and_unknown_deployments_look_the_same() -> None:
    ann, bob = make.member(make.org(), "owner"), make.member(make.org(), "owner")
    own, foreign, gone = (
        make.deployment(ann.org),
        make.deployment(bob.org),
        make.deployment(ann.org, state=State.DELETED),
    )
    client = make.client(ann.user)
    errors = []
    for wanted in (foreign.pk, gone.pk, make.new_id()):
        answer = post(client, url(ann), {"name": "x", "deployment_ids": [str(own.pk), str(wanted)]})
        error = answer.json()["error"]
        error.pop("request_id")
        errors.append((answer.status_code, error))
    assert errors[0] == errors[1] == errors[2] and errors[0][1]["code"] == "key.deployment_unknown"
    made = post(client, url(ann), {"name": "x", "deployment_ids": [str(own.pk)]}).json()
    assert made["deployment_ids"] == [str(own.pk)]


def test_developers_see_and_revoke_their_own_admins_all() -> None:
    org = make.org()
    ann, bob, boss = make.member(org, "developer"), make.member(org, "developer"), make.member(org, "admin")
    key, _ = make.key(ann)
    assert make.client(bob.user).get(url(bob)).json()["items"] == []
    for address in (url(bob, f"/{key.pk}"), url(bob, f"/{make.new_id()}")):
        assert make.client(bob.user).get(address).status_code == 404
    assert post(make.client(bob.user), url(bob, f"/{key.pk}/revoke")).status_code == 404
    assert make.client(boss.user).get(url(boss, f"/{key.pk}")).status_code == 200
    revoked = post(make.client(boss.user), url(boss, f"/{key.pk}/revoke")).json()
    assert revoked["status"] == "revoked" and revoked["change"]["id"] > 0
    again = post(make.client(ann.user), url(ann, f"/{key.pk}/revoke")).json()
    assert again["revoked_at"] == revoked["revoked_at"]
    key.refresh_from_db()
    assert key.revoked_by == boss.user


def test_names_are_unique_among_keys_that_work() -> None:
    ann = make.member(make.org(), "owner")
    client = make.client(ann.user)
    first = post(client, url(ann), {"name": "ci"}).json()
    taken = post(client, url(ann), {"name": "ci"})
    assert (taken.status_code, taken.json()["error"]["code"]) == (409, "key.name_taken")
    other = post(client, url(ann), {"name": "cd"}).json()
    renamed = client.patch(url(ann, f"/{other['id']}"), {"name": "ci"}, "application/json")
    assert renamed.status_code == 409
    post(client, url(ann, f"/{first['id']}/revoke"))
    assert client.patch(url(ann, f"/{other['id']}"), {"name": "ci"}, "application/json").json()["name"] == "ci"


def test_a_playground_key_is_short_lived_and_not_listed() -> None:
    ann = make.member(make.org(), "developer")
    client = make.client(ann.user)
    made = post(client, f"/api/v1/orgs/{ann.org.slug}/playground-key")
    assert made.status_code == 201 and key_well_formed(made.json()["secret"])
    assert client.get(url(ann)).json()["items"] == []
    key = ApiKey.objects.for_org(ann.org).get()
    assert key.kind == KeyKind.PLAYGROUND and key.scopes == ["inference"]
    assert key.expires_at is not None and key.expires_at - key.created_at <= services.PLAYGROUND
    viewer = make.member(ann.org, "viewer")
    assert post(make.client(viewer.user), f"/api/v1/orgs/{ann.org.slug}/playground-key").status_code == 403


@pytest.mark.threat("A6")
def test_removal_revokes_personal_keys_and_leaves_service_keys() -> None:
    org = make.org()
    owner, ann = make.member(org, "owner"), make.member(org, "admin")
    personal, _ = make.key(ann)
    service, _ = make.key(ann, kind=KeyKind.SERVICE)
    other, _ = make.key(owner)
    removed = make.client(owner.user).delete(f"/api/v1/orgs/{org.slug}/members/{ann.pk}")
    assert removed.status_code == 204
    usable = set(services.usable_keys().filter(org=org).values_list("pk", flat=True))
    assert usable == {service.pk, other.pk}
    personal.refresh_from_db()
    assert personal.revoked_at is not None and personal.revoked_by == owner.user


@pytest.mark.threat("A6")
def test_a_key_does_only_what_its_maker_may_still_do() -> None:
    org = make.org()
    owner, ann = make.member(org, "owner"), make.member(org, "developer")
    make.key(ann)
    expired, _ = make.key(owner, expires_at=datetime.now(UTC) - timedelta(days=1))
    before = Change.objects.count()
    changed = make.client(owner.user).patch(
        f"/api/v1/orgs/{org.slug}/members/{ann.pk}", {"role": "viewer"}, "application/json"
    )
    assert changed.status_code == 200 and Change.objects.count() == before + 1
    usable = set(services.usable_keys().filter(org=org).values_list("pk", flat=True))
    assert usable == {expired.pk}


@pytest.mark.threat("K3")
def test_a_service_key_is_never_freed_of_its_makers_limits() -> None:
    boss = make.member(make.org(), "admin")
    boss.set_limits({"rpm": 10})
    boss.save()
    client = make.client(boss.user)
    made = post(client, url(boss), {"name": "robot", "kind": "service"}).json()
    assert made["limits"]["rpm"] == 10
    sent = {"limits": {"rpm": None, "tpm": 5}}
    changed = client.patch(url(boss, f"/{made['id']}"), sent, "application/json").json()
    assert (changed["limits"]["rpm"], changed["limits"]["tpm"]) == (10, 5)


def test_a_key_may_be_bound_to_networks_and_loosened_again() -> None:
    ann = make.member(make.org(), "developer")
    client = make.client(ann.user)
    made = post(client, url(ann), {"name": "ci", "networks": ["192.0.2.7", "2001:DB8::/32", "192.0.2.7/32"]}).json()
    assert made["networks"] == ["192.0.2.7/32", "2001:db8::/32"]
    (told,) = [key for key in snapshot_keys() if key.key_id == made["id"]]
    assert told.networks == ("192.0.2.7/32", "2001:db8::/32")
    changed = client.patch(url(ann, f"/{made['id']}"), {"networks": []}, "application/json").json()
    assert changed["networks"] == [] and changed["change"]["id"] > made["change"]["id"]
    assert client.patch(url(ann, f"/{made['id']}"), {"name": "cd"}, "application/json").json()["networks"] == []
    (told,) = [key for key in snapshot_keys() if key.key_id == made["id"]]
    assert told.networks == ()


def snapshot_keys() -> tuple[KeyInfo, ...]:
    return build(epoch=make.new_id(), version=1, now=datetime.now(UTC)).keys
