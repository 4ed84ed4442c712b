"""Who belongs to an organisation, and how that changes: one function per intent (threat A6).

Every change of an organisation's members takes a lock on its row first, so that two owners cannot leave at the same moment.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from berth.orgs.hooks import tell_member_removed
from berth.orgs.models import Invitation, Member, Organisation, Role, User
from berth.orgs.permissions import Action, allows, may_grant
from berth.outbox.services import announce
from berth.web.errors import ApiError, Conflict, Forbidden, NotFound
from berth.web.events import publish_event

VALID = timedelta(days=7)


@dataclass(frozen=True)
class Issued:
    """`token` is shown once and goes to the invited person; only its digest is kept."""

    invitation: Invitation
    token: str = field(repr=False)


@dataclass(frozen=True)
class Accepted:
    member: Member
    new_user: bool  # made by this very act, so whoever holds the token may be signed in


@transaction.atomic
def invite(actor: Member, *, email: str, role: str, now: datetime) -> Issued:
    """An invitation for one address, organisation and role, never above the inviter's own. An earlier one for the address ends."""
    org = _lock(actor.org_id)
    actor = _fresh(actor)
    _require_grant(actor, role)
    address = email.strip().lower()
    if Member.objects.for_org(org).filter(user__email__iexact=address).exists():
        raise Conflict("member.exists", "This person is a member already. Change their role instead.", field="email")
    open_invitations(org).filter(email__iexact=address).update(revoked_at=now)
    token = secrets.token_urlsafe(32)
    invitation = Invitation.objects.create(
        org=org, email=address, role=role, token_digest=_digest(token), invited_by=actor.user, expires_at=now + VALID
    )
    publish_event(org.pk, "members", str(invitation.pk), None, {"invited": True})
    return Issued(invitation, token)


@transaction.atomic
def accept_invitation(token: str, *, user: User | None, password: str, name: str, now: datetime) -> Accepted:
    """Makes the invited person a member, and a user if the address is new here.

    ApiError 410 `invitation.gone` for a token that is unknown, used, revoked or expired, or whose inviter may no longer give that
    role; 403 when somebody else is signed in, or nobody although the address has an account.
    """
    found = (
        Invitation.objects.across_orgs("the token itself names the organisation")
        .filter(token_digest=_digest(token))
        .first()
    )
    if found is None:
        raise _gone()
    org = _lock(found.org_id)
    invitation = Invitation.objects.for_org(org).select_for_update().get(pk=found.pk)
    if invitation.accepted_at or invitation.revoked_at or invitation.expires_at <= now:
        raise _gone()
    inviter = Member.objects.for_org(org).filter(user=invitation.invited_by_id).first()
    if inviter is None or not _may_change_to(inviter, invitation.role):
        raise _gone()
    person, new_user = _person(invitation, user, password, name)
    if Member.objects.for_org(org).filter(user=person).exists():
        raise Conflict("member.exists", "You are a member of this organisation already.")
    member = Member.objects.create(org=org, user=person, role=invitation.role)
    invitation.accepted_at = now
    invitation.save(update_fields=["accepted_at"])
    publish_event(org.pk, "members", str(member.pk), None, {"role": member.role})
    return Accepted(member, new_user)


@transaction.atomic
def revoke_invitation(actor: Member, invitation_id: UUID, *, now: datetime) -> None:
    """Revoking twice is the same as once. NotFound for one that was never open here."""
    invitation = Invitation.objects.for_org(actor.org_id).filter(pk=invitation_id, accepted_at=None).first()
    if invitation is None:
        raise NotFound("invitation")
    if invitation.revoked_at is None:
        invitation.revoked_at = now
        invitation.save(update_fields=["revoked_at"])
        publish_event(actor.org_id, "members", str(invitation.pk), None, {"revoked": True})


@transaction.atomic
def change_member(
    actor: Member, member_id: UUID, *, role: str | None = None, limits: Mapping[str, int | None] | None = None
) -> Member:
    """What is absent stays. Nobody is changed who is above the actor."""
    if limits is not None:
        _limit(actor, member_id, limits)
    if role is not None:
        return change_role(actor, member_id, role=role)
    return _member(_lock(actor.org_id), member_id)


def _limit(actor: Member, member_id: UUID, limits: Mapping[str, int | None]) -> None:
    """A member's limit is not above the organisation's: it could not be used up, and would promise what is not so."""
    org = _lock(actor.org_id)
    member = _member(org, member_id)
    _require_grant(_fresh(actor), member.role)
    for name, wanted in limits.items():
        most = org.limits[name]
        if wanted is not None and most is not None and wanted > most:
            raise ApiError(
                "member.limit_too_wide",
                f"You may give at most {most} here, which is the organisation's own limit.",
                field=f"limits.{name}",
                params={"most": most},
            )
    member.save(update_fields=member.set_limits(limits))
    announce("limits")
    publish_event(org.pk, "members", str(member.pk), None, {"limits": True})


