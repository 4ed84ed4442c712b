"""What one gateway process may have in flight at each replica, so that all processes together never have more than it has slots. Pure.

Valkey sets slots aside for a process ahead of their use (`scripts.SLOTS`): what it wants, as far as all that others want leaves it, and
a part of what nobody wants, so that most requests find a slot here. A request that finds none waits in the fair queue, as it would if
the replica were full, and Valkey is asked at once. Without Valkey each process has its even part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import NamedTuple

from berth_gateway.contract import Route
from berth_gateway.route import UNBOUNDED, Address, Router, Spot, address

GRACE_SECONDS = 1.0  # so long after the last answer of Valkey what is held stays as it is
RENEW_SECONDS = 3.0  # Valkey forgets what a silent process holds after ten seconds
MOST_IN_ONE = 128  # replicas in one message


def even_share(slots: int, workers: int, number: int = 0) -> int:
    """How many slots process `number` (from 0) of `workers` has where nobody hands them out: all of them together, at least one each."""
    return max(1, slots // workers + (number < slots % workers))


class SlotAsk(NamedTuple):
    """What is sent: slots that are kept whatever is answered, and how many are wanted, those included."""

    keep: int
    want: int


class Lease:
    """One replica's slots as this process has them. `held`: set aside for it; `target`: what it should come down to."""

    def __init__(self, where: Address, slots: int, spot: Spot) -> None:
        self.slots = slots
        self.spot = spot
        self.name = blake2b("\n".join(map(str, where)).encode(), digest_size=12).hexdigest()
        self.deployments: list[str] = []
        self.held = self.target = self.told = self.peak = 0
        self.heard_at = float("-inf")  # seconds, monotonic
        self.known = False  # whether `held` is what Valkey has written down
        self.poked = False  # to be asked about at once
        self.sending = False


class Slots:
    """`waiting`: how many requests wait for a deployment; `freed` is called when one of them may find a slot; `wake` asks for a
    message to Valkey soon."""

    def __init__(
        self,
        router: Router,
        now: Callable[[], float],
        waiting: Callable[[str], int],
        freed: Callable[[str], None],
    ) -> None:
        self._router, self.now, self._waiting, self._freed = router, now, waiting, freed
        self.wake: Callable[[], None] = _nobody
        self.shared = False  # whether Valkey hands them out
        self.workers, self.number = 1, 0  # for even parts
        self.leases: dict[Address, Lease] = {}
        self._by_deployment: dict[str, list[Lease]] = {}
        self._by_name: dict[str, Lease] = {}
        self._lost_at: float | None = now()  # when Valkey did not answer any more

    def apply(self, routes: Iterable[Route]) -> None:
        """A new snapshot."""
        known: dict[Address, Lease] = {}
        self._by_deployment = {}
        for route in routes:
            for replica in route.replicas:
                where = address(replica)
                spot = self._router.spot(where)
                if replica.slots is None:
                    spot.most = UNBOUNDED
                    continue
                lease = known.get(where) or self.leases.get(where) or Lease(where, replica.slots, spot)
                if where not in known:
                    known[where], lease.deployments = lease, []
                lease.slots, lease.spot = replica.slots, spot
                if route.deployment_id not in lease.deployments:
                    lease.deployments.append(route.deployment_id)
                    self._by_deployment.setdefault(route.deployment_id, []).append(lease)
        self.leases = known
        self._by_name = {lease.name: lease for lease in known.values()}
        for lease in known.values():
            self._bound(lease)
        if any(not lease.known for lease in known.values()):
            self.wake()

    def short(self, deployment: str) -> None:
        """A request begins to wait for this deployment: Valkey may have a slot for it."""
        if self.shared:
            for lease in self._by_deployment.get(deployment, ()):
                full = lease.spot.in_flight >= lease.spot.most < lease.slots
                if full and (self._waiting(deployment) == 1 or self._wanted(lease) > lease.told):
                    lease.poked = True
                    self.wake()

    def poke(self, name: str) -> None:
        """Another process is short of this replica's slots, or has given some back."""
        lease = self._by_name.get(name)
        if lease is not None:
            lease.poked = True
            self.wake()

    def tick(self, workers: int) -> None:
        """Several times a second. `workers`: processes that share the replicas, as far as is known."""
        self.workers = max(1, workers)
        for lease in self.leases.values():
            lease.peak = max(lease.spot.in_flight, lease.peak * 7 // 8)
            self._bound(lease)

    @property
    def settled(self) -> bool:
        """Whether of all replicas it is known what this process may have."""
        return all(lease.known for lease in self.leases.values())

    @property
    def _away(self) -> bool:
        """Valkey has not answered for longer than what it gave is good for."""
        return self._lost_at is not None and self.now() - self._lost_at > GRACE_SECONDS

    # What goes to Valkey and comes back

    def collect(self, *, tick: bool) -> list[Lease]:
        """Those to ask about now, the most urgent first."""
        now = self.now()
        due = [
            lease
            for lease in self.leases.values()
            if lease.poked or not lease.known or (tick and self._due(lease, now))
        ]
        due.sort(key=lambda lease: (not lease.poked, lease.heard_at))
        return due[:MOST_IN_ONE]

    def _due(self, lease: Lease, now: float) -> bool:
        wanted, most = self._wanted(lease), lease.spot.most
        return (
            wanted > min(most, lease.slots - 1)
            or wanted > lease.told
            or lease.held > max(lease.target, lease.spot.in_flight)
            or 2 * wanted <= lease.told > 0
            or now - lease.heard_at > RENEW_SECONDS
        )

    def _wanted(self, lease: Lease) -> int:
        waiting = sum(map(self._waiting, lease.deployments))
        return min(lease.slots, max(lease.peak, lease.spot.in_flight + waiting))

    def ask(self, lease: Lease) -> SlotAsk:
        """What to send. Until it is answered no more than what is kept is in flight."""
        want, running = self._wanted(lease), lease.spot.in_flight
        keep = max(running, min(lease.spot.most, want)) if lease.known else running
        lease.poked, lease.told, lease.sending = False, want, True
        if not self._away:
            lease.spot.most = keep
        return SlotAsk(keep, want)

    def answered(self, lease: Lease, held: int, target: int) -> None:
        self._lost_at = None
        lease.held, lease.target, lease.known, lease.sending = held, target, True, False
        lease.heard_at = self.now()
        self._bound(lease)

    def unanswered(self, asked: Iterable[Lease], since: float) -> None:
        """Nobody knows whether it arrived, so what was kept is all there is until Valkey answers or the grace is over."""
        for lease in asked:
            if self._lost_at is None:
                self._lost_at = since
            lease.held = lease.target = lease.spot.most
            lease.poked, lease.sending = True, False
            self._bound(lease)

    def _bound(self, lease: Lease) -> None:
        """Says how many may be in flight now."""
        if not self.shared:
            most = even_share(lease.slots, self.workers, self.number)
        elif self._away:
            lease.known = False
            most = even_share(lease.slots, self.workers, self.workers)
        elif lease.sending:
            return
        else:
            most = min(lease.held, lease.target)
        before, lease.spot.most = lease.spot.most, most
        if most > before:
            for deployment in lease.deployments:
                self._freed(deployment)


def _nobody() -> None:
    """Without Valkey there is nobody to ask."""
