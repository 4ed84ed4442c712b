"""Who may act on a deployment now: one holder at a time, by a token that expires."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta

from django.db.models import Q, QuerySet

from berth.deployments.models import Deployment, State

LEASE = timedelta(seconds=20)  # longer than a look with its starts takes; a holder that died is waited for this long


def claim(deployment_id: uuid.UUID, now: datetime) -> Deployment | None:
    """The deployment, held by us, if it is due and nobody else holds it. One conditional UPDATE decides.

    `check_at` becomes the end of the lease: should we die, the next sweep after that looks again; should somebody kick the
    deployment meanwhile, `release` sees that it is no longer that instant.
    """
    token = uuid.uuid4()
    until = now + LEASE
    taken = (
        _rows()
        .filter(pk=deployment_id, check_at__lte=now)
        .exclude(state=State.DELETED)
        .filter(Q(lease_until=None) | Q(lease_until__lt=now))
        .update(lease_token=token, lease_until=until, check_at=until)
    )
    if not taken:
        return None
    return _rows().select_related("org", "revision").filter(pk=deployment_id, lease_token=token).first()


def holds(deployment: Deployment, now: datetime) -> bool:
    """Whether our token still counts. Asked before every act outside the database."""
    return _rows().filter(pk=deployment.pk, lease_token=deployment.lease_token, lease_until__gt=now).exists()


def locked(deployment: Deployment) -> Deployment | None:
    """In a transaction: the row, locked, if our token still counts. None: somebody else has taken over; write nothing."""
    return _rows().select_for_update().filter(pk=deployment.pk, lease_token=deployment.lease_token).first()


def release(deployment: Deployment, check_at: datetime, now: datetime) -> datetime | None:
    """Lets go, to be looked at again at `check_at`, or at once if somebody kicked meanwhile. Returns when; None: not ours any
    more."""
    held = _rows().filter(pk=deployment.pk, lease_token=deployment.lease_token)
    if held.filter(check_at=deployment.check_at).update(lease_token=None, lease_until=None, check_at=check_at):
        return check_at
    return now if held.update(lease_token=None, lease_until=None) else None


def _rows() -> QuerySet[Deployment]:
    return Deployment.objects.across_orgs("the reconciler keeps the deployments of all organisations")
