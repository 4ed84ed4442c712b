"""Usage events, and the batches they travel in."""

from __future__ import annotations

import hashlib
import hmac
from enum import StrEnum

import msgspec

USAGE_FORMAT = 1


class Outcome(StrEnum):
    """How an accepted request ended."""

    OK = "ok"
    CLIENT_CLOSED = "client_closed"
    UPSTREAM_ERROR = "upstream_error"  # the replica refused, broke off or was unreachable
    REJECTED = "rejected"  # the replica found the request wrong (400): never billed
    TIMEOUT = "timeout"
    # The gateway ended it: it was killed (settled from its spool at the next start), stopped, or the key was revoked meanwhile.
    INTERRUPTED = "interrupted"


class CountedBy(StrEnum):
    """Where the token counts come from, most exact first."""

    ENGINE = "engine"  # the engine's final usage
    ENGINE_RUNNING = "engine_running"  # the engine's last running figure before the request broke off
    ESTIMATE = "estimate"  # chunks relayed, never above what the request could have produced
    NONE = "none"  # nothing was produced


class UsageEvent(msgspec.Struct, frozen=True, gc=False):
    """One accepted request. It has no field that could carry text of a prompt or completion, and never gets one.

    `cached_tokens` is a part of `prompt_tokens`, `reasoning_tokens` a part of `completion_tokens`.
    """

    format: int
    event_id: str  # UUIDv7, made at admission
    gateway: str
    org_id: str
    key_id: str
    deployment_id: str
    revision: int
    endpoint: str
    stream: bool
    accepted_at: float  # Unix seconds
    duration_ms: float
    outcome: Outcome
    status: int  # HTTP status sent to the client; 499 when it left first
    counted_by: CountedBy
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    first_token_ms: float | None = None


class UsageBatch(msgspec.Struct, frozen=True):
    """Usage events of one gateway between two positions of its spool.

    Positions only rise. The ingester acknowledges a batch by moving the gateway's position to `end`, and does so only if
    `start` is at or before the position it holds: a gap is left for the gateway to send again. `mac` is over `payload`
    with the gateway's own key, so that a batch cannot be altered or attributed to another gateway.
    """

    format: int
    gateway: str
    start: int
    end: int
    payload: bytes  # packed list[UsageEvent]
    mac: bytes


WORKER_MARK = ":"  # between a gateway's name, which cannot hold it, and the number of one of its workers


def worker_name(gateway: str, number: int) -> str:
    """What one of several processes of a gateway is called in reports and usage batches."""
    return f"{gateway}{WORKER_MARK}{number}"


def usage_key(master: bytes, gateway: str) -> bytes:
    """The gateway's or worker's own MAC key. The control plane holds `master`; a gateway is only ever given its own."""
    name, mark, number = gateway.partition(WORKER_MARK)
    key = hmac.new(master, b"berth usage v1:" + name.encode(), hashlib.sha256).digest()
    return worker_key(key, number) if mark else key


def worker_key(key: bytes, number: int | str) -> bytes:
    """The MAC key of a gateway's worker, from the gateway's own: what `usage_key` gives for its `worker_name`."""
    return hmac.new(key, b"berth worker v1:" + str(number).encode(), hashlib.sha256).digest()


def usage_mac(key: bytes, gateway: str, start: int, end: int, payload: bytes) -> bytes:
    """HMAC-SHA256 over everything in a batch that means something."""
    head = f"{gateway}\x00{start}\x00{end}\x00".encode()
    return hmac.new(key, head + payload, hashlib.sha256).digest()
