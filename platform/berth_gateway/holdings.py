"""Which pools and purses limit which requests, and all that one worker has of them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from berth_gateway import quota
from berth_gateway.contract import Budget, BudgetScope, KeyInfo, Limits, MemberInfo, OrgInfo, Period, Route, UsageEvent
from berth_gateway.permits import Demand
from berth_gateway.pools import Kind, Pool
from berth_gateway.purse import Purse

TIDY_SECONDS = 60.0
AHEAD_SECONDS = 600.0  # how long before its beginning a period is prepared
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


class Holdings:
    """One worker's pools and purses. `now` monotonic, `wall` Unix seconds."""

    def __init__(self, now: Callable[[], float], wall: Callable[[], float]) -> None:
        self.now = now
        self._wall = wall
        self.changed: Callable[[], None] = nobody  # told when pools or purses may be others from now on
        self.alone = False  # without any Valkey: local pools are all there is
        self.workers = 1  # gateways that were alive when Valkey was last heard
        self._members: dict[str, MemberInfo] = {}
        self._budgets: dict[tuple[str, str], list[Budget]] = {}
        self._pools: dict[str, Pool] = {}
        self._bounds: dict[tuple[str, str], _Bounds] = {}
        self._purses: dict[tuple[str, str], Purse] = {}
        self._tidied_at = 0.0

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

    def standing(self, key: KeyInfo, org: OrgInfo, route: Route, at: float) -> Standing:
        """What limits requests of this key for this deployment at that instant (Unix seconds). Raises Refusal when a budget's period
        is not known."""
        bounds = self._bounds_for(key, org, route)
        periods = [period_of(budget, at) for budget in bounds.budgets]
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
            period = period_of(budget, demand.at)
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

    @property
    def pools(self) -> list[Pool]:
        for pool in self._pools.values():
            pool.fold()
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


def period_of(budget: Budget, at: float) -> Period | None:
    for period in budget.periods:
        if period.starts_at <= at < period.ends_at:
            return period
    return None


def nobody() -> None:
    return
