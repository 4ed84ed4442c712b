"""Two acts at the same moment break no rule (threat A6)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection
from django.utils import timezone

from berth.orgs import membership
from berth.orgs.models import Member, Role
from berth.web.errors import ApiError
from tests import make

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.threat("A6")]


def together(*acts: Callable[[], object]) -> list[str]:
    """Runs all at once, each on a connection of its own; tells "ok" or the error's code of each."""
    start = threading.Barrier(len(acts))

    def run(act: Callable[[], object]) -> str:
        start.wait(30)
        try:
            act()
        except ApiError as error:
            return error.code
        finally:
            connection.close()
        return "ok"

    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(run, acts))


@pytest.mark.parametrize("leaving", [True, False])
def test_two_owners_cannot_both_go(leaving: bool) -> None:
    org = make.org()
    ann, bob = make.member(org, "owner"), make.member(org, "owner")

    def go(actor: Member, target: Member) -> Callable[[], object]:
        if leaving:
            return lambda: membership.remove_member(actor, target.pk, now=timezone.now())
        return lambda: membership.change_role(actor, target.pk, role=Role.VIEWER)

    said = together(go(ann, ann), go(bob, bob))
    assert sorted(said) == ["member.last_owner", "ok"]
    assert Member.objects.for_org(org).filter(role=Role.OWNER).count() == 1


def test_owners_who_remove_each_other_leave_one() -> None:
    org = make.org()
    ann, bob = make.member(org, "owner"), make.member(org, "owner")
    said = together(
        lambda: membership.remove_member(ann, bob.pk, now=timezone.now()),
        lambda: membership.remove_member(bob, ann.pk, now=timezone.now()),
    )
    assert sorted(said) == ["not_found", "ok"]
    assert Member.objects.for_org(org).filter(role=Role.OWNER).count() == 1


def test_an_invitation_is_accepted_once_however_many_try() -> None:
    owner = make.member(make.org(), "owner")
    token = membership.invite(owner, email="new@example.org", role="viewer", now=timezone.now()).token

    def accept() -> object:
        return membership.accept_invitation(token, user=None, password="a long enough one", name="", now=timezone.now())

    said = together(*[accept] * 4)
    assert sorted(said) == ["invitation.gone"] * 3 + ["ok"]
    assert Member.objects.for_org(owner.org).filter(user__email="new@example.org").count() == 1
