"""Which replica a request goes to, and the idle connections to each."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

from berth_gateway.contract import Replica, Route

MAX_IDLE = 256  # kept connections to one replica
REST_AFTER_FAILURE = 1.0  # seconds that an unreachable replica is passed over, if there is another

Address = tuple[str, int, str]  # host, port, secret: one that restarts with a new secret is another replica


class Pooled(Protocol):
    """A connection that waits for its next request."""

    def discard(self) -> None:
        """Closes it."""


def address(replica: Replica) -> Address:
    return (replica.host, replica.port, replica.secret)


class Router:
    """Counts what is in flight to each replica and keeps its idle connections, the last used on top."""

    def __init__(self) -> None:
        self._idle: dict[Address, list[Pooled]] = {}
        self._in_flight: dict[Address, int] = {}
        self._failed_at: dict[Address, float] = {}
        self._turn = 0

    def choose(self, route: Route, tried: Collection[Address], now: float) -> Replica | None:
        """The replica with the fewest requests in flight; ties take turns. None when all have been tried."""
        open_ = [r for r in route.replicas if address(r) not in tried]
        rested = [r for r in open_ if now - self._failed_at.get(address(r), -1e9) >= REST_AFTER_FAILURE] or open_
        if not rested:
            return None
        self._turn += 1
        turn = self._turn % len(rested)
        return min(rested[turn:] + rested[:turn], key=lambda r: self._in_flight.get(address(r), 0))

    def begin(self, where: Address) -> None:
        self._in_flight[where] = self._in_flight.get(where, 0) + 1

    def end(self, where: Address) -> None:
        left = self._in_flight.get(where, 0) - 1
        if left > 0:
            self._in_flight[where] = left
        else:
            self._in_flight.pop(where, None)

    def failed(self, where: Address, now: float) -> None:
        self._failed_at[where] = now

    def take(self, where: Address) -> Pooled | None:
        idle = self._idle.get(where)
        return idle.pop() if idle else None

    def give_back(self, where: Address, connection: Pooled) -> bool:
        """False when there are enough already: the caller closes it."""
        idle = self._idle.setdefault(where, [])
        if len(idle) >= MAX_IDLE:
            return False
        idle.append(connection)
        return True

    def forget(self, where: Address, connection: Pooled) -> None:
        """It was closed by the other side while it waited."""
        idle = self._idle.get(where)
        if idle and connection in idle:
            idle.remove(connection)

    def keep_only(self, routes: Iterable[Route]) -> None:
        """Closes idle connections to replicas that no route names any more."""
        known = {address(r) for route in routes for r in route.replicas}
        for where in [w for w in self._idle if w not in known]:
            for connection in self._idle.pop(where):
                connection.discard()
        for where in [w for w in self._failed_at if w not in known]:
            del self._failed_at[where]

    def in_flight(self) -> int:
        return sum(self._in_flight.values())
