"""Copies of requests to replicas that are only looked at: their answers are dropped, nothing of them is metered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from berth_gateway.account import Facts
from berth_gateway.contract import Replica, Route
from berth_gateway.head import ResponseHead, write_request
from berth_gateway.route import Address, address
from berth_gateway.upstream import Upstream

if TYPE_CHECKING:
    from berth_gateway.gateway import Gateway

MOST = 16  # copies that run; one more is not made, so that shadows never weigh on a gateway
LONGEST = 120.0  # seconds


class Shadows:
    """Runs the copies. Each holds the request's own body, in memory, until it ends."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._owed: dict[str, int] = {}  # deployment -> hundredths of a copy
        self.running: set[_Copy] = set()

    def copy(self, route: Route, facts: Facts) -> None:
        """Sends a copy of every so many requests of this route."""
        shadow = route.shadow
        if shadow is None or not shadow.replicas:
            return
        owed = self._owed.get(route.deployment_id, 0) + max(0, min(100, shadow.percent))
        self._owed[route.deployment_id] = owed % 100
        if owed < 100:
            return
        if len(self.running) >= MOST:
            self._gateway.telemetry.shadows.add(route.deployment_id, "skipped")
            return
        replica = min(shadow.replicas, key=self._gateway.router.load)
        copied = _Copy(self._gateway, route.deployment_id, replica)
        self.running.add(copied)
        copied.start(replica, facts)

    def tick(self, now: float) -> None:
        for copied in list(self.running):
            if now - copied.started > LONGEST:
                copied.end("timeout")

    def end_all(self) -> None:
        for copied in list(self.running):
            copied.end("cut")


class _Copy:
    """One copy. It reads nothing but whether the answer was good."""

    def __init__(self, gateway: Gateway, deployment: str, replica: Replica) -> None:
        self._gateway = gateway
        self._deployment = deployment
        self._where: Address = address(replica)
        self._status = 0
        self._ended = False
        self.started = gateway.now()
        router = gateway.router
        pooled = router.take(self._where)
        self._upstream = pooled if isinstance(pooled, Upstream) else Upstream(gateway, self._where)

    def start(self, replica: Replica, facts: Facts) -> None:
        prepared = facts.prepared
        self._gateway.router.begin(self._where)
        message = write_request(
            prepared.path,
            replica.host,
            replica.port,
            replica.secret,
            facts.request_id,
            prepared.body,
            prepared.content_type,
        )
        self._upstream.ask(self, lambda: message)

    def answered(self, head: ResponseHead) -> None:
        self._status = head.status

    def payload(self, data: bytes) -> None:
        """Dropped."""

    def ended(self) -> None:
        self._finish("ok" if self._status == 200 else "failed")

    def broken(self, *, answered: bool, reused: bool) -> None:
        self._finish("failed")

    def end(self, how: str) -> None:
        self._upstream.abort()
        self._finish(how)

    def _finish(self, how: str) -> None:
        if not self._ended:
            self._ended = True
            self._gateway.router.end(self._where)
            self._gateway.shadows.running.discard(self)
            self._gateway.telemetry.shadows.add(self._deployment, how)
