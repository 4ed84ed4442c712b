"""How far metering has got."""

from __future__ import annotations

from datetime import datetime
from typing import cast
from uuid import UUID

from berth.metering.models import PendingEvent
from berth.outbox.valkey import UNAVAILABLE, client
from berth_gateway.contract import USAGE_STREAM


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
