"""What is known of an accepted request, and the usage event it becomes."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from berth_gateway import meter
from berth_gateway.admit import Caller
from berth_gateway.contract import USAGE_FORMAT, Outcome, Route, UsageEvent
from berth_gateway.endpoint import Endpoint, Prepared
from berth_gateway.trace import Trace


class Reader(Protocol):
    """What an answer's reader knows of its tokens."""

    @property
    def pieces(self) -> int:
        """Those with content, so far."""

    @property
    def final(self) -> meter.Counts | None:
        """The engine's closing figures."""

    @property
    def complete(self) -> bool:
        """Whether the answer has all its parts."""

    @property
    def has_learned(self) -> bool:
        """Whether whole chunks may take the short cut."""

    def running(self) -> meter.Counts | None:
        """The engine's last running figures."""


class Facts(Struct, frozen=True):
    """A request as it was admitted. `accepted_at` in Unix seconds, `started` on the loop's clock."""

    request_id: str
    event_id: str
    caller: Caller
    route: Route
    endpoint: Endpoint
    prepared: Prepared
    accepted_at: float
    started: float
    patience: float | None = None  # seconds that its client can wait for an answer; None: it does not say
    trace: Trace | None = None  # None: it is not traced


def prompt_estimate(facts: Facts) -> int:
    """Prompt tokens of a request whose engine does not count them. An upload's bytes say nothing of its tokens."""
    return 0 if facts.endpoint.multipart else meter.estimate_prompt(facts.prepared.size)


def bill_of(facts: Facts, reader: Reader) -> meter.Bill:
    """What would be billed for what the engine has sent so far."""
    return meter.bill(
        final=reader.final if reader.complete else None,
        running=reader.running(),
        chunks=reader.pieces,
        prompt_estimate=prompt_estimate(facts),
        limits=meter.Limits(facts.route.context_length * facts.prepared.prompts, facts.prepared.most_tokens),
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