@transaction.atomic
def change_role(actor: Member, member_id: UUID, *, role: str) -> Member:
    """Neither the old nor the new role may be above the actor's; an organisation keeps an owner."""
    org = _lock(actor.org_id)
    actor = _fresh(actor)
    member = _member(org, member_id)
    _require_grant(actor, member.role)
    _require_grant(actor, role)
    if member.role == Role.OWNER and role != Role.OWNER:
        _require_other_owner(org, member)
    member.role = role
    member.save(update_fields=["role"])
    announce("keys")  # a key does only what its maker may still do
    publish_event(org.pk, "members", str(member.pk), None, {"role": role})
    return member


@transaction.atomic
def remove_member(actor: Member, member_id: UUID, *, now: datetime) -> None:
    """Ends the membership, and in the same transaction what hung on it: invitations here, personal keys through the hook."""
    org = _lock(actor.org_id)
    actor = _fresh(actor)
    member = _member(org, member_id)
    _require_grant(actor, member.role)
    if member.role == Role.OWNER:
        _require_other_owner(org, member)
    open_invitations(org).filter(invited_by=member.user).update(revoked_at=now)
    tell_member_removed(member, actor.user)
    publish_event(org.pk, "members", str(member.pk), None, {"removed": True})
    member.delete()
    announce("keys")


def members(org: Organisation) -> QuerySet[Member]:
    return Member.objects.for_org(org).select_related("user")


def open_invitations(org: Organisation) -> QuerySet[Invitation]:
    """Neither accepted nor revoked; an expired one is among them until it is replaced."""
    return Invitation.objects.for_org(org).filter(accepted_at=None, revoked_at=None).select_related("invited_by")


def _lock(org_id: Any) -> Organisation:
    return Organisation.objects.select_for_update().get(pk=org_id)


def _fresh(actor: Member) -> Member:
    """The actor as they are under the lock: they may have lost their role a moment ago."""
    now = Member.objects.for_org(actor.org_id).select_related("user").filter(pk=actor.pk).first()
    if now is None:
        raise NotFound("organisation")
    return now


def _member(org: Organisation, member_id: UUID) -> Member:
    member = Member.objects.for_org(org).select_related("user").filter(pk=member_id).first()
    if member is None:
        raise NotFound("member")
    return member


def _may_change_to(actor: Member, role: str) -> bool:
    return allows(actor.role, Action.MEMBERS_WRITE) and may_grant(actor.role, role)


def _require_grant(actor: Member, role: str) -> None:
    if not allows(actor.role, Action.MEMBERS_WRITE):
        raise Forbidden(Action.MEMBERS_WRITE)
    if not may_grant(actor.role, role):
        raise ApiError(
            "member.role_above_own",
            "You cannot give, change or take away a role above your own. Ask an owner.",
            field="role",
            params={"role": role},
            status=403,
        )


def _require_other_owner(org: Organisation, member: Member) -> None:
    if not Member.objects.for_org(org).filter(role=Role.OWNER).exclude(pk=member.pk).exists():
        raise Conflict("member.last_owner", "An organisation needs an owner. Make someone else owner first.")


def _person(invitation: Invitation, user: User | None, password: str, name: str) -> tuple[User, bool]:
    if user is not None:
        if user.email.lower() != invitation.email:
            raise ApiError(
                "invitation.other_address",
                "This invitation is for another e-mail address. Sign out, then open the link again.",
                status=403,
            )
        return user, False
    if User.objects.filter(email__iexact=invitation.email).exists():
        raise _sign_in_first()
    person = User(email=invitation.email, name=name)
    try:
        validate_password(password, person)
    except ValidationError as error:
        raise ApiError("password.weak", str(error.messages[0]), field="password") from None
    try:
        with transaction.atomic():
            return User.objects.create_user(invitation.email, password, name=name), True
    except IntegrityError:
        raise _sign_in_first() from None


def _sign_in_first() -> ApiError:
    return ApiError(
        "invitation.sign_in_first",
        "The invited address has an account here. Sign in with it, then open the link again.",
        status=403,
    )


def _gone() -> ApiError:
    message = "This invitation does not exist, was used, or is no longer valid. Ask for a new one."
    return ApiError("invitation.gone", message, status=410)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
