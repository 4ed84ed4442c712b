"""Whatever members do to each other in whatever order, the rules about owners, roles and keys hold (threat A6)."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from berth.keys import services as keys
from berth.keys.models import ApiKey, KeyKind
from berth.orgs import membership
from berth.orgs.models import Member, Role, User
from berth.orgs.permissions import Action, allows, may_grant
from berth.web.errors import ApiError
from tests import make

PEOPLE = 4
acts = st.lists(
    st.tuples(
        st.sampled_from(["invite", "change", "remove", "key"]),
        st.integers(0, PEOPLE - 1),
        st.integers(0, PEOPLE - 1),
        st.sampled_from(list(Role)),
    ),
    max_size=14,
)


class _Undo(Exception):
    pass


@pytest.mark.threat("A6")
@pytest.mark.django_db
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(acts)
def test_any_sequence_of_acts(sequence: list[tuple[str, int, int, Role]]) -> None:
    try:
        with transaction.atomic():
            _play(sequence)
            raise _Undo
    except _Undo:
        pass


def _play(sequence: list[tuple[str, int, int, Role]]) -> None:
    org = make.org()
    people = [make.user() for _ in range(PEOPLE)]
    make.member(org, "owner", people[0])
    for act, who, whom, role in sequence:
        before = {m.user_id: m.role for m in Member.objects.for_org(org)}
        actor = Member.objects.for_org(org).filter(user=people[who]).first()
        if actor is None:
            continue
        try:
            _do(act, actor, people[whom], role)
        except ApiError:
            assert {m.user_id: m.role for m in Member.objects.for_org(org)} == before, "a refused act changed something"
        _check(org, actor.role, before)


def _do(act: str, actor: Member, target: User, role: Role) -> None:
    now = timezone.now()
    row = Member.objects.for_org(actor.org).filter(user=target).first()
    if act == "invite":
        issued = membership.invite(actor, email=target.email, role=role, now=now)
        membership.accept_invitation(issued.token, user=target, password="", name="", now=now)
    elif act == "key":
        kind = KeyKind.SERVICE if role == Role.OWNER else KeyKind.MEMBER
        keys.create_key(actor, name=str(make.new_id()), kind=kind, now=now)
    elif row is not None and act == "change":
        membership.change_role(actor, row.pk, role=role)
    elif row is not None:
        membership.remove_member(actor, row.pk, now=now)


def _check(org: Any, actor_role: str, before: dict[Any, str]) -> None:
    after = {m.user_id: m.role for m in Member.objects.for_org(org)}
    assert "owner" in after.values(), "an organisation lost its last owner"
    for user_id in before.keys() | after.keys():
        old, new = before.get(user_id), after.get(user_id)
        if old != new:
            assert allows(actor_role, Action.MEMBERS_WRITE)
            assert all(may_grant(actor_role, r) for r in (old, new) if r is not None), (
                "a role above the actor's was touched"
            )
    alive = ApiKey.objects.for_org(org).filter(revoked_at=None, kind=KeyKind.MEMBER)
    assert set(alive.values_list("created_by_id", flat=True)) <= after.keys(), "a removed member's key lives"
    for key in keys.usable_keys().filter(org=org, kind=KeyKind.MEMBER):
        assert allows(after[key.created_by_id], Action.INFER)
