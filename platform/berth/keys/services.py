"""API keys: one function per intent. Gateways learn of every change through the outbox."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet
from django.db.models.expressions import Exists, OuterRef

from berth.keys.hooks import known_deployments
from berth.keys.models import ApiKey, KeyKind
from berth.keys.networks import normal_networks
from berth.keys.secret import new_secret
from berth.orgs.models import Member, User
from berth.orgs.permissions import MATRIX, Action, allows
from berth.outbox.services import announce
from berth.web.errors import ApiError, Conflict, Forbidden, NotFound
from berth.web.events import publish_event

PLAYGROUND = timedelta(minutes=15)

# What a scope lets a key do, as the action its maker must be allowed. Management by key does not exist yet, so neither do its scopes.
SCOPES: dict[str, Action] = {"inference": Action.INFER}


@dataclass(frozen=True)
class Issued:
    """`secret` is shown once. `change` is the outbox id by which to ask how many gateways know the key."""

    key: ApiKey
    secret: str = field(repr=False)
    change: int


@dataclass(frozen=True)
class Changed:
    key: ApiKey
    change: int


def require_within_rights(
    maker: Member,
    *,
    kind: str,
    scopes: Collection[str],
    deployment_ids: Collection[UUID] | None,
    expires_at: datetime | None,
    limits: Mapping[str, int | None],
    now: datetime,
) -> None:
    """A key never reaches further than its maker (threat K3). Whatever makes or changes a key goes through here.

    ApiError 400 for a scope that does not exist, a deployment that is not this organisation's and an end in the past; Forbidden for
    what exists but is not the maker's to give.
    """
    needed = Action.KEYS_CREATE_SERVICE if kind == KeyKind.SERVICE else Action.KEYS_CREATE
    if not allows(maker.role, needed):
        raise Forbidden(needed)
    if not scopes:
        raise ApiError("key.no_scope", "A key needs at least one scope.", field="scopes")
    for scope in scopes:
        if scope not in SCOPES:
            raise ApiError("key.scope_unknown", f"Scopes are: {', '.join(SCOPES)}.", field="scopes")
        if not allows(maker.role, SCOPES[scope]):
            raise Forbidden(SCOPES[scope])
    if deployment_ids is not None:
        if not deployment_ids:
            raise ApiError(
                "key.no_deployment", "Name a deployment, or leave the field out for all.", field="deployment_ids"
            )
        if known_deployments(maker.org_id, deployment_ids) != set(deployment_ids):
            raise ApiError(
                "key.deployment_unknown", "There is no such deployment in this organisation.", field="deployment_ids"
            )
    if expires_at is not None and expires_at <= now:
        raise ApiError("key.expires_in_past", "The key would have expired already.", field="expires_at")
    _require_limits_within(maker, limits)


def _require_limits_within(maker: Member, limits: Mapping[str, int | None]) -> None:
    """A key's limit is not above its maker's own or the organisation's: it could not be used up, and would promise what is not so."""
    for name, wanted in limits.items():
        bounds = [each for each in (maker.limits[name], maker.org.limits[name]) if each is not None]
        if wanted is not None and bounds and wanted > min(bounds):
            raise ApiError(
                "key.limit_too_wide",
                f"You may give at most {min(bounds)} here, which is the limit that holds for yourself.",
                field=f"limits.{name}",
                params={"most": min(bounds)},
            )


def _own_limits(maker: Member, kind: str, limits: Mapping[str, int | None]) -> dict[str, int | None]:
    """A service key outlives its maker's membership, so it takes its maker's limits along where it is given none."""
    if kind != KeyKind.SERVICE:
        return dict(limits)
    return {name: maker.limits[name] if wanted is None else wanted for name, wanted in limits.items()}


@transaction.atomic
def create_key(
    maker: Member,
    *,
    name: str,
    kind: str = KeyKind.MEMBER,
    scopes: Collection[str] = ("inference",),
    deployment_ids: Collection[UUID] | None = None,
    expires_at: datetime | None = None,
    limits: Mapping[str, int | None] | None = None,
    networks: Collection[str] = (),
    now: datetime,
) -> Issued:
    """Conflict when a key that still works has that name."""
    held = _own_limits(maker, kind, dict.fromkeys(maker.limits) | dict(limits or {}))
    require_within_rights(
        maker, kind=kind, scopes=scopes, deployment_ids=deployment_ids, expires_at=expires_at, limits=held, now=now
    )
    secret = new_secret()
    try:
        with transaction.atomic():
            key = ApiKey.objects.create(
                org=maker.org,
                name=name,
                kind=kind,
                digest=secret.digest,
                hint=secret.hint,
                scopes=sorted(set(scopes)),
                deployment_ids=None if deployment_ids is None else sorted(set(deployment_ids)),
                created_by=maker.user,
                expires_at=expires_at,
                networks=normal_networks(networks),
                **{f"limit_{name}": value for name, value in held.items()},
            )
    except IntegrityError:
        raise Conflict(
            "key.name_taken", "A key of this organisation has that name. Choose another.", field="name"
        ) from None
    return Issued(key, secret.text, _told(key))


