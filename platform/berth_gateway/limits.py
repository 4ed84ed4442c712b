"""Whether a request may be made now, by all its limits and budgets at once, and what it gives back at its end. Pure.

Everything is taken or nothing is. What a worker holds is decided on at once; otherwise the request waits for one answer of Valkey
(`berth_gateway.leases`), and without it each limit's own policy decides (docs/limits.md).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from berth_gateway import quota
from berth_gateway.contract import UsageEvent
from berth_gateway.cost import cost_of, price_at
from berth_gateway.errors import Refusal
from berth_gateway.holdings import Holdings, nobody, period_of
from berth_gateway.permits import Asks, Demand, Permit, Waiting
from berth_gateway.pools import Answer, Kind, Pool
from berth_gateway.purse import MOST_NEEDS, Purse

__all__ = ["Asks", "Demand", "Gate", "Permit", "Waiting"]

MOST_WAITING = 4096
MOST_ROUNDS = 5


class Gate(Holdings):
    """One worker's limits and budgets. `now` monotonic, `wall` Unix seconds; `wake` asks for a message to Valkey soon."""

    def __init__(self, now: Callable[[], float], wall: Callable[[], float]) -> None:
        super().__init__(now, wall)
        self.wake: Callable[[], None] = nobody
        self._connected = False
        self.waiting: deque[Waiting] = deque()

    @property
    def connected(self) -> bool:
        """Whether Valkey has answered lately."""
        return self._connected

    @connected.setter
    def connected(self, connected: bool) -> None:
        if connected is not self._connected:
            self._connected = connected
            for pool in self._pools.values():
                pool.fold()  # what may be taken is another number now
            self.changed()

    # A request's way in

    def enter(self, demand: Demand, done: Callable[[Permit | Refusal], None]) -> Permit | Waiting:
        """A permit at once, or a wait that ends in `done`. Raises Refusal; then nothing was taken."""
        verdict = self._try(demand)
        if isinstance(verdict, Permit):
            return verdict
        if isinstance(verdict, Refusal):
            raise verdict
        if not self.connected or len(self.waiting) >= MOST_WAITING:
            decided = self._decide_without(demand)
            if isinstance(decided, Refusal):
                raise decided
            return decided
        waiting = Waiting(demand, done)
        self.waiting.append(waiting)
        self.wake()
        return waiting

    def _try(self, demand: Demand) -> Permit | Refusal | None:
        """None: Valkey has to be asked."""
        pools, purses = self._pools_of(demand), self._purses_of(demand)
        if not pools and not purses:
            return Permit(demand, self._bounds_of(demand).budgets)
        now, ask = self.now(), False
        for pool, units in pools:
            if units > pool.limit:
                return quota.too_large(demand.route.name, pool, units, self._lines(pools, now))
        for pool, units in pools:
            answer = pool.check(units, now, connected=self.connected, workers=self.workers)
            if answer is Answer.NO:
                return quota.limit_reached(
                    demand.route.name, pool, units, now, connected=self.connected, lines=self._lines(pools, now)
                )
            ask = ask or answer is Answer.ASK
        for purse in purses:
            answer = purse.check_alone(demand.cost) if self.alone else purse.check(demand.cost, now)
            if answer is Answer.NO:
                return quota.used_up(purse.budget, purse.period)
            ask = ask or answer is Answer.ASK
        return None if ask else self._take(demand, pools, purses, now)

    def _take(self, demand: Demand, pools: list[tuple[Pool, int]], purses: list[Purse], now: float) -> Permit:
        permit = Permit(demand, self._bounds_of(demand).budgets)
        permit.takes = [(pool, pool.take(units, now), units) for pool, units in pools]
        permit.purses = purses
        for purse in purses:
            purse.reserve(demand.cost)
        permit.lines = self._lines(pools, now)
        return permit

    def _decide_without(self, demand: Demand) -> Permit | Refusal:
        """Valkey did not answer in time: rates go on locally, budgets that are not covered by a lease close."""
        connected, self.connected = self.connected, False
        try:
            verdict = self._try(demand)
        finally:
            self.connected = connected
        return quota.closed() if verdict is None else verdict

    def _lines(self, pools: list[tuple[Pool, int]], now: float) -> bytes:
        return quota.lines([pool for pool, _ in pools], now, connected=self.connected)

    # Its way out

    def cancel(self, permit: Permit) -> None:
        """The request was not made after all."""
        if not permit.ended:
            permit.ended = True
            now = self.now()
            for pool, slot, units in permit.takes:
                pool.give_back(slot, units, now)
            for purse in permit.purses:
                purse.settle(permit.demand.cost, 0)

    def settle(self, permit: Permit, event: UsageEvent) -> None:
        """After the last byte: what was really used stays used, the rest is free again."""
        if permit.ended:
            return
        permit.ended = True
        now, demand = self.now(), permit.demand
        tokens = event.prompt_tokens + event.completion_tokens
        for pool, slot, units in permit.takes:
            if pool.kind is Kind.TOKENS:
                pool.give_back(slot, units - tokens, now)
            elif pool.kind is Kind.SEATS:
                pool.give_back(slot, units, now)
        if not permit.purses and not self._budgets:
            return
        price = price_at(demand.route.prices, event.accepted_at)
        cost = cost_of(event, price) if price is not None else 0
        for purse in permit.purses:
            purse.settle(demand.cost, cost)
        budgets = self._budgets_of(demand)
        if budgets is permit.budgets:
            return
        for budget in budgets:
            # A budget that is younger than the request: what it cost counts all the same.
            period = period_of(budget, demand.at)
            purse_ = self._purses.get((budget.budget_id, period.name)) if period is not None else None
            if purse_ is not None and purse_ not in permit.purses and (purse_.joined or purse_.joining):
                purse_.settle(0, cost)

    # What the link to Valkey asks

    def collect(self, *, tick: bool) -> Asks:
        """What to send now: for requests that wait, and on a tick for what is due."""
        asks, now = Asks(), self.now()
        for waiting in self.waiting:
            demand = waiting.demand
            periods = [(budget, period_of(budget, demand.at)) for budget in self._budgets_of(demand)]
            purses = [self._purse(budget, period) for budget, period in periods if period is not None]
            waiting.asked = all(len(asks.purses.get(purse, ())) < MOST_NEEDS for purse in purses)
            if not waiting.asked:
                continue  # the message is full; its turn comes with the next
            for pool, units in self._pools_of(demand):
                asks.pools.setdefault(pool, []).append(units)
            for purse in purses:
                if purse.joined:
                    asks.purses.setdefault(purse, []).append(demand.cost)
        # What is held of a pool that nobody is short of stays as it is.
        asks.pools = {p: u for p, u in asks.pools.items() if sum(u) > p.spare}
        asks.purses = {p: c for p, c in asks.purses.items() if sum(c) > p.free or not p.usable(now)}
        if tick:
            for pool in self._pools.values():
                if pool.tick(now):
                    asks.pools.setdefault(pool, [])
            for each in self._purses.values():
                if each.tick(now):
                    asks.purses.setdefault(each, [])
            self._tidy(now)
        return asks

    def answered(self) -> None:
        """All that was asked has been answered: who waited for it is decided on, in order."""
        self.connected = True
        queue, self.waiting = self.waiting, deque()
        for waiting in queue:
            verdict = self._try_again(waiting) if waiting.asked else None
            if verdict is None:
                waiting.asked = False
                self.waiting.append(waiting)
            elif not waiting.cancelled:
                waiting.done(verdict)
            elif isinstance(verdict, Permit):
                self.cancel(verdict)

    def _try_again(self, waiting: Waiting) -> Permit | Refusal | None:
        """None: there is more to be had than came, so it is asked for once more."""
        demand = waiting.demand
        try:
            verdict = self._try(demand)
        except Refusal as refusal:
            return refusal
        if verdict is not None:
            return verdict
        now = self.now()
        waiting.rounds += 1
        again = waiting.rounds < MOST_ROUNDS
        pools, purses = list(self._pools_of(demand)), self._purses_of(demand)
        for pool, units in pools:
            if pool.spare < units and not (again and pool.free + pool.spare >= units):
                return quota.limit_reached(
                    demand.route.name, pool, units, now, connected=True, lines=self._lines(pools, now)
                )
        for purse in purses:
            if not purse.usable(now) or now < purse.wait_until:
                return quota.closed()
            if purse.left + max(0, purse.free) < demand.cost:
                return quota.used_up(purse.budget, purse.period)
        return None if again else quota.closed()

    def unanswered(self) -> None:
        """Valkey did not answer: whoever waits is decided on without it."""
        self.connected = False
        waiting, self.waiting = list(self.waiting), deque()
        for each in waiting:
            if not each.cancelled:
                try:
                    each.done(self._decide_without(each.demand))
                except Refusal as refusal:
                    each.done(refusal)
