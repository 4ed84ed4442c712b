"""One scaler at a time. Each pass has a number that is higher than all before; what an older one still says is not heard."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from django.db import transaction
from django.db.models import F, Q

from berth.deployments.models import ScalingLease

HELD: Final = timedelta(seconds=10)
_ONLY: Final = 1


@transaction.atomic
def claim(holder: UUID, now: datetime) -> int | None:
    """The fence to act with, until it is released or the lease is over. None: another one scales."""
    ScalingLease.objects.get_or_create(pk=_ONLY)
    free = Q(holder=None) | Q(until=None) | Q(until__lt=now)
    rows = ScalingLease.objects.filter(pk=_ONLY)
    if rows.filter(free).update(holder=holder, until=now + HELD, fence=F("fence") + 1):
        return rows.get().fence
    return None


def release(holder: UUID) -> None:
    """At the end of a pass: the next one, of whichever worker, need not wait."""
    ScalingLease.objects.filter(pk=_ONLY, holder=holder).update(holder=None, until=None)