@transaction.atomic
def create_playground_key(maker: Member, *, now: datetime) -> Issued:
    """For the dashboard's own playground: inference only, gone after a quarter of an hour."""
    return create_key(maker, name="Playground", kind=KeyKind.PLAYGROUND, expires_at=now + PLAYGROUND, now=now)


@transaction.atomic
def change_key(
    member: Member,
    key_id: UUID,
    *,
    name: str | None = None,
    limits: Mapping[str, int | None] | None = None,
    networks: Collection[str] | None = None,
) -> Changed:
    """The name is for people; limits and networks hold on every gateway within a second. What is absent stays."""
    key = _locked(member, key_id)
    fields = []
    if limits is not None:
        held = _own_limits(member, key.kind, limits)
        _require_limits_within(member, held)
        fields = key.set_limits(held)
    if networks is not None:
        key.networks = normal_networks(networks)
        fields.append("networks")
    if name is not None:
        key.name = name
        fields.append("name")
    try:
        with transaction.atomic():
            key.save(update_fields=fields)
    except IntegrityError:
        raise Conflict(
            "key.name_taken", "A key of this organisation has that name. Choose another.", field="name"
        ) from None
    return Changed(key, _told(key))


@transaction.atomic
def revoke_key(member: Member, key_id: UUID, *, now: datetime) -> Changed:
    """For good. Revoking again changes nothing, but announces again, so that the answer can always be followed."""
    key = _locked(member, key_id)
    if key.revoked_at is None:
        _revoke(key, member.user, now)
    return Changed(key, _told(key))


def revoke_personal_keys(member: Member, by: User, *, now: datetime) -> None:
    """All of a leaving member's keys but service keys. Runs in the removal's transaction."""
    keys = ApiKey.objects.for_org(member.org_id).filter(created_by=member.user_id, revoked_at=None)
    for key in keys.exclude(kind=KeyKind.SERVICE).select_for_update():
        _revoke(key, by, now)
        _publish(key)
    announce("keys")


def visible_keys(member: Member) -> QuerySet[ApiKey]:
    """Own ones, or all for who may read all. Playground keys are left out."""
    keys = ApiKey.objects.for_org(member.org_id).select_related("created_by").exclude(kind=KeyKind.PLAYGROUND)
    return keys if allows(member.role, Action.KEYS_READ_ALL) else keys.filter(created_by=member.user_id)


def get_key(member: Member, key_id: UUID) -> ApiKey:
    """NotFound for a key that does not exist, is another organisation's, or is not the member's to see."""
    key = visible_keys(member).filter(pk=key_id).first()
    if key is None:
        raise NotFound("API key")
    return key


def usable_keys() -> QuerySet[ApiKey]:
    """Every key, of all organisations, that may still do something: not revoked, and its maker may still do what its scopes
    say (service keys outlive that). Expired ones are among them, so that gateways can say why. What publishing reads."""
    keys = ApiKey.objects.across_orgs("gateways serve every organisation")
    may_infer = Member.objects.across_orgs("makers are looked up beside their keys").filter(
        org=OuterRef("org"), user=OuterRef("created_by"), role__in=MATRIX[Action.INFER]
    )
    return keys.filter(revoked_at=None).filter(Q(kind=KeyKind.SERVICE) | Exists(may_infer))


def _locked(member: Member, key_id: UUID) -> ApiKey:
    key = visible_keys(member).filter(pk=key_id).select_for_update(of=("self",)).first()
    if key is None:
        raise NotFound("API key")
    return key


def _revoke(key: ApiKey, by: User, now: datetime) -> None:
    key.revoked_at, key.revoked_by = now, by
    key.save(update_fields=["revoked_at", "revoked_by"])


def _told(key: ApiKey) -> int:
    _publish(key)
    return announce("keys")


def _publish(key: ApiKey) -> None:
    if key.kind != KeyKind.PLAYGROUND:
        publish_event(
            key.org_id, "keys", str(key.pk), None, {"revoked": key.revoked_at is not None}, owner_id=key.created_by_id
        )
