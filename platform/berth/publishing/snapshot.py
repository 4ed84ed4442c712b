"""What gateways may know, read from the tables."""

from __future__ import annotations

from datetime import datetime, timedelta
from urllib.parse import urlsplit
from uuid import UUID

from django.conf import settings
from django.db.models import OuterRef, Q, Subquery

from berth.billing.budget_periods import periods_from
from berth.billing.models import Budget
from berth.billing.spending import pico
from berth.keys.models import KeyKind
from berth.keys.services import usable_keys
from berth.orgs.limits import LIMIT_FIELDS, for_gateways
from berth.orgs.models import Member, Organisation
from berth.privacy.selectors import Recordings, recordings
from berth.publishing.routes import build_routes
from berth_gateway.contract import SNAPSHOT_FORMAT, BudgetScope, KeyInfo, MemberInfo, OrgInfo, Snapshot
from berth_gateway.contract import Budget as BudgetInfo

EXPIRED_KEPT = timedelta(days=30)  # so that the answer can say "expired"
EXPIRED_PLAYGROUND_KEPT = timedelta(hours=1)  # the dashboard makes one every 15 minutes and asks for another by itself


def build(*, epoch: UUID, version: int, now: datetime) -> Snapshot:
    """The whole snapshot as of the calling transaction. Several statements may each see a different moment; what commits in
    between announces a change of its own and is in the next version. Organisations are read last, so that no key or route
    names one that is missing."""
    wanted = recordings()
    keys = _keys(now, wanted.left_out)
    routes = build_routes(now, wanted.left_out)
    return Snapshot(
        format=SNAPSHOT_FORMAT,
        epoch=str(epoch),
        version=version,
        issued_at=int(now.timestamp()),
        orgs=_orgs(wanted),
        keys=keys,
        routes=routes,
        members=_members(),
        budgets=_budgets(now),
    )


def _members() -> tuple[MemberInfo, ...]:
    """Only those that are limited."""
    limited = Q(limit_rpm__isnull=False) | Q(limit_tpm__isnull=False) | Q(limit_concurrency__isnull=False)
    rows = Member.objects.across_orgs("gateways limit the members of every organisation").filter(limited).order_by("id")
    found = []
    for member_id, org_id, *limits in rows.values_list("id", "org_id", *LIMIT_FIELDS):
        held = for_gateways(*limits)
        if held is not None:
            found.append(MemberInfo(str(member_id), str(org_id), held))
    return tuple(found)


def _budgets(now: datetime) -> tuple[BudgetInfo, ...]:
    rows = Budget.objects.across_orgs("gateways keep the budgets of every organisation").select_related("org")
    return tuple(
        BudgetInfo(
            budget_id=str(budget.pk),
            org_id=str(budget.org_id),
            scope=BudgetScope(budget.scope),
            subject_id=str(budget.subject_id),
            limit_pico=pico(budget.amount),
            version=budget.version,
            periods=periods_from(budget.period, now, budget.org.time_zone),
        )
        for budget in rows.order_by("id")
    )


def _keys(now: datetime, left_out: frozenset[str]) -> tuple[KeyInfo, ...]:
    playground = Q(kind=KeyKind.PLAYGROUND)
    owners = Member.objects.across_orgs("keys are limited together with their owner's others").filter(
        org=OuterRef("org"), user=OuterRef("created_by")
    )
    rows = (
        usable_keys()
        .filter(
            Q(expires_at=None)
            | (~playground & Q(expires_at__gt=now - EXPIRED_KEPT))
            | (playground & Q(expires_at__gt=now - EXPIRED_PLAYGROUND_KEPT))
        )
        .annotate(member_id=Subquery(owners.values("pk")[:1]))
        .order_by("id")
        .values_list(
            "digest",
            "id",
            "org_id",
            "scopes",
            "deployment_ids",
            "expires_at",
            "kind",
            "networks",
            "member_id",
            *LIMIT_FIELDS,
        )
    )
    return tuple(
        KeyInfo(
            digest=bytes(digest),
            key_id=str(key_id),
            org_id=str(org_id),
            scopes=tuple(scopes),
            deployment_ids=None if deployments is None else tuple(str(each) for each in deployments),
            expires_at=None if expires_at is None else int(expires_at.timestamp()),
            member_id=None if kind == KeyKind.SERVICE or member_id is None else str(member_id),
            limits=for_gateways(*limits),
            networks=tuple(networks),
            recorded=str(key_id) not in left_out,
        )
        for digest, key_id, org_id, scopes, deployments, expires_at, kind, networks, member_id, *limits in rows
    )


def _orgs(wanted: Recordings) -> tuple[OrgInfo, ...]:
    origins = dashboard_origins(settings.PUBLIC_URL)
    rows = Organisation.objects.order_by("slug").values_list("id", "slug", "suspended_at", *LIMIT_FIELDS)
    return tuple(
        OrgInfo(
            org_id=str(org_id),
            slug=slug,
            suspended=suspended_at is not None,
            origins=origins,
            limits=for_gateways(*limits),
            recording=wanted.orgs.get(str(org_id)),
            padded=str(org_id) in wanted.padded,
            keys_apart=str(org_id) in wanted.keys_apart,
        )
        for org_id, slug, suspended_at, *limits in rows
    )


def dashboard_origins(public_url: str) -> tuple[str, ...]:
    """The dashboard's browser origin; on this machine also its twin, as people open either."""
    parts = urlsplit(public_url)
    twins = {"127.0.0.1": "localhost", "localhost": "127.0.0.1"}
    origin = f"{parts.scheme}://{parts.netloc}"
    twin = twins.get(parts.hostname or "")
    if twin is None:
        return (origin,)
    port = "" if parts.port is None else f":{parts.port}"
    return (origin, f"{parts.scheme}://{twin}{port}")
