"""How far metering has got."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import cast
from uuid import UUID

import msgspec

from berth.metering.models import PendingEvent, UsageEvent
from berth.outbox.valkey import UNAVAILABLE, client
from berth_gateway.contract import USAGE_STREAM, CountedBy, Outcome


def behind_seconds(org_id: UUID, now: datetime) -> float | None:
    """Age of the oldest usage that is on its way: in the stream (of any organisation), or stored but not rated (of this one).
    0 when nothing waits, None when Valkey does not say. What is still in gateways' spools is not known here."""
    pending = (
        PendingEvent.objects.filter(org_id=org_id, held="").order_by("created_at").values_list("created_at", flat=True)
    )
    oldest = [at.timestamp() for at in pending[:1]]
    try:
        entries = cast("list[tuple[bytes, object]]", client().xrange(USAGE_STREAM, count=1))
    except UNAVAILABLE:
        return None
    oldest += [int(entry_id.split(b"-")[0]) / 1000 for entry_id, _ in entries]
    return max(0.0, round(now.timestamp() - min(oldest), 3)) if oldest else 0.0


class Served(msgspec.Struct, frozen=True):
    """One request of a deployment, in numbers. Seconds since the epoch; milliseconds from arrival."""

    accepted_at: float
    duration_ms: float
    first_token_ms: float | None  # None: not streamed, or nothing came
    counted: bool  # it went well, and the engine itself counted its tokens
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int

    @property
    def ended_at(self) -> float:
        return self.accepted_at + self.duration_ms / 1000


def served(org_id: UUID, deployment_id: UUID, revision: int, since: datetime, *, limit: int) -> Sequence[Served]:
    """The latest requests of a revision, oldest first. First tokens only of streams: else they are the whole answer."""
    rows = (
        UsageEvent.objects.for_org(org_id)
        .filter(deployment_id=deployment_id, revision=revision, accepted_at__gte=since)
        .order_by("-accepted_at")[:limit]
    )
    return [
        Served(
            accepted_at=row.accepted_at.timestamp(),
            duration_ms=row.duration_ms,
            first_token_ms=row.first_token_ms if row.stream else None,
            counted=row.outcome == Outcome.OK.value and row.counted_by == CountedBy.ENGINE.value,
            prompt_tokens=row.prompt_tokens,
            cached_tokens=row.cached_tokens,
            completion_tokens=row.completion_tokens,
        )
        for row in reversed(rows)
    ]


def used_lately(now: datetime, window: timedelta) -> set[UUID]:
    """Ids of the deployments that served anything within the window."""
    rows = UsageEvent.objects.across_orgs("which deployments have something to measure?")
    return set(rows.filter(accepted_at__gte=now - window).values_list("deployment_id", flat=True).distinct())
