"""Organisations and one's own profile: one function per intent. Membership has its own file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from zoneinfo import available_timezones

from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from berth.orgs.limits import MOST
from berth.orgs.models import Member, Organisation, Role, User
from berth.outbox.services import announce
from berth.web.errors import ApiError, Conflict, NotFound
from berth.web.events import publish_event

_SLUG = re.compile(r"[a-z0-9][a-z0-9-]{0,38}[a-z0-9]")


@transaction.atomic
def create_organisation(*, slug: str, name: str, owner: User) -> Organisation:
    """A new organisation with its first owner. Conflict when the slug is taken."""
    if not _SLUG.fullmatch(slug):
        raise ApiError(
            "org.slug_form",
            "A slug has 2 to 40 characters of a-z, 0-9 and -, and does not begin or end with a dash.",
            field="slug",
        )
    try:
        with transaction.atomic():
            org = Organisation.objects.create(slug=slug, name=name)
    except IntegrityError:
        raise Conflict("org.slug_taken", "Another organisation has this slug. Choose another.", field="slug") from None
    Member.objects.create(org=org, user=owner, role=Role.OWNER)
    announce("orgs")
    return org


@transaction.atomic
def update_organisation(org: Organisation, *, name: str | None = None, time_zone: str | None = None) -> Organisation:
    """The slug is a part of every model's name and never changes."""
    if time_zone is not None and time_zone not in available_timezones():
        raise ApiError("org.time_zone", 'Name a time zone as in "Europe/Zurich" or "UTC".', field="time_zone")
    org.name = org.name if name is None else name
    org.time_zone = org.time_zone if time_zone is None else time_zone
    org.save(update_fields=["name", "time_zone"])
    if time_zone is not None:
        announce("orgs")  # a budget's day and month begin by it
    publish_event(org.pk, "org", org.slug, None, {})
    return org


@transaction.atomic
def set_limits(slug: str, limits: Mapping[str, int | None], *, member: str | None = None) -> dict[str, int | None]:
    """How fast an organisation, or the keys of one member (by address) together, may be used. An operator's act. Returns what holds."""
    for name, value in limits.items():
        if value is not None and not 1 <= value <= MOST:
            raise ApiError("invalid", f"A limit is a whole number from 1 to {MOST}.", field=name)
    org = _locked(slug)
    subject: Organisation | Member = org
    if member is not None:
        found = Member.objects.for_org(org).filter(user__email__iexact=member).select_for_update(of=("self",)).first()
        if found is None:
            raise NotFound("member")
        subject = found
    subject.save(update_fields=subject.set_limits(limits))
    announce("limits")
    return subject.limits


@transaction.atomic
def suspend_organisation(slug: str, *, reason: str, now: datetime) -> Organisation:
    """Gateways refuse its keys from now on; members still read everything. An operator's act."""
    org = _locked(slug)
    if org.suspended_at is None:
        org.suspended_at = now
    org.suspended_reason = reason
    return _save_suspension(org)


@transaction.atomic
def resume_organisation(slug: str) -> Organisation:
    org = _locked(slug)
    org.suspended_at, org.suspended_reason = None, ""
    return _save_suspension(org)


def visible_organisations(user: User) -> QuerySet[Organisation]:
    """One's own; for operators all, since they suspend and resume them."""
    if user.is_operator:
        return Organisation.objects.all()
    mine = Member.objects.across_orgs("which organisations is this user in?").filter(user=user)
    return Organisation.objects.filter(pk__in=mine.values("org_id"))


def memberships_of(user: User) -> QuerySet[Member]:
    """With their organisations, by slug."""
    mine = Member.objects.across_orgs("which organisations is this user in?").filter(user=user)
    return mine.select_related("org").order_by("org__slug")


@transaction.atomic
def update_profile(user: User, *, name: str | None = None, language: str | None = None) -> User:
    user.name = user.name if name is None else name
    user.language = user.language if language is None else language
    user.save(update_fields=["name", "language"])
    return user


def _locked(slug: str) -> Organisation:
    org = Organisation.objects.select_for_update().filter(slug=slug).first()
    if org is None:
        raise NotFound("organisation")
    return org


def _save_suspension(org: Organisation) -> Organisation:
    org.save(update_fields=["suspended_at", "suspended_reason"])
    announce("orgs")
    publish_event(org.pk, "org", org.slug, None, {"suspended": org.suspended_at is not None})
    return org
