"""Which replica a request goes to, and the idle connections to each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Protocol

from berth_gateway import affinity
from berth_gateway.answer_form import AnswerForm
from berth_gateway.contract import Replica, RevisionWeight, Route
from berth_gateway.form import Form
from berth_gateway.health import Health
from berth_gateway.stream_form import StreamForm

MAX_IDLE = 256  # kept connections to one replica
UNBOUNDED = 1 << 62

Address = tuple[str, int, str]  # host, port, secret: one that restarts with a new secret is another replica


class Pooled(Protocol):
    """A connection that waits for its next request."""

    def discard(self) -> None:
        """Closes it."""


def address(replica: Replica) -> Address:
    return (replica.host, replica.port, replica.secret)


class Spot:
    """What is known of one running replica: requests in flight to it, the most that this process may have there (`slots`), idle
    connections, the last used on top, the form of its last good answer's head (`form.Form`), which the next will have but for
    the length, the form of its plain answers (`answer_form`) and that of its streams (`stream_form`), with the number of those since
    that had another (`unlike`, `misses`)."""

    __slots__ = ("answer", "form", "idle", "in_flight", "misses", "most", "stream", "unlike", "where")

    def __init__(self, where: Address) -> None:
        self.where = where
        self.in_flight = 0
        self.most = UNBOUNDED
        self.idle: list[Any] = []  # Pooled; nearly always an Upstream
        self.form: Form | None = None
        self.answer: AnswerForm | None = None
        self.unlike = 0
        self.stream: StreamForm | None = None
        self.misses = 0


class Router:
    """Counts what is in flight to each replica, knows which have failed, and keeps idle connections, the last used on top."""

    def __init__(self) -> None:
        self.health: Health[Address] = Health()
        self._spots: dict[Address, Spot] = {}
        self._splits: dict[str, dict[int, int]] = {}  # deployment -> revision -> what it is owed
        self._turn = 0

    # Choosing

    def choose(
        self, route: Route, tried: Collection[Address], now: float, lead: Callable[[], bytes] | None = None
    ) -> Replica | None:
        """A replica with room, of the revision whose turn it is; there the one that `lead` prefers, unless it has more than its part in
        flight; without `lead` the one with the fewest. Ties take turns. None: all are full or have been tried."""
        if len(route.replicas) == 1 and not tried:
            only = route.replicas[0]
            return only if self._has_room(only) else None
        open_ = [r for r in route.replicas if not tried or address(r) not in tried]
        well = [r for r in open_ if self.health.usable(address(r), now)]
        if not well and open_:
            # All have failed: better to ask the one that has rested longest than nobody.
            well = [min(open_, key=lambda r: self.health.rests_until(address(r)))]
        room = [r for r in well if self._has_room(r)]
        if not room:
            return None
        if route.weights:
            revision = self._revision(route, room)
            room = [r for r in room if (r.revision or route.revision) == revision]
            well = [r for r in well if (r.revision or route.revision) == revision]
        if lead is not None and len(room) > 1:
            limit = affinity.bound(sum(map(self.load, well)), len(well))
            found = affinity.prefer(lead(), room, _name, self.load, limit)
            if found is not None:
                return found
        return self._fewest(room)

    def others(self, route: Route, tried: Collection[Address]) -> bool:
        """Whether there is a replica that was not tried, full or not."""
        return any(address(r) not in tried for r in route.replicas)

    def _fewest(self, room: Sequence[Replica]) -> Replica:
        self._turn += 1
        turn = self._turn % len(room)
        return min([*room[turn:], *room[:turn]], key=self.load)

    def _has_room(self, replica: Replica) -> bool:
        if replica.slots is None:
            return True
        spot = self._spots.get(address(replica))
        return spot is None or spot.in_flight < min(replica.slots, spot.most)

    def _revision(self, route: Route, room: Sequence[Replica]) -> int:
        """Whose turn it is by weight, among the revisions that can take a request: smooth weighted round robin, exact over any
        stretch of requests."""
        here = {replica.revision or route.revision for replica in room}
        weights = [w for w in route.weights if w.revision in here and w.weight > 0]
        if not weights:  # those with a share cannot take it, but somebody can
            weights = [RevisionWeight(max(here), 1)]
        owed = self._splits.setdefault(route.deployment_id, {})
        for each in weights:
            owed[each.revision] = owed.get(each.revision, 0) + each.weight
        chosen = max(weights, key=lambda each: owed[each.revision]).revision
        owed[chosen] -= sum(each.weight for each in weights)
        return chosen

    # Counting

    def spot(self, where: Address) -> Spot:
        found = self._spots.get(where)
        if found is None:
            found = self._spots[where] = Spot(where)
        return found

    def load(self, replica: Replica) -> int:
        spot = self._spots.get(address(replica))
        return 0 if spot is None else spot.in_flight

    def begin(self, where: Address) -> None:
        self.spot(where).in_flight += 1
        self.health.sent(where)

    def end(self, where: Address) -> None:
        spot = self.spot(where)
        spot.in_flight = max(0, spot.in_flight - 1)
        self.health.left(where)

    def failed(self, where: Address, now: float) -> None:
        self.health.failed(where, now)

    def in_flight(self) -> int:
        return sum(spot.in_flight for spot in self._spots.values())

    # Connections

    def take(self, where: Address) -> Pooled | None:
        idle: list[Pooled] = self.spot(where).idle
        return idle.pop() if idle else None

    def give_back(self, where: Address, connection: Pooled) -> bool:
        """False when there are enough already: the caller closes it."""
        idle = self.spot(where).idle
        if len(idle) >= MAX_IDLE:
            return False
        idle.append(connection)
        return True

    def forget(self, where: Address, connection: Pooled) -> None:
        """It was closed by the other side while it waited."""
        spot = self._spots.get(where)
        if spot is not None and connection in spot.idle:
            spot.idle.remove(connection)

    def keep_only(self, routes: Iterable[Route]) -> None:
        """Closes idle connections to replicas that no route names any more."""
        known: set[Address] = set()
        split: set[str] = set()
        for route in routes:
            known.update(address(r) for r in route.replicas)
            if route.shadow is not None:
                known.update(address(r) for r in route.shadow.replicas)
            if route.weights:
                split.add(route.deployment_id)
        for where, spot in [each for each in self._spots.items() if each[0] not in known]:
            idle, spot.idle = spot.idle, []
            for connection in idle:
                connection.discard()
            if not spot.in_flight:
                del self._spots[where]
        self.health.keep_only(known)
        for deployment in [d for d in self._splits if d not in split]:
            del self._splits[deployment]


def _name(replica: Replica) -> str:
    return replica.name
