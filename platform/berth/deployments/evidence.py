"""What the requests of two revisions were like, from what was metered."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from statistics import median
from typing import Final

from berth.deployments.models import Deployment
from berth.deployments.rollout import Evidence
from berth.metering.models import UsageEvent
from berth_gateway.contract import Outcome

LATEST: Final = 500  # requests that are looked at
BEFORE: Final = timedelta(hours=24)  # how old the old revision's requests may be
_FAILED: Final = frozenset(
    {Outcome.UPSTREAM_ERROR.value, Outcome.TIMEOUT.value}
)  # the replica's fault, not the caller's
_COLUMNS: Final = ("outcome", "stream", "first_token_ms")


def evidence(deployment: Deployment, revisions: Collection[int], since: datetime) -> Evidence:
    """Of the latest requests since then that these revisions answered."""
    rows = (
        UsageEvent.objects.for_org(deployment.org_id)
        .filter(deployment_id=deployment.pk, revision__in=revisions, accepted_at__gte=since)
        .order_by("-accepted_at")
        .values_list(*_COLUMNS)[:LATEST]
    )
    found = list(rows)
    firsts = [first for _, stream, first in found if stream and first is not None]
    return Evidence(
        requests=len(found),
        failed=sum(outcome in _FAILED for outcome, _, _ in found),
        first_token_ms=median(firsts) if firsts else None,
        streams=len(firsts),
    )
