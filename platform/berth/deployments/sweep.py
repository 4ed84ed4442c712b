"""What is done for all deployments at once: find those that are due or have lost a replica, and end what belongs to nobody."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from django.db.models import F, Q, Window
from django.db.models.functions import RowNumber

from berth.compute.provider import ObservedReplica, Provider
from berth.deployments import scaling_engines
from berth.deployments.models import Deployment, Replica, State
from berth.deployments.world import SILENT_SECONDS

_WHY = "the sweep looks after the deployments of all organisations"


def due(now: datetime, limit: int = 500) -> list[UUID]:
    """Deployments to look at now: of each organisation its longest overdue first, and the organisations in turn, so that one with
    thousands to be looked at delays nobody else's. One whose holder died is due when its lease is over."""
    rows = Deployment.objects.across_orgs(_WHY).exclude(state=State.DELETED).filter(check_at__lte=now)
    rows = rows.filter(Q(lease_until=None) | Q(lease_until__lt=now))
    turn = Window(RowNumber(), partition_by=[F("org_id")], order_by=[F("check_at").asc()])
    return list(rows.annotate(turn=turn).order_by("turn", "check_at").values_list("pk", flat=True)[:limit])


def notice(provider: Provider, now: datetime) -> list[UUID]:
    """Makes deployments due whose replicas are not as the database has them, so that a death, a drain or a long silence is seen within
    one sweep and not only at the next look. Ends replicas of deployments that are gone. Raises ProviderUnavailable."""
    observed = provider.observe_all()
    scaling_engines.tell(observed)
    well = {replica.name for replica in observed if replica.ready and not _silent(replica, now)}
    rows = Replica.objects.across_orgs(_WHY).filter(ended_at=None)
    living = dict(rows.values_list("name", "deployment_id"))
    settled = rows.filter(phase="ready").values_list("name", "deployment_id")
    wrong = {owner for name, owner in settled if name not in well}
    gone = _gone(observed)
    for replica in observed:
        if replica.deployment_id in gone:
            _end(provider, replica)
        elif replica.alive and replica.name not in living:
            wrong.add(UUID(replica.deployment_id))
    _make_due(wrong, now)
    return sorted(wrong)


def _silent(replica: ObservedReplica, now: datetime) -> bool:
    return now.timestamp() - replica.updated_at > SILENT_SECONDS


def _gone(observed: Sequence[ObservedReplica]) -> set[str]:
    """Owners of observed replicas that are deleted or were never ours."""
    owners = {replica.deployment_id for replica in observed}
    valid = {owner for owner in owners if _is_id(owner)}
    kept = Deployment.objects.across_orgs(_WHY).exclude(state=State.DELETED).filter(pk__in=valid)
    return owners - {str(key) for key in kept.values_list("pk", flat=True)}


def _is_id(text: str) -> bool:
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


def _end(provider: Provider, replica: ObservedReplica) -> None:
    if replica.alive:
        provider.stop(replica.name, drain_seconds=0)
    else:
        provider.forget(replica.name)


def _make_due(wrong: set[UUID], now: datetime) -> None:
    rows = Deployment.objects.across_orgs(_WHY).filter(pk__in=wrong, lease_token=None, check_at__gt=now)
    rows.update(check_at=now)
