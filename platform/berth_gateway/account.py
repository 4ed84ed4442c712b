"""What is known of an accepted request, and the usage event it becomes."""

from __future__ import annotations

from dataclasses import dataclass

from berth_gateway import meter
from berth_gateway.admit import Caller
from berth_gateway.chunks import ChunkReader
from berth_gateway.contract import USAGE_FORMAT, Outcome, Route, UsageEvent
from berth_gateway.surface import Endpoint, Prepared


@dataclass(frozen=True, slots=True)
class Facts:
    """A request as it was admitted. `accepted_at` in Unix seconds, `started` on the loop's clock."""

    request_id: str
    event_id: str
    caller: Caller
    route: Route
    endpoint: Endpoint
    prepared: Prepared
    accepted_at: float
    started: float


def bill_of(facts: Facts, reader: ChunkReader) -> meter.Bill:
    """What would be billed for what the engine has sent so far."""
    return meter.bill(
        final=reader.final if reader.complete else None,
        running=reader.running(),
        chunks=reader.pieces,
        prompt_estimate=meter.estimate_prompt(facts.prepared.body),
        limits=meter.Limits(facts.route.context_length, facts.prepared.most_tokens),
    )


def event_of(
    facts: Facts,
    gateway: str,
    outcome: Outcome,
    status: int,
    bill: meter.Bill,
    *,
    seconds: float,
    first_token: float | None,
) -> UsageEvent:
    """`seconds` since the start, `first_token` too."""
    counts = bill.counts
    return UsageEvent(
        format=USAGE_FORMAT,
        event_id=facts.event_id,
        gateway=gateway,
        org_id=facts.caller.org.org_id,
        key_id=facts.caller.key.key_id,
        deployment_id=facts.route.deployment_id,
        revision=facts.route.revision,
        endpoint=facts.endpoint.name,
        stream=facts.prepared.stream,
        accepted_at=facts.accepted_at,
        duration_ms=round(seconds * 1000, 3),
        outcome=outcome,
        status=status,
        counted_by=bill.counted_by,
        prompt_tokens=counts.prompt,
        cached_tokens=counts.cached,
        completion_tokens=counts.completion,
        reasoning_tokens=counts.reasoning,
        first_token_ms=None if first_token is None else round(first_token * 1000, 3),
    )
