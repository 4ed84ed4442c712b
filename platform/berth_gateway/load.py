"""What this gateway sees of each deployment, for whoever decides how many replicas there should be. Knows no Valkey."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import TYPE_CHECKING

import msgspec

from berth_gateway.contract import DeploymentLoad, UsageEvent

if TYPE_CHECKING:
    from berth_gateway.telemetry import Sums

_encode = msgspec.msgpack.Encoder().encode


class Counts:
    __slots__ = (
        "active_at",
        "answers",
        "arrivals",
        "cached_tokens",
        "completion_tokens",
        "decode_seconds",
        "decode_tokens",
        "first_token_seconds",
        "in_flight",
        "prompt_tokens",
        "queue_seconds",
    )

    def __init__(self) -> None:
        self.active_at = self.first_token_seconds = self.queue_seconds = self.decode_seconds = 0.0
        self.arrivals = self.in_flight = self.answers = self.decode_tokens = 0
        self.prompt_tokens = self.cached_tokens = self.completion_tokens = 0


class Loads:
    """Counts by deployment. `waiting` says how many requests of a deployment wait for a replica."""

    def __init__(self, wall: Callable[[], float], waiting: Callable[[str], int]) -> None:
        self._wall = wall
        self._waiting = waiting
        self._since = wall()
        self._counts: dict[str, Counts] = {}
        self._changed: set[str] = set()
        self._gone: set[str] = set()

    def of(self, deployment: str) -> Counts:
        """Where a deployment is counted; it is among those that are told next."""
        self._changed.add(deployment)
        found = self._counts.get(deployment)
        if found is None:
            found = self._counts[deployment] = Counts()
        return found

    def arrived(self, deployment: str) -> None:
        counts = self.of(deployment)
        counts.arrivals += 1
        counts.active_at = self._wall()

    def sent(self, deployment: str, waited: float | None) -> None:
        """To a replica. `waited`: seconds since it arrived; None when it is sent a second time."""
        counts = self.of(deployment)
        counts.in_flight += 1
        counts.queue_seconds += waited or 0.0

    def ended(self, deployment: str) -> None:
        """It is with no replica any more."""
        counts = self.of(deployment)
        counts.in_flight -= 1
        counts.active_at = self._wall()

    def settled(self, event: UsageEvent) -> None:
        counts = self.of(event.deployment_id)
        counts.prompt_tokens += event.prompt_tokens
        counts.cached_tokens += event.cached_tokens
        counts.completion_tokens += event.completion_tokens
        if event.first_token_ms is not None:
            counts.answers += 1
            counts.first_token_seconds += event.first_token_ms / 1000
            if event.completion_tokens > 1:
                counts.decode_tokens += event.completion_tokens - 1
                counts.decode_seconds += max(0.0, event.duration_ms - event.first_token_ms) / 1000

    def ended_well(self, deployment: str, sums: Sums) -> None:
        """Requests that were counted in flight where they ran, and have been answered."""
        counts = self.of(deployment)
        counts.active_at = max(counts.active_at, sums.latest)
        counts.answers += sums.answers
        counts.first_token_seconds += sums.first_token_seconds
        counts.prompt_tokens += sums.prompt
        counts.cached_tokens += sums.cached
        counts.completion_tokens += sums.completion
        counts.decode_tokens += sums.decode_tokens
        counts.decode_seconds += sums.decode_seconds

    def in_flight(self) -> dict[str, int]:
        """Requests that are with a replica now, by deployment."""
        return {deployment: counts.in_flight for deployment, counts in self._counts.items()}

    def keep_only(self, known: Container[str]) -> None:
        """Forgets deployments that are gone, once nothing of them runs."""
        for deployment in [d for d, c in self._counts.items() if d not in known and not c.in_flight]:
            del self._counts[deployment]
            self._changed.discard(deployment)
            self._gone.add(deployment)

    def take(self) -> tuple[dict[str, bytes], list[str]]:
        """What is to be written now, packed: deployments on which something changed or runs; and those to be removed."""
        now = self._wall()
        busy = self._changed | {d for d, c in self._counts.items() if c.in_flight or self._waiting(d)}
        gone = [d for d in self._gone if d not in self._counts]
        self._changed, self._gone = set(), set()
        return {d: _encode(self._load(d, now)) for d in busy if d in self._counts}, gone

    def _load(self, deployment: str, now: float) -> DeploymentLoad:
        counts, queued = self._counts[deployment], self._waiting(deployment)
        if counts.in_flight or queued:
            counts.active_at = now
        return DeploymentLoad(
            at=now,
            since=self._since,
            active_at=counts.active_at,
            arrivals=counts.arrivals,
            in_flight=counts.in_flight,
            queued=queued,
            answers=counts.answers,
            first_token_seconds=counts.first_token_seconds,
            queue_seconds=counts.queue_seconds,
            decode_seconds=counts.decode_seconds,
            decode_tokens=counts.decode_tokens,
            prompt_tokens=counts.prompt_tokens,
            cached_tokens=counts.cached_tokens,
            completion_tokens=counts.completion_tokens,
        )
