"""What gateways tell of themselves and of what they see."""

from __future__ import annotations

import msgspec


class GatewayReport(msgspec.Struct, frozen=True):
    """A gateway's sign of life. "Applied" means that requests are judged by this version from now on."""

    gateway: str
    epoch: str
    version: int
    at: float  # Unix seconds
    started_at: float
    in_flight: int
    spool_pending: int  # usage events not yet known to be in PostgreSQL


class Wake(msgspec.Struct, frozen=True):
    """A request waits for a deployment that is asleep. `sleep` is the route's `asleep_since`: a message that comes late wakes nobody."""

    deployment_id: str
    sleep: int
    at: float  # Unix seconds


class DeploymentLoad(msgspec.Struct, frozen=True):
    """What one gateway sees of a deployment. Counts and sums only rise and begin at `since`, when the gateway started."""

    at: float  # Unix seconds
    since: float
    active_at: float  # when a request last arrived, waited or ran
    arrivals: int
    in_flight: int  # sent to replicas; now
    queued: int  # waiting for a replica; now
    answers: int  # with a first token
    first_token_seconds: float  # sum over `answers`, from arrival
    queue_seconds: float  # sum over requests that were sent to a replica
    decode_seconds: float  # sum of the time from first to last token
    decode_tokens: int  # tokens behind the first in that time
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
