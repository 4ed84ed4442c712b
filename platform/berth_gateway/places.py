"""A request's way to a replica: found at once, or waited for in fair order, also while the deployment sleeps or starts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from berth_gateway.account import Facts
from berth_gateway.contract import Replica, Route, RouteState, Wake
from berth_gateway.errors import Refusal
from berth_gateway.place import Place, Room, Seeker
from berth_gateway.route import Address, address

if TYPE_CHECKING:
    from berth_gateway.gateway import Gateway

MOST_BYTES = 256 * 1024 * 1024  # of bodies that wait, of all deployments together


class Places:
    """Gives out replicas. `on_wake` is called when a deployment has to be woken; `wakes` then says which."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.rooms: dict[str, Room] = {}
        self._bytes = 0
        self._wakes: dict[str, Wake] = {}
        self._due: deque[str] = deque()
        self._working = False
        self.on_wake: Callable[[], None] = _nobody

    # What exchanges ask

    def enter(self, seeker: Seeker) -> Place:
        """Raises Refusal when too many wait already: such a request costs nothing."""
        facts = seeker.facts
        deployment = facts.route.deployment_id
        self._gateway.loads.arrived(deployment)
        room = self.rooms.get(deployment)
        if room is not None and (
            len(room.queue) >= self._gateway.config.queue_length or self._bytes + len(facts.prepared.body) > MOST_BYTES
        ):
            raise Refusal("overloaded", f"Too many requests wait for {facts.route.name}. Try again shortly.")
        return Place(seeker, self._gateway.now())

    def seek(self, place: Place) -> None:
        """Finds a replica among those that were not tried, or lets the request wait for one."""
        gateway, facts = self._gateway, place.facts
        route = self._route(facts)
        if route is None or not self._serves(route):
            self._wait_or_turn_away(place, route)
            return
        if not gateway.router.others(route, place.tried):
            self._turn_away(place, "upstream_unavailable", f"No replica of {route.name} could be reached.")
            return
        # Whoever was let through before does not queue again for its second try.
        if place.sent_at is not None or facts.route.deployment_id not in self.rooms:
            replica = self._choose(route, place, place.tried)
            if replica is not None:
                self.take(place, route, replica)
                return
        self._wait(place)

    def took_over(self, seeker: Seeker, where: Address, sent_at: float) -> Place:
        """A place for a request that is with a replica already."""
        place = Place(seeker, seeker.facts.started)
        place.where, place.sent_at = where, sent_at
        return place

    def found(self, seeker: Seeker) -> Place:
        """A place for a request that was counted as arrived, and takes its replica itself."""
        return Place(seeker, seeker.facts.started)

    def freed(self, deployment: str) -> None:
        """A request that had no place here has left a replica of this deployment."""
        if deployment in self.rooms:
            self._move_up(deployment)

    def leave(self, place: Place) -> None:
        """The request needs its replica, or its position, no more. Who waits behind it moves up."""
        deployment = place.facts.route.deployment_id
        if place.waiting:
            self._forget(self.rooms[deployment], place, deployment)
            place.seeker = None
        elif place.where is not None:
            self._gateway.router.end(place.where)
            self._gateway.loads.ended(deployment)
            place.where = None
            if deployment in self.rooms:
                self._move_up(deployment)

    def lists(self, facts: Facts, where: Address) -> bool:
        """Whether this replica still belongs to the request's route."""
        route = self._route(facts)
        return route is not None and any(address(replica) == where for replica in route.replicas)

    # What the gateway tells

    def changed(self) -> None:
        """A new snapshot: replicas may have come, gone, or be wanted no more."""
        for deployment, room in list(self.rooms.items()):
            waiting = next(iter(room.places), None)
            route = None if waiting is None else self._route(waiting.facts)
            if route is None or not self._serves(route):
                room.serving_since = None
                for place in list(room.places):
                    self._check_still(place, route)
            else:
                if room.serving_since is None:
                    room.serving_since = self._gateway.now()
                self._move_up(deployment)

    def tick(self, now: float) -> None:
        """Turns away who has waited too long."""
        for deployment, room in list(self.rooms.items()):
            for place in list(room.places):
                route = self._route(place.facts)
                if now >= self._deadline(place, room, route):
                    self._too_late(place, route)
            self._move_up(deployment)  # a rest may be over

    def wakes(self) -> list[Wake]:
        """Deployments that requests wait for and that are still asleep as far as is known."""
        if not self._wakes:
            return []
        view = self._gateway.store.view
        routes = (
            {} if view is None else {r.deployment_id: r for r in view.routes.values() if r.asleep_since is not None}
        )
        for deployment, wake in list(self._wakes.items()):
            route = routes.get(deployment)
            if route is None or route.state is not RouteState.ASLEEP or route.asleep_since != wake.sleep:
                del self._wakes[deployment]
        return list(self._wakes.values())

    def wake(self, route: Route) -> None:
        """Somebody asks for a deployment that is asleep."""
        sleep = route.asleep_since or 0
        known = self._wakes.get(route.deployment_id)
        if known is None or known.sleep != sleep:
            self._wakes[route.deployment_id] = Wake(route.deployment_id, sleep, self._gateway.wall())
            self.on_wake()

    def waiting(self, deployment: str) -> int:
        room = self.rooms.get(deployment)
        return 0 if room is None else len(room.queue)

    def all_waiting(self) -> int:
        return sum(len(room.queue) for room in self.rooms.values())

    # How

    def _route(self, facts: Facts) -> Route | None:
        """The route as it is now, if the request can still go that way."""
        view, then = self._gateway.store.view, facts.route
        route = None if view is None else view.routes.get(then.name)
        if route is None or (route.deployment_id, route.engine) != (then.deployment_id, then.engine):
            return None
        return route

    @staticmethod
    def _serves(route: Route) -> bool:
        return route.state is RouteState.READY and bool(route.replicas)

    def _choose(self, route: Route, place: Place, tried: Collection[Address]) -> Replica | None:
        view = self._gateway.store.view
        epoch = "" if view is None else view.epoch
        return self._gateway.router.choose(route, tried, self._gateway.now(), lambda: place.lead(epoch))

    def take(self, place: Place, route: Route, replica: Replica) -> None:
        gateway, where = self._gateway, address(replica)
        now = gateway.now()
        gateway.router.begin(where)
        gateway.loads.sent(route.deployment_id, now - place.since if place.sent_at is None else None)
        if place.sent_at is None:
            gateway.telemetry.queue.observe(now - place.since, route.deployment_id)
            if route.shadow is not None:
                gateway.shadows.copy(route, place.facts)
        place.where, place.sent_at = where, now
        if place.seeker is not None:
            place.seeker.placed(replica)

    def _wait_or_turn_away(self, place: Place, route: Route | None) -> None:
        if self._check_still(place, route) and route is not None:
            self._wait(place)

    def _check_still(self, place: Place, route: Route | None) -> bool:
        """Whether it is worth waiting for this deployment, none of whose replicas answers now."""
        name = place.facts.route.name
        if route is None:
            self._turn_away(place, "overloaded", f"{name} has changed meanwhile. Try again.")
        elif route.state is RouteState.PAUSED:
            self._turn_away(place, "deployment_paused", f"{name} is paused. Resume it in the dashboard.")
        elif route.state in (RouteState.ASLEEP, RouteState.LOADING):
            if route.state is RouteState.ASLEEP:
                self.wake(route)
            return True
        else:
            self._turn_away(place, "overloaded", f"{name} has no replica that answers right now. Try again shortly.")
        return False

    def _wait(self, place: Place) -> None:
        deployment = place.facts.route.deployment_id
        room = self.rooms.get(deployment)
        if room is None:
            room = self.rooms[deployment] = Room()
        room.queue.add(place)
        room.places[place] = None
        place.waiting = True
        self._bytes += len(place.facts.prepared.body)
        self._gateway.slots.short(deployment)

    def _forget(self, room: Room, place: Place, deployment: str) -> None:
        """Takes a request out of the queue, whose turn it is or not."""
        room.queue.left(place)
        room.places.pop(place, None)
        place.waiting = False
        self._bytes -= len(place.facts.prepared.body)
        if not room.places:
            del self.rooms[deployment]

    def _move_up(self, deployment: str) -> None:
        """Lets through whoever is next, as far as there is room. What that leads to is worked off here, not within itself."""
        self._due.append(deployment)
        if self._working:
            return
        self._working = True
        try:
            while self._due:
                self._let_through(self._due.popleft())
        finally:
            self._working = False

    def _let_through(self, deployment: str) -> None:
        while (room := self.rooms.get(deployment)) is not None:
            place = room.queue.head()
            route = None if place is None else self._route(place.facts)
            if place is None or route is None or not self._serves(route):
                return
            if not self._gateway.router.others(route, place.tried):
                self._turn_away(place, "upstream_unavailable", f"No replica of {route.name} could be reached.")
                continue
            replica = self._choose(route, place, place.tried)
            if replica is None and place.tried:
                replica = self._choose(route, place, ())  # what failed before may be well again, and others wait behind
            if replica is None:
                return
            room.queue.pop()
            place.gone = True  # it is out already: `left` has nothing to take out
            self._forget(room, place, deployment)
            place.gone = False
            self.take(place, route, replica)

    def _deadline(self, place: Place, room: Room, route: Route | None) -> float:
        if route is not None and not self._serves(route):
            until = place.since + route.hold_seconds
        else:
            until = max(place.since, room.serving_since or 0.0) + self._gateway.config.queue_seconds
        patience = place.facts.patience
        return until if patience is None else min(until, place.since + patience)

    def _too_late(self, place: Place, route: Route | None) -> None:
        name = place.facts.route.name
        if route is not None and not self._serves(route):
            left = route.ready_in_seconds
            about = f"; it should be ready in about {left} s" if left else ""
            self._turn_away(place, "model_loading", f"{name} is starting{about}.", left)
        else:
            self._turn_away(place, "overloaded", f"All replicas of {name} are busy. Try again shortly.")

    def _turn_away(self, place: Place, code: str, sentence: str, retry_after: int | None = None) -> None:
        if place.seeker is not None:
            place.seeker.turned_away(code, sentence, retry_after)
        self.leave(place)


def _nobody() -> None:
    """Without a link there is nobody to tell."""
