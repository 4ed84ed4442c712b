"""A worker's share of a budget in one period. Pure; amounts are whole 10^-12 of the currency, time in monotonic seconds.

`claim` is what Valkey has set aside for this worker from the beginning of the period, what it spent included. The sum of all
workers' claims never exceeds the limit, and a worker promises no more than its claim: so the sum of what is spent does not either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from berth_gateway.contract import Budget, Period
from berth_gateway.pools import Answer

if TYPE_CHECKING:
    from berth_gateway.till import Till

LEASE_SECONDS = 20.0  # a worker that has not been heard for so long uses nothing that is not in use already
MARGIN_SECONDS = 2.0  # it stops this much earlier than others stop counting on it
RENEW_SECONDS = 3.0
SETTLING_SECONDS = 4.0  # after Valkey lost what it knew: every worker that lives has been heard by then
KNOWN_SECONDS = 0.25
MOST_NEEDS = 200  # requests asked for in one message
STEP_SHARE = 8  # money is fetched ahead only while more than so many times the pace of all workers is left


class PurseAsk(NamedTuple):
    """`keep`: the claim without what is given back; `all`: with it. `needs`: worst costs of waiting requests, each granted whole or
    not at all. `ahead`: what this worker likes to hold in advance; `more`: what it would have to be given for that."""

    keep: int
    all: int
    needs: tuple[int, ...]
    ahead: int
    more: int


class PurseReply(NamedTuple):
    claim: int
    left: int
    roomy: bool  # enough is left for fetching ahead


class _Counted:
    """A number of a purse that usual requests count elsewhere for a moment (`till`): whoever asks for it closes that first."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"_{name}"

    def __get__(self, purse: Purse, owner: type | None = None) -> int:
        if purse.till is not None:
            purse.till.close()
        found: int = getattr(purse, self._name)
        return found

    def __set__(self, purse: Purse, value: int) -> None:
        if purse.till is not None:
            purse.till.close()
        setattr(purse, self._name, value)


class Purse:
    """`reserved`: the worst cost of what runs. `demand`: what was reserved since the last tick. `till`: counts for it at the moment."""

    claim, spent, reserved, demand = _Counted(), _Counted(), _Counted(), _Counted()
    _claim: int
    _spent: int
    _reserved: int
    _demand: int

    def __init__(self, budget: Budget, period: Period) -> None:
        self.till: Till | None = None
        self.budget = budget
        self.period = period
        self.limit = budget.limit_pico
        self.claim = 0
        self.spent = 0
        self.reserved = 0
        self.left = 0  # what nobody had claimed when Valkey was last heard
        self.joined = False  # what this worker spent before it knew the budget is known
        self.joining = False
        self.roomy = False
        self.heard_at = float("-inf")
        self.wait_until = float("-inf")  # Valkey grants nothing before, because it lost what it knew
        self.demand = 0
        self._pace = 0
        self._all = 0  # the claim before what the last message gave back

    @property
    def name(self) -> str:
        return f"{self.budget.budget_id}:{self.period.name}"

    @property
    def free(self) -> int:
        return self.claim - self.spent - self.reserved

    # What requests ask

    def usable(self, now: float) -> bool:
        """Whether the lease may be used: the worker has joined and has been heard lately."""
        return self.joined and now - self.heard_at < LEASE_SECONDS - MARGIN_SECONDS

    def check(self, cost: int, now: float) -> Answer:
        """Whether a request of at most this cost may go. NO: the budget is used up. ASK: more may be had, or nothing is known."""
        if not cost:
            return Answer.YES
        if self.usable(now):
            if self.free >= cost:
                return Answer.YES
            if now - self.heard_at < KNOWN_SECONDS and self.left + max(0, self.free) < cost and now >= self.wait_until:
                return Answer.NO
        return Answer.ASK

    def check_alone(self, cost: int) -> Answer:
        """Without Valkey there is nobody to ask: what this worker holds is its part."""
        return Answer.YES if self.free >= cost else Answer.NO

    def reserve(self, cost: int) -> None:
        self.reserved += cost
        self.demand += cost

    def settle(self, reserved: int, cost: int) -> None:
        """The end of a request for which `reserved` was set aside (0: it began before this budget was known)."""
        self.reserved -= reserved
        self.spent += cost

    # What goes to Valkey and comes back

    def tick(self, now: float) -> bool:
        """Every tenth of a second. Whether there is something to give back, fetch ahead or renew."""
        self._pace = max(self.demand, (self._pace * 7) // 8)
        self.demand = 0
        if not self.joined:
            return False
        if now - self.heard_at > RENEW_SECONDS or self.free < 0:
            return True
        if now < self.wait_until:
            return False  # nothing can be had, so nothing is given back
        if not self.roomy:
            return self.free > 0
        return self.free > 4 * self._ahead + 1 or self.free < self._ahead // 2

    def retire(self) -> None:
        """Wants nothing ahead any more."""
        self.demand = self._pace = 0

    @property
    def _ahead(self) -> int:
        return self._pace * 10  # a second's

    def ask(self, waiting: Sequence[int]) -> PurseAsk:
        """What to send. From here on only what is kept may be used, so that a lost answer does no harm."""
        ahead = self._ahead
        spare = max(0, self.free)
        kept = min(spare, ahead) if self.roomy and not waiting else 0
        self.claim = self.spent + self.reserved + kept
        self._all = self.claim - kept + spare
        return PurseAsk(self.claim, self._all, tuple(waiting), ahead, max(0, ahead - kept))

    def answered(self, reply: PurseReply, now: float) -> None:
        self.claim = reply.claim
        self.left = max(0, reply.left)
        self.roomy = reply.roomy
        self.heard_at = now
        self.wait_until = float("-inf")

    def told_to_wait(self, claim: int, seconds: float, now: float) -> None:
        """Valkey has lost what it knew and waits for all workers to say what they hold. What is held stays good."""
        self.claim = claim
        self.heard_at = now
        self.left = 0
        self.roomy = False
        self.wait_until = now + seconds

    def not_written(self, now: float) -> None:
        """Valkey knows no such budget: it is new, or was lost. Until the control plane has written it down, the lease runs on."""
        self.claim = max(self.claim, self._all)
        self.left = 0
        self.wait_until = now + 1.0

    def over(self, wall: float) -> bool:
        return wall >= self.period.ends_at and not self.reserved
