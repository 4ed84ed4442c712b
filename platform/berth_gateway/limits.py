"""Whether a request may be made now, by all its limits and budgets at once, and what it gives back at its end. Pure.

Everything is taken or nothing is. What a worker holds is decided on at once; otherwise the request waits for one answer of Valkey
(`berth_gateway.leases`), and without it each limit's own policy decides (docs/limits.md).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from berth_gateway import quota
from berth_gateway.contract import Budget, BudgetScope, KeyInfo, Limits, MemberInfo, OrgInfo, Period, Route, UsageEvent
from berth_gateway.cost import cost_of, price_at
from berth_gateway.errors import Refusal
from berth_gateway.permits import Asks, Demand, Permit, Waiting
from berth_gateway.pools import Answer, Kind, Pool
from berth_gateway.purse import MOST_NEEDS, Purse

__all__ = ["Asks", "Demand", "Gate", "Permit", "Waiting"]

TIDY_SECONDS = 60.0
AHEAD_SECONDS = 600.0  # how long before its beginning a period is prepared
MOST_WAITING = 4096
MOST_ROUNDS = 5
MOST_BOUNDS = 10_000


@dataclass(slots=True)
class _Bounds:
    """What limits the requests of one key for one deployment: kept, because most requests have been here before."""

    key: KeyInfo
    org: OrgInfo
    route: Route
    pools: list[Pool]
    budgets: list[Budget]


class Standing(NamedTuple):
    """What limits requests of one key for one deployment, from `since` to before `until` (Unix seconds) or till the gate tells of a
    change."""

    pools: list[Pool]
    budgets: list[Budget]
    purses: list[Purse]
    since: float
    until: float


class Gate:
    """One worker's limits and budgets. `now` monotonic, `wall` Unix seconds; `wake` asks for a message to Valkey soon."""

    def __init__(self, now: Callable[[], float], wall: Callable[[], float]) -> None:
        self.now = now
        self._wall = wall
        self.wake: Callable[[], None] = _nobody
        self.changed: Callable[[], None] = _nobody  # told when pools or purses may be others from now on
        self._connected = False
        self.alone = False  # without any Valkey: local pools are all there is
        self.workers = 1  # gateways that were alive when Valkey was last heard
        self.waiting: deque[Waiting] = deque()
        self._members: dict[str, MemberInfo] = {}
        self._budgets: dict[tuple[str, str], list[Budget]] = {}
        self._pools: dict[str, Pool] = {}
        self._bounds: dict[tuple[str, str], _Bounds] = {}
        self._purses: dict[tuple[str, str], Purse] = {}
        self._tidied_at = 0.0

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

    def apply(self, members: dict[str, MemberInfo], budgets: tuple[Budget, ...]) -> None:
        """A new snapshot. Changed limits hold from the next request on; purses of removed budgets are forgotten."""
        self._members = members
        self._forget_bounds()
        self._budgets = {}
        for budget in budgets:
            self._budgets.setdefault((budget.scope.value, budget.subject_id), []).append(budget)
        known = {budget.budget_id: budget for budget in budgets}
        for name, purse in list(self._purses.items()):
            current = known.get(purse.budget.budget_id)
            if current is None:
                del self._purses[name]
            else:
                purse.budget, purse.limit = current, current.limit_pico
                if self.alone:
                    purse.claim = current.limit_pico // self.workers
        self._prepare()

    def _forget_bounds(self) -> None:
        self._bounds.clear()
        self.changed()

    def _prepare(self) -> None:
        """Purses of current periods and of those about to begin, so that no request has to wait for a purse to join."""
        wall = self._wall()
        for budgets in self._budgets.values():
            for budget in budgets:
                for period in budget.periods:
                    if period.starts_at - AHEAD_SECONDS <= wall < period.ends_at:
                        self._purse(budget, period)

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

    def standing(self, key: KeyInfo, org: OrgInfo, route: Route, at: float) -> Standing:
        """What limits requests of this key for this deployment at that instant (Unix seconds). Raises Refusal when a budget's period
        is not known."""
        bounds = self._bounds_for(key, org, route)
        periods = [_period(budget, at) for budget in bounds.budgets]
        known = [period for period in periods if period is not None]
        if len(known) < len(periods):
            raise quota.closed()
        purses = [self._purse(budget, period) for budget, period in zip(bounds.budgets, known, strict=True)]
        since = max((period.starts_at for period in known), default=float("-inf"))
        until = min((period.ends_at for period in known), default=float("inf"))
        return Standing(bounds.pools, bounds.budgets, purses, since, until)

    def _bounds_of(self, demand: Demand) -> _Bounds:
        return self._bounds_for(demand.key, demand.org, demand.route)

    def _bounds_for(self, key: KeyInfo, org: OrgInfo, route: Route) -> _Bounds:
        name = (key.key_id, route.deployment_id)
        known = self._bounds.get(name)
        if known is None or known.key is not key or known.org is not org or known.route is not route:
            if len(self._bounds) >= MOST_BOUNDS:
                self._bounds.clear()
            known = self._bounds[name] = _Bounds(
                key,
                org,
                route,
                list(self._find_pools(key, org, route)),
                list(self._find_budgets(key, org, route)) if self._budgets else [],
            )
        return known

    def _pools_of(self, demand: Demand) -> list[tuple[Pool, int]]:
        return [
            (pool, demand.tokens_of(pool.limit) if pool.kind is Kind.TOKENS else 1)
            for pool in self._bounds_of(demand).pools
        ]

    def _find_pools(self, key: KeyInfo, org: OrgInfo, route: Route) -> Iterator[Pool]:
        if key.limits is not None:
            yield from self._pools_for("key", key.key_id, key.limits)
        member = self._members.get(key.member_id) if key.member_id is not None and self._members else None
        if member is not None:
            yield from self._pools_for("member", member.member_id, member.limits)
        if org.limits is not None:
            yield from self._pools_for("org", org.org_id, org.limits)
        if route.limits is not None:
            yield from self._pools_for("deployment", route.deployment_id, route.limits)

    def _pools_for(self, scope: str, subject: str, limits: Limits) -> Iterator[Pool]:
        for kind, limit in (
            (Kind.REQUESTS, limits.rpm),
            (Kind.TOKENS, limits.tpm),
            (Kind.SEATS, limits.concurrency),
        ):
            if limit is None:
                continue
            name = f"{kind.value}:{scope}:{subject}"
            pool = self._pools.get(name)
            if pool is None:
                pool = self._pools[name] = Pool(f"{scope}:{subject}", kind, limit)
            pool.fold()
            pool.limit = limit
            yield pool

    def _purses_of(self, demand: Demand) -> list[Purse]:
        """Raises Refusal when a budget's period is not known: the snapshot is too old."""
        if not self._budgets:
            return []
        found = []
        for budget in self._budgets_of(demand):
            period = _period(budget, demand.at)
            if period is None:
                raise quota.closed()
            found.append(self._purse(budget, period))
        return found

    def _budgets_of(self, demand: Demand) -> list[Budget]:
        return self._bounds_of(demand).budgets

    def _find_budgets(self, key: KeyInfo, org: OrgInfo, route: Route) -> Iterator[Budget]:
        for scope, subject in (
            (BudgetScope.KEY, key.key_id),
            (BudgetScope.MEMBER, key.member_id),
            (BudgetScope.ORG, org.org_id),
            (BudgetScope.DEPLOYMENT, route.deployment_id),
        ):
            if subject is not None:
                yield from self._budgets.get((scope.value, subject), ())

    def _purse(self, budget: Budget, period: Period) -> Purse:
        name = (budget.budget_id, period.name)
        purse = self._purses.get(name)
        if purse is None:
            purse = self._purses[name] = Purse(budget, period)
            purse.joined = self.alone
        if self.alone:
            purse.claim = purse.limit // self.workers  # nobody hands out shares: each worker has its part
        return purse

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
            period = _period(budget, demand.at)
            purse_ = self._purses.get((budget.budget_id, period.name)) if period is not None else None
            if purse_ is not None and purse_ not in permit.purses and (purse_.joined or purse_.joining):
                purse_.settle(0, cost)

    # What the link to Valkey asks

    def collect(self, *, tick: bool) -> Asks:
        """What to send now: for requests that wait, and on a tick for what is due."""
        asks, now = Asks(), self.now()
        for waiting in self.waiting:
            demand = waiting.demand
            periods = [(budget, _period(budget, demand.at)) for budget in self._budgets_of(demand)]
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

    @property
    def pools(self) -> list[Pool]:
        return list(self._pools.values())

    @property
    def purses(self) -> list[Purse]:
        return list(self._purses.values())

    def retire(self) -> None:
        """The worker ends: nothing is wanted ahead any more."""
        for pool in self._pools.values():
            pool.retire()
        for purse in self._purses.values():
            purse.retire()

    def unjoined(self) -> list[Purse]:
        """Purses of the current period of which nobody knows yet what this worker has spent."""
        return [purse for purse in self._purses.values() if not purse.joined and not purse.joining]

    def _tidy(self, now: float) -> None:
        if now - self._tidied_at < TIDY_SECONDS:
            return
        self._tidied_at = now
        wall = self._wall()
        self._pools = {name: pool for name, pool in self._pools.items() if not pool.idle}
        self._forget_bounds()
        self._purses = {name: purse for name, purse in self._purses.items() if not purse.over(wall)}
        self._prepare()

    def belongs(self, purse: Purse, event: UsageEvent, member_of: dict[str, str | None]) -> bool:
        """Whether an event counts for a purse. `member_of`: key id -> member id."""
        budget, period = purse.budget, purse.period
        if event.org_id != budget.org_id or not period.starts_at <= event.accepted_at < period.ends_at:
            return False
        subject = {
            BudgetScope.ORG: event.org_id,
            BudgetScope.DEPLOYMENT: event.deployment_id,
            BudgetScope.KEY: event.key_id,
            BudgetScope.MEMBER: member_of.get(event.key_id),
        }[budget.scope]
        return subject == budget.subject_id


def _period(budget: Budget, at: float) -> Period | None:
    for period in budget.periods:
        if period.starts_at <= at < period.ends_at:
            return period
    return None


def _nobody() -> None:
    return
