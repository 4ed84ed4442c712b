"""Publishing: the tables as they are, under a version that only rises, signed, to where gateways find it."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec
from django.db import transaction
from django.utils import timezone

from berth.orgs.tenancy import new_id
from berth.outbox.models import Change
from berth.publishing import store
from berth.publishing.models import Publication
from berth.publishing.signing import sign
from berth.publishing.snapshot import build
from berth.web.errors import NotFound
from berth_gateway.contract import GatewayReport, SignedSnapshot

log = logging.getLogger(__name__)

REFRESH_AFTER = timedelta(minutes=5)  # gateways judge a snapshot's age by `issued_at`
CHANGES_KEPT = timedelta(days=1)
ALIVE_SECONDS = 10.0  # a gateway that has been silent for longer is not counted on
FORGET_SECONDS = 60.0  # and after this long it is taken for gone


class Made(NamedTuple):
    epoch: str
    version: int
    signed: SignedSnapshot


class Acknowledgement(NamedTuple):
    gateway: str
    version: int
    applied: bool  # requests are judged by the wanted version, or a later one
    alive: bool
    at: float  # Unix seconds of its last report


def publish(*, now: datetime | None = None, force: bool = False) -> int | None:
    """Publishes if anything waits, Valkey has lost the snapshot, or the last one is getting old. Returns the new version,
    None if there was nothing to do. Any number may run at once, and any may be killed anywhere: the next one repairs."""
    now = now or timezone.now()
    if not force and not _wanted(now):
        return None
    made = _make(now, force=force)
    if made is None:
        return None
    # After the commit: were it before, a version whose commit fails would be given again to other content, which
    # gateways that hold the first one would ignore.
    if not store.put(made.epoch, made.version, made.signed) and _outranked(made):
        log.error("snapshot_outranked", extra={"version": made.version, "reason": "run manage.py new_epoch"})
    else:
        log.info("snapshot_published", extra={"version": made.version, "size": len(made.signed.payload)})
    return made.version


def tidy(*, now: datetime | None = None) -> None:
    """Forgets gateways that are gone and changes that nobody asks about any more."""
    now = now or timezone.now()
    store.forget_gateways(now.timestamp() - FORGET_SECONDS)
    Change.objects.filter(at__lt=now - CHANGES_KEPT).exclude(version=None).delete()


def new_epoch(*, now: datetime | None = None) -> Publication:
    """Begins a new epoch after a backup was restored: gateways then accept versions below those they have seen."""
    now = now or timezone.now()
    with transaction.atomic():
        publication = _locked()
        publication.epoch = new_id()
        publication.save(update_fields=["epoch"])
    publish(now=now, force=True)
    publication.refresh_from_db()
    return publication


def acknowledgements(version: int | None, *, now: datetime | None = None) -> tuple[int, list[Acknowledgement]]:
    """Who has applied `version` (None: the current one) of this epoch; returns the version asked for, and every gateway."""
    now = now or timezone.now()
    publication = Publication.objects.filter(pk=1).first()
    wanted = version if version is not None else (publication.version if publication else 0)
    epoch = str(publication.epoch) if publication else ""
    return wanted, [_acknowledgement(report, epoch, wanted, now) for report in _recent(now)]


def where_is(change_id: int, *, now: datetime | None = None) -> list[Acknowledgement]:
    """Which gateways have applied a change. NotFound when there is none, or it is older than a day."""
    change = Change.objects.filter(pk=change_id).first()
    if change is None:
        raise NotFound("change")
    if change.version is None:
        now = now or timezone.now()
        return [_acknowledgement(report, "", 0, now) for report in _recent(now)]
    return acknowledgements(change.version, now=now)[1]


def _acknowledgement(report: GatewayReport, epoch: str, wanted: int, now: datetime) -> Acknowledgement:
    return Acknowledgement(
        gateway=report.gateway,
        version=report.version,
        applied=report.epoch == epoch and report.version >= wanted,
        alive=now.timestamp() - report.at < ALIVE_SECONDS,
        at=report.at,
    )


def _recent(now: datetime) -> list[GatewayReport]:
    return [report for report in store.reports() if now.timestamp() - report.at < FORGET_SECONDS]


def _wanted(now: datetime) -> bool:
    publication = Publication.objects.filter(pk=1).first()
    if publication is None or publication.published_at is None or publication.published_at <= now - REFRESH_AFTER:
        return True
    if Change.objects.filter(version=None).exists():
        return True
    held = store.held()
    return held is None or held < (str(publication.epoch), publication.version)


def _make(now: datetime, *, force: bool) -> Made | None:
    """Raises the version and builds under its lock. Every statement after the lock sees what is committed by then, so a
    version covers all changes that were visible to it, and a later version never knows less."""
    with transaction.atomic():
        publication = _locked()
        # Whoever held the lock may have done our work.
        if not force and not _wanted(now):
            return None
        covered = list(Change.objects.filter(version=None).values_list("pk", flat=True))
        publication.version += 1
        publication.published_at = now
        snapshot = build(epoch=publication.epoch, version=publication.version, now=now)
        signed = sign(msgspec.msgpack.encode(snapshot))
        publication.save(update_fields=["version", "published_at"])
        # By id: a change with a lower id may commit later than one with a higher id, and must not be taken for covered.
        Change.objects.filter(pk__in=covered).update(version=publication.version)
    return Made(str(publication.epoch), publication.version, signed)


def _locked() -> Publication:
    Publication.objects.get_or_create(pk=1)
    return Publication.objects.select_for_update().get(pk=1)


def _outranked(made: Made) -> bool:
    """Whether Valkey holds what this database never published (a restored backup), not merely a faster publisher's."""
    held = store.held()
    known = Publication.objects.get(pk=1)
    return held is not None and held > (str(known.epoch), known.version)
