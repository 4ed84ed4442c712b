"""What the requests of one grant may take from their limits and budgets without asking each of them, and what they have taken. Pure.

Open for one grant at a time, within one slot of the window, so that a request costs a few sums whatever the number of its limits. Whoever
else looks at one of these limits, budgets or counts closes it first (`Pool.fold`, `Purse.fold`, `FastPath.work`) and finds everything
where it belongs; so both ways always say the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from berth_gateway.pools import Pool
from berth_gateway.purse import LEASE_SECONDS, MARGIN_SECONDS
from berth_gateway.window import SLOT_SECONDS

if TYPE_CHECKING:
    from berth_gateway.grant import Grant

MANY = 1 << 100
_EDGE = 1e-3  # seconds before a bound in which it is looked at anew each time


class Till:
    """`grant`: whose it is now; None: closed. `left`, `tokens`, `money`: requests, tokens and cost that may still be taken before `until`.

    Of the x-ratelimit-* lines: `form`; `rates` is to be added to `left`; `own` and `returned`, or `held` if that is less, to `tokens`.
    """

    __slots__ = (
        "_connected",
        "_left",
        "_money",
        "_now",
        "_tokens",
        "back",
        "ended",
        "form",
        "freed",
        "grant",
        "held",
        "late",
        "left",
        "money",
        "own",
        "rates",
        "returned",
        "shows",
        "slot",
        "spent",
        "tokens",
        "until",
    )

    def __init__(self) -> None:
        self.grant: Grant | None = None
        self.until = self._now = 0.0
        self.slot = -1
        self.left = self.tokens = self.money = self._left = self._tokens = self._money = 0
        self.back = self.ended = self.freed = self.spent = 0
        self.own = self.returned = self.held = self.rates = 0
        self.form = b""
        self.shows = 0  # 1: limits of requests, 2: of tokens, 3: both, 4: several of tokens
        self.late: dict[int, int] = {}  # tokens not used after all, by the earlier slot in which they were taken
        self._connected = False

    def open(self, grant: Grant, now: float, until: float, *, connected: bool, workers: int) -> None:  # noqa: C901 - see `fast`
        """`until`: when the grant ends, on the loop's clock."""
        self.close()
        slot = int(now / SLOT_SECONDS)
        left = tokens = money = MANY
        until -= _EDGE
        end = (slot + 1) * SLOT_SECONDS - 1e-6
        if end < until:
            until = end
        for pool in grant.pools:
            if pool.turn != slot:
                pool.turn_to(slot, now, connected=connected, workers=workers)
        for pool in grant.rates:
            room = pool.most - pool.taken
            if room < left:
                left = room
        for pool in grant.seats:
            room = pool.most - pool.in_use
            if room < left:
                left = room
        for pool in grant.tokens:
            room = pool.most - pool.taken
            if room > pool.limit:
                room = pool.limit
            if room < tokens:
                tokens = room
        for purse in grant.purses:
            room = purse._claim - purse._spent - purse._reserved
            if room < money:
                money = room
            if connected:
                until = min(until, purse.heard_at + LEASE_SECONDS - MARGIN_SECONDS - _EDGE)
                if not purse.usable(now):
                    money = -1
        self.slot, self.until, self._now, self._connected = slot, until, now, connected
        self.left, self.tokens, self.money = left, tokens, money
        self.back = self.ended = self.freed = self.spent = self.returned = 0
        self._show(grant)
        self._left, self._tokens, self._money = self.left, tokens, money
        self.grant = grant
        if not grant.known_to_till:
            grant.known_to_till = True
            for pool in grant.pools:
                pool.till = self
            for purse in grant.purses:
                purse.till = self

    def close(self) -> None:
        grant = self.grant
        if grant is None:
            return
        self.grant = None
        came, tokens, money = self._left - self.left, self._tokens - self.tokens, self._money - self.money
        running, back = came - self.ended, self.back
        for pool in grant.rates:
            pool.taken += came
        for pool in grant.seats:
            pool.taken += came
            pool.in_use += running
        for pool in grant.tokens:
            pool.taken += tokens
            if back:
                pool.back += back
                if not self._connected:
                    pool.most += back
        for purse in grant.purses:
            purse._reserved += money - self.freed
            purse._demand += money
            purse._spent += self.spent
        counts = grant.counts
        counts.arrivals += came
        counts.in_flight += running
        grant.waited[0] += came
        if self.late:
            late, self.late = self.late, {}
            for slot, units in late.items():
                for pool in grant.tokens:
                    pool.give_back(slot, units, self._now)

    # What clients are told

    def _show(self, grant: Grant) -> None:
        rates, tokens = grant.rates, grant.tokens
        request_limit = token_limit = self.shows = 0
        if rates:
            # Which limit will be told of behind the next request, and which behind the last that may be taken
            left = self.left
            limit = last_limit = 1
            least = last_least = 1 << 62
            for pool in rates:
                base, held = pool.own_left + pool.back - pool.taken, pool.held_left - pool.taken
                if held < base:
                    base = held
                if (base - 1) * limit < least * pool.limit:
                    limit, least, first = pool.limit, base - 1, pool
                if (base - left) * last_limit < last_least * pool.limit:
                    last_limit, last_least, last = pool.limit, base - left, pool
            if first is not last and left > 1:
                self.left = 1  # another will be nearer to being used up, so it is looked again
            request_limit, self.rates, self.shows = limit, least + 1 - self.left, 1
        if len(tokens) > 1:
            self.shows |= 4
        elif tokens:
            pool = tokens[0]
            token_limit = pool.limit
            self.own = pool.own_left + pool.back - pool.taken - self.tokens
            self.held = pool.held_left - pool.taken - self.tokens
            self.shows |= 2
        if self.shows:
            self.form = grant.form(request_limit, token_limit)

    def lines(self, left: int, tokens: int) -> bytes:
        """x-ratelimit-* of the limits that are nearest to being used up, where so many requests and tokens may still be taken."""
        grant, shows = self.grant, self.shows
        if grant is None or not shows:
            return b""
        requests = max(0, left + self.rates)
        if shows & 4:
            taken, back = self._tokens - tokens, self.returned
            pool, rest = _tightest(grant.tokens, taken, back)
            form = grant.form(_tightest(grant.rates, 1)[0].limit if shows & 1 else 0, pool.limit)
            return form % ((requests, max(0, rest)) if shows & 1 else max(0, rest))
        rest = max(0, tokens + min(self.own + self.returned, self.held))
        return self.form % ((requests, rest) if shows == 3 else requests if shows == 1 else rest)


def _tightest(pools: list[Pool], taken: int, back: int = 0) -> tuple[Pool, int]:
    """The limit that is nearest to being used up once so much more is taken, and what is left of it then."""
    found, limit, least = pools[0], 1, 1 << 62
    for pool in pools:
        left, held = pool.own_left + pool.back + back - pool.taken - taken, pool.held_left - pool.taken - taken
        if held < left:
            left = held
        if left * limit < least * pool.limit:
            found, limit, least = pool, pool.limit, left
    return found, least
