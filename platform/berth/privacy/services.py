"""What people do about records: change the policy, open one, erase all. Each leaves an event that stays."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet

from berth.keys.hooks import known_deployments
from berth.keys.models import ApiKey
from berth.orgs.models import Member, Organisation
from berth.orgs.tenancy import new_id
from berth.outbox.services import announce
from berth.privacy.models import InferenceRecord, PrivacyEvent, PrivacyEventKind, PrivacyPolicy, SealingKey
from berth.privacy.sealing import CannotOpen, new_pair, open_box
from berth.web.errors import ApiError, Conflict, NotFound
from berth_gateway.contract import RecordContent


@dataclass(frozen=True)
class Policy:
    """As it holds now. `change`: the outbox id by which to ask how many gateways know it; None when it was only read."""

    recording: bool
    retention_days: int
    padded: bool
    keys_apart: bool
    excluded_deployment_ids: list[UUID]
    excluded_key_ids: list[UUID]
    changed_at: datetime | None
    change: int | None = None


def policy_of(org: Organisation) -> Policy:
    return _policy(PrivacyPolicy.objects.for_org(org).first() or PrivacyPolicy(org=org))


@transaction.atomic
def set_policy(
    member: Member,
    *,
    now: datetime,
    recording: bool | None = None,
    retention_days: int | None = None,
    padded: bool | None = None,
    keys_apart: bool | None = None,
    excluded_deployment_ids: Collection[UUID] | None = None,
    excluded_key_ids: Collection[UUID] | None = None,
) -> Policy:
    """What is absent stays. A shorter retention holds for what is already kept; a longer one does not bring more of it."""
    org = Organisation.objects.select_for_update().get(pk=member.org_id)
    row = PrivacyPolicy.objects.for_org(org).first() or PrivacyPolicy(org=org)
    if excluded_deployment_ids is not None:
        wanted = set(excluded_deployment_ids)
        if known_deployments(org.pk, wanted - set(row.excluded_deployment_ids)) != wanted - set(
            row.excluded_deployment_ids
        ):
            raise ApiError(
                "privacy.deployment_unknown",
                "There is no such deployment in this organisation.",
                field="excluded_deployment_ids",
            )
        row.excluded_deployment_ids = sorted(wanted)
    if excluded_key_ids is not None:
        keys = set(excluded_key_ids)
        if ApiKey.objects.for_org(org).filter(pk__in=keys).count() != len(keys):
            raise ApiError(
                "privacy.key_unknown", "There is no such API key in this organisation.", field="excluded_key_ids"
            )
        row.excluded_key_ids = sorted(keys)
    row.recording = row.recording if recording is None else recording
    row.retention_days = row.retention_days if retention_days is None else retention_days
    row.padded = row.padded if padded is None else padded
    row.keys_apart = row.keys_apart if keys_apart is None else keys_apart
    row.changed_at, row.changed_by = now, member.user
    row.save()
    if row.recording:
        _ensure_key(org)
    if retention_days is not None:
        _shorten(org, retention_days)
    policy = _policy(row, announce("privacy"))
    details = {
        "recording": policy.recording,
        "retention_days": policy.retention_days,
        "padded": policy.padded,
        "keys_apart": policy.keys_apart,
        "excluded_deployments": len(policy.excluded_deployment_ids),
        "excluded_keys": len(policy.excluded_key_ids),
    }
    _note(member, PrivacyEventKind.POLICY_CHANGED, now, details=details)
    return policy


def visible_records(org: Organisation, now: datetime) -> QuerySet[InferenceRecord]:
    """Without their boxes. What has expired is not shown, whether or not it has been deleted by now."""
    return InferenceRecord.objects.for_org(org).filter(expires_at__gt=now).defer("box")


@transaction.atomic
def open_record(member: Member, record_id: UUID, *, now: datetime) -> tuple[InferenceRecord, RecordContent]:
    """What was asked and answered. That it was read is noted before it is shown."""
    record = (
        InferenceRecord.objects.for_org(member.org)
        .select_related("sealing_key")
        .filter(pk=record_id, expires_at__gt=now)
        .first()
    )
    if record is None:
        raise NotFound("record")
    key = record.sealing_key
    if key.private_sealed is None:
        raise ApiError("privacy.record_gone", "The key of this record was destroyed; nobody can open it.", status=410)
    _note(member, PrivacyEventKind.RECORD_READ, now, record_id=record.pk)
    try:
        content = open_box(
            bytes(record.box),
            key_id=key.pk,
            private_sealed=bytes(key.private_sealed),
            event_id=record.pk,
            org_id=member.org_id,
        )
    except CannotOpen:
        raise Conflict(
            "privacy.cannot_open",
            "This record does not open: it was damaged or altered, or the master key is not the one it was made under.",
        ) from None
    return record, content


@transaction.atomic
def erase_records(member: Member, *, now: datetime) -> int:
    """Deletes every record and destroys the key that could open copies of them, so that a backup holds nothing readable either.
    Recording goes on, if it is on, with a new key. Returns how many records there were."""
    org = Organisation.objects.select_for_update().get(pk=member.org_id)
    erased, _ = InferenceRecord.objects.for_org(org).delete()
    SealingKey.objects.for_org(org).filter(destroyed_at=None).update(destroyed_at=now, private_sealed=None)
    if PrivacyPolicy.objects.for_org(org).filter(recording=True).exists():
        _ensure_key(org)
    announce("privacy")
    _note(member, PrivacyEventKind.RECORDS_ERASED, now, details={"records": erased})
    return erased


def visible_events(org: Organisation) -> QuerySet[PrivacyEvent]:
    return PrivacyEvent.objects.for_org(org).select_related("user")


def _policy(row: PrivacyPolicy, change: int | None = None) -> Policy:
    return Policy(
        recording=row.recording,
        retention_days=row.retention_days,
        padded=row.padded,
        keys_apart=row.keys_apart,
        excluded_deployment_ids=list(row.excluded_deployment_ids),
        excluded_key_ids=list(row.excluded_key_ids),
        changed_at=row.changed_at,
        change=change,
    )


def _ensure_key(org: Organisation) -> None:
    if not SealingKey.objects.for_org(org).filter(destroyed_at=None).exists():
        key_id = new_id()
        public, sealed = new_pair(key_id)
        SealingKey.objects.create(id=key_id, org=org, public_key=public, private_sealed=sealed)


def _shorten(org: Organisation, days: int) -> None:
    """What is kept ends no later than the new retention says."""
    for record in InferenceRecord.objects.for_org(org).only("id", "accepted_at", "expires_at").iterator():
        end = record.accepted_at + timedelta(days=days)
        if end < record.expires_at:
            InferenceRecord.objects.for_org(org).filter(pk=record.pk).update(expires_at=end)


def _note(
    member: Member,
    kind: PrivacyEventKind,
    now: datetime,
    *,
    record_id: UUID | None = None,
    details: Mapping[str, object] | None = None,
) -> None:
    PrivacyEvent.objects.create(
        org_id=member.org_id, kind=kind, user=member.user, at=now, record_id=record_id, details=dict(details or {})
    )
