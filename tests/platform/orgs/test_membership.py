"""Who belongs, and how that changes (threat A6)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from berth.orgs import membership
from berth.orgs.models import Invitation, Member, User
from berth.outbox.models import Change
from tests import make

pytestmark = [pytest.mark.django_db, pytest.mark.threat("A6")]
ACCEPT = "/api/v1/invitations/accept"


def invite(owner: Member, email: str = "new@example.org", role: str = "developer") -> Any:
    address = f"/api/v1/orgs/{owner.org.slug}/invitations"
    return make.client(owner.user).post(address, {"email": email, "role": role}, "application/json")


def accept(client: Client, token: str, **fields: str) -> Any:
    return client.post(ACCEPT, {"token": token, **fields}, "application/json")


def outcome(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_a_stranger_joins_with_a_password_and_is_signed_in() -> None:
    owner = make.member(make.org(), "owner")
    sent = invite(owner, "New@Example.org").json()
    assert sent["email"] == "new@example.org" and sent["url"].endswith(f"/invite/{sent['token']}")
    client = make.client()
    joined = accept(client, sent["token"], password="a long enough one", name="New")
    assert joined.status_code == 201 and joined.json()["role"] == "developer"
    me = client.get("/api/v1/me").json()
    assert me["email"] == "new@example.org" and me["memberships"][0]["org"]["slug"] == owner.org.slug
    assert "deployments.write" in me["memberships"][0]["permissions"]
    assert "members.write" not in me["memberships"][0]["permissions"]


def test_the_token_is_kept_as_a_digest_only() -> None:
    owner = make.member(make.org(), "owner")
    token = invite(owner).json()["token"]
    row = Invitation.objects.for_org(owner.org).get()
    assert token.encode() not in bytes(row.token_digest) and len(bytes(row.token_digest)) == 32
    listed = make.client(owner.user).get(f"/api/v1/orgs/{owner.org.slug}/invitations").json()["items"]
    assert [i["email"] for i in listed] == ["new@example.org"] and "token" not in listed[0]


def test_every_dead_token_answers_the_same() -> None:
    owner = make.member(make.org(), "owner")
    admin = make.member(owner.org, "admin")

    def token(inviter: Member, email: str, role: str = "developer") -> str:
        return str(invite(inviter, email, role).json()["token"])

    used, expired, revoked, replaced, orphan, demoted = (
        token(owner, "a@example.org"), token(owner, "b@example.org"), token(owner, "c@example.org"),
        token(owner, "d@example.org"), token(admin, "e@example.org"), token(owner, "f@example.org", "owner"),
    )  # fmt: skip
    assert accept(make.client(), used, password="a long enough one").status_code == 201
    invitations = Invitation.objects.for_org(owner.org)
    invitations.filter(email="b@example.org").update(expires_at=timezone.now() - timedelta(seconds=1))
    gone = invitations.get(email="c@example.org")
    assert make.client(owner.user).delete(f"/api/v1/orgs/{owner.org.slug}/invitations/{gone.pk}").status_code == 204
    token(owner, "d@example.org")
    successor = make.member(owner.org, "owner")
    membership.remove_member(successor, admin.pk, now=timezone.now())
    membership.change_role(successor, owner.pk, role="admin")
    bodies = []
    for dead in (used, expired, revoked, replaced, orphan, demoted, "never-existed"):
        answer = accept(make.client(), dead, password="a long enough one")
        assert outcome(answer) == (410, "invitation.gone")
        bodies.append(answer.json()["error"]["message"])
        assert owner.org.slug not in answer.content.decode() and owner.org.name not in answer.content.decode()
    assert len(set(bodies)) == 1


def test_an_address_with_an_account_signs_in_first_and_nobody_else_may_use_it() -> None:
    owner = make.member(make.org(), "owner")
    known = make.user("known@example.org")
    token = invite(owner, "known@example.org").json()["token"]
    stolen = accept(make.client(), token, password="a long enough one")
    assert outcome(stolen) == (403, "invitation.sign_in_first")
    assert outcome(accept(make.client(make.user()), token)) == (403, "invitation.other_address")
    assert owner.org.name not in stolen.content.decode()
    assert accept(make.client(known), token).status_code == 201
    assert Member.objects.for_org(owner.org).filter(user=known, role="developer").exists()


def test_a_weak_password_makes_no_user_and_leaves_the_invitation_open() -> None:
    owner = make.member(make.org(), "owner")
    token = invite(owner).json()["token"]
    weak = accept(make.client(), token, password="short")
    assert outcome(weak) == (400, "password.weak") and weak.json()["error"]["field"] == "password"
    assert not User.objects.filter(email="new@example.org").exists()
    assert accept(make.client(), token, password="a long enough one").status_code == 201


def test_accepting_is_throttled_by_address() -> None:
    codes = [accept(make.client(), f"guess-{i}").status_code for i in range(22)]
    assert codes == [410] * 20 + [429] * 2


def test_nobody_gives_changes_or_takes_a_role_above_their_own() -> None:
    org = make.org()
    owner, admin, ann = make.member(org, "owner"), make.member(org, "admin"), make.member(org, "developer")
    client, base = make.client(admin.user), f"/api/v1/orgs/{org.slug}/members"
    above = (403, "member.role_above_own")
    assert outcome(invite(admin, role="owner")) == above
    assert outcome(client.patch(f"{base}/{ann.pk}", {"role": "owner"}, "application/json")) == above
    assert outcome(client.patch(f"{base}/{admin.pk}", {"role": "owner"}, "application/json")) == above
    assert outcome(client.patch(f"{base}/{owner.pk}", {"role": "viewer"}, "application/json")) == above
    assert outcome(client.delete(f"{base}/{owner.pk}")) == above
    assert client.patch(f"{base}/{ann.pk}", {"role": "admin"}, "application/json").json()["role"] == "admin"


def test_the_last_owner_stays() -> None:
    org = make.org()
    owner = make.member(org, "owner")
    client, address = make.client(owner.user), f"/api/v1/orgs/{org.slug}/members/{owner.pk}"
    assert outcome(client.delete(address)) == (409, "member.last_owner")
    assert outcome(client.patch(address, {"role": "admin"}, "application/json")) == (409, "member.last_owner")
    make.member(org, "owner")
    assert client.delete(address).status_code == 204
    assert client.get(f"/api/v1/orgs/{org.slug}").status_code == 404


def test_who_is_a_member_already_is_not_invited() -> None:
    org = make.org()
    owner, ann = make.member(org, "owner"), make.member(org)
    assert outcome(invite(owner, ann.user.email.upper())) == (409, "member.exists")


def test_operators_make_suspend_and_resume_organisations_and_gateways_hear_of_it() -> None:
    operator, stranger = make.user(operator=True), make.user()
    sent = {"slug": "acme", "name": "Acme"}
    assert outcome(make.client(stranger).post("/api/v1/orgs", sent, "application/json")) == (403, "permission.denied")
    client = make.client(operator)
    assert client.post("/api/v1/orgs", sent, "application/json").status_code == 201
    assert outcome(client.post("/api/v1/orgs", sent, "application/json")) == (409, "org.slug_taken")
    for slug in ("A", "a", "-a", "a_b", "a" * 41):
        assert client.post("/api/v1/orgs", {"slug": slug, "name": "x"}, "application/json").status_code == 400
    before = Change.objects.filter(topic="orgs").count()
    suspended = client.post("/api/v1/operator/orgs/acme/suspend", {"reason": "Unpaid"}, "application/json").json()
    assert (suspended["suspended"], suspended["suspended_reason"]) == (True, "Unpaid")
    assert client.get("/api/v1/me").json()["memberships"][0]["org"]["suspended"] is True
    assert client.post("/api/v1/operator/orgs/acme/resume", {}, "application/json").json()["suspended"] is False
    assert Change.objects.filter(topic="orgs").count() == before + 2
    assert make.client(stranger).post("/api/v1/operator/orgs/acme/resume", {}, "application/json").status_code == 403


def test_an_organisation_is_renamed_by_its_owner() -> None:
    org = make.org()
    owner, admin = make.member(org, "owner"), make.member(org, "admin")
    address, sent = f"/api/v1/orgs/{org.slug}", {"name": "New", "time_zone": "Asia/Shanghai"}
    assert outcome(make.client(admin.user).patch(address, sent, "application/json")) == (403, "permission.denied")
    changed = make.client(owner.user).patch(address, sent, "application/json").json()
    assert (changed["name"], changed["time_zone"], changed["slug"]) == ("New", "Asia/Shanghai", org.slug)
    bad = make.client(owner.user).patch(address, {"time_zone": "Mars/Base"}, "application/json")
    assert bad.json()["error"]["field"] == "time_zone"


def test_admins_limit_members_within_the_organisation_s_limit() -> None:
    org = make.org(limit_rpm=600)
    owner, admin, dev = (make.member(org, role) for role in ("owner", "admin", "developer"))
    before = Change.objects.filter(topic="limits").count()

    def changed(by: Member, whom: Member, **content: Any) -> Any:
        address = f"/api/v1/orgs/{org.slug}/members/{whom.pk}"
        return make.client(by.user).patch(address, content, "application/json")

    answer = changed(admin, dev, limits={"rpm": 60, "concurrency": 4}).json()
    assert (answer["role"], answer["limits"]) == ("developer", {"rpm": 60, "tpm": None, "concurrency": 4})
    assert Change.objects.filter(topic="limits").count() == before + 1
    both = changed(admin, dev, limits={"rpm": None}, role="viewer").json()
    assert (both["role"], both["limits"]["rpm"], both["limits"]["concurrency"]) == ("viewer", None, 4)
    assert changed(admin, dev).json() == both
    assert outcome(changed(admin, dev, limits={"rpm": 601})) == (400, "member.limit_too_wide")
    assert outcome(changed(admin, owner, limits={"rpm": 1}))[0] == 403
    assert outcome(changed(dev, dev, limits={"rpm": None})) == (403, "permission.denied")
    dev.refresh_from_db()
    assert dev.limits == {"rpm": None, "tpm": None, "concurrency": 4}
