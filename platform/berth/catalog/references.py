"""Who uses which content of the store, and removing what nobody uses.

A reference is an `ArtefactFile` row. Who adds one holds the content's `StoredFile` row locked and finds the content in the store;
who removes a content holds the same lock, finds no reference, and removes the content *before* the row. So whatever dies in
between leaves either a content without references, which the next sweep removes, or a row without content, which it removes too;
never a reference to nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from django.conf import settings
from django.db import models, transaction

from berth.catalog.errors import QuotaExceeded
from berth.catalog.import_models import FINAL
from berth.catalog.models import ArtefactFile, ModelImport, StorageQuota, StoredFile
from berth.catalog.store import Store, store
from berth.orgs.models import Organisation

REST: Final = timedelta(hours=1)  # what was touched so lately may be about to be referenced
MOST_A_SWEEP: Final = 200


class ContentGone(Exception):
    """A content that was put is not there any more: put it again."""

    def __init__(self, sha256: str) -> None:
        super().__init__(sha256)
        self.sha256 = sha256


def touch(sha256: str, size: int, now: datetime) -> None:
    """Says that a content is about to be put and referenced."""
    StoredFile.objects.update_or_create(sha256=sha256, defaults={"size": size, "touched_at": now})


def hold(contents: Iterable[tuple[str, int]], kept: Store | None = None) -> None:
    """Locks the rows of (digest, size) until the running transaction ends. Raises ContentGone for what the store does not hold."""
    place = kept or store()
    for sha256, size in sorted(set(contents)):  # in one order, so that two never wait for each other
        locked = StoredFile.objects.select_for_update().filter(sha256=sha256).first()
        if locked is None or not place.holds(sha256, size):
            raise ContentGone(sha256)


def sweep(now: datetime, kept: Store | None = None) -> int:
    """Removes contents that nobody references and nobody touched lately. Returns how many."""
    place = kept or store()
    used = ArtefactFile.objects.across_orgs("a content is shared by organisations").filter(
        sha256=models.OuterRef("sha256")
    )
    idle = StoredFile.objects.filter(touched_at__lt=now - REST).exclude(models.Exists(used))
    return sum(_remove(sha256, now, place) for sha256 in idle.values_list("sha256", flat=True)[:MOST_A_SWEEP])


@transaction.atomic
def _remove(sha256: str, now: datetime, place: Store) -> bool:
    locked = (
        StoredFile.objects.select_for_update(skip_locked=True).filter(sha256=sha256, touched_at__lt=now - REST).first()
    )
    if locked is None or _referenced(sha256):
        return False
    place.remove(sha256)
    locked.delete()
    return True


def _referenced(sha256: str) -> bool:
    return ArtefactFile.objects.across_orgs("a content is shared by organisations").filter(sha256=sha256).exists()


def adopt(now: datetime, kept: Store | None = None) -> int:
    """Gives contents that have no row one, so that the sweep can judge them: left by a process that died right after putting."""
    place = kept or store()
    known = set(StoredFile.objects.values_list("sha256", flat=True))
    strays = [each for each in place.contents() if each.sha256 not in known]
    rows = [StoredFile(sha256=each.sha256, size=each.size, touched_at=now) for each in strays]
    StoredFile.objects.bulk_create(rows, ignore_conflicts=True)
    return len(rows)


def used_bytes(org: Organisation) -> int:
    """Of what the organisation's versions hold; a content that several of them share counts once."""
    sizes = ArtefactFile.objects.for_org(org).order_by("sha256").values_list("sha256", "size").distinct()
    return sum(dict(sizes).values())


def new_bytes(org: Organisation, contents: Iterable[tuple[str, int]]) -> int:
    """Of (digest, size): what the organisation does not hold yet."""
    asked = dict(contents)
    known = ArtefactFile.objects.for_org(org).filter(sha256__in=asked).values_list("sha256", flat=True)
    return sum(asked[sha256] for sha256 in asked.keys() - set(known))


def coming_bytes(org: Organisation, without: ModelImport | None = None) -> int:
    """Of imports on their way, as far as their sizes are known."""
    running = ModelImport.objects.for_org(org).exclude(state__in=FINAL)
    if without is not None:
        running = running.exclude(pk=without.pk)
    return running.aggregate(total=models.Sum("bytes_total"))["total"] or 0


def quota_of(org: Organisation) -> int | None:
    """Bytes; None: no limit."""
    own = StorageQuota.objects.for_org(org).first()
    if own is not None:
        return own.bytes
    return settings.STORE_QUOTA_BYTES or None


def check_quota(org: Organisation, asked: int, run: ModelImport | None = None) -> None:
    """Raises QuotaExceeded when `asked` bytes more would be too many."""
    quota = quota_of(org)
    if quota is None:
        return
    used = used_bytes(org) + coming_bytes(org, without=run)
    if used + asked > quota:
        raise QuotaExceeded(used=used, asked=asked, quota=quota)


def storage_of(org: Organisation) -> dict[str, int | None]:
    return {"used": used_bytes(org), "coming": coming_bytes(org), "quota": quota_of(org)}
