"""Shares of limits and budgets, from and to Valkey: one message under way at a time, everything due in it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from berth_gateway.contract import BUDGET_PREFIX, GATEWAYS_KEY, LIMIT_PREFIX, BudgetScope, UsageEvent
from berth_gateway.cost import cost_of, price_at
from berth_gateway.limits import Asks, Gate
from berth_gateway.pools import Pool, PoolReply
from berth_gateway.purse import LEASE_SECONDS, SETTLING_SECONDS, Purse, PurseReply
from berth_gateway.scripts import CLAIM, SHARE
from berth_gateway.snapshot import View

TICK_SECONDS = 0.1
ANSWER_SECONDS = (
    0.5  # how long a request waits for Valkey; deciding without it sooner would let through what others have used
)
PROBE_SECONDS = 1.0
LOOP_PASSES = 8
WORKERS_SECONDS = 5.0
MOST_IN_ONE = 128  # pools or purses in one message beside those that requests wait for
READ_EVENTS = 2000
LOST = (RedisError, OSError, TimeoutError)


class Events(Protocol):
    """The worker's spool, as joining a budget needs it."""

    durable: int

    @property
    def next_position(self) -> int: ...

    @property
    def first_position(self) -> int: ...

    @property
    def late(self) -> int: ...

    def read(self, start: int, limit: int) -> tuple[list[UsageEvent], int]: ...


class Lessor:
    """Keeps a gate's pools and purses filled. `failed` is told when contact is lost."""

    def __init__(
        self,
        gate: Gate,
        name: str,
        redis_url: str,
        events: Events,
        view: Callable[[], View | None],
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        self._gate = gate
        self._name = name
        self._events = events
        self._view = view
        self._failed = failed
        self._valkey = Redis.from_url(
            redis_url,
            socket_timeout=2 * PROBE_SECONDS,  # longer than anybody waits, so that who was stopped finds the answer
            socket_connect_timeout=PROBE_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )
        self._wake = asyncio.Event()
        self._sequence = time.time_ns() // 1000
        self._clock: float | None = None  # seconds by which Valkey's clock is ahead of the gate's, never too few
        self._scripts: dict[str, str] = {}
        self._counted_at = float("-inf")
        gate.wake = self._wake.set

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._exchange())
            group.create_task(self._join_all())

    async def close(self) -> None:
        """Gives back what is not used."""
        asks = Asks({pool: [] for pool in self._gate.pools}, {p: [] for p in self._gate.purses if p.joined})
        self._gate.retire()
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await self._send(asks)
        except LOST:
            self._failed()  # the next process of this name, or time, gives it back
        await self._valkey.aclose()

    # One message after the other

    async def _exchange(self) -> None:
        ticked = 0.0
        while True:
            pause = max(0.0, ticked + TICK_SECONDS - self._gate.now())
            if not self._gate.waiting and pause:
                try:
                    async with asyncio.timeout(pause):
                        await self._wake.wait()
                except TimeoutError:
                    pass
            self._wake.clear()
            tick = self._gate.now() >= ticked + TICK_SECONDS
            if tick:
                ticked = self._gate.now()
            await self.turn(tick=tick)

    async def turn(self, *, tick: bool) -> None:
        """Sends what is due and takes in the answers."""
        gate = self._gate
        asks = self._bounded(gate.collect(tick=tick))
        if not asks and gate.connected and not any(each.asked for each in gate.waiting):
            return
        sending = asyncio.ensure_future(self._send(asks))
        try:
            await self._patiently(sending)
            sending.result()
        except LOST:
            for pool in asks.pools:
                pool.unanswered(gate.now())
            gate.unanswered()
            self._failed()
            await asyncio.sleep(TICK_SECONDS)
        finally:
            sending.cancel()

    async def _patiently(self, sending: asyncio.Future[None]) -> None:
        """Requests wait for a short while; the message itself may take longer, so that its answer is not lost. Raises TimeoutError."""
        await asyncio.wait({sending}, timeout=ANSWER_SECONDS if self._gate.connected else PROBE_SECONDS)
        for _ in range(LOOP_PASSES):
            # If this process was what was slow, the answer is here and only has to be read.
            if sending.done():
                return
            await asyncio.sleep(0)
        self._gate.unanswered()
        self._failed()
        await asyncio.wait({sending}, timeout=PROBE_SECONDS)
        if not sending.done():
            raise TimeoutError

    @staticmethod
    def _bounded(asks: Asks) -> Asks:
        """What requests wait for, and as much of the rest as one message should hold; what is left out is due again at the next tick."""

        def some(due: dict[Any, list[int]]) -> dict[Any, list[int]]:
            kept = {each: units for each, units in due.items() if units}
            for each in due:
                if len(kept) >= MOST_IN_ONE:
                    break
                kept.setdefault(each, [])
            return kept

        return Asks(some(asks.pools), some(asks.purses))

    async def _send(self, asks: Asks) -> None:
        if not self._scripts:
            self._scripts = {text: await self._valkey.script_load(text) for text in (SHARE, CLAIM)}
        pipe = self._valkey.pipeline(transaction=False)
        now = sent = self._gate.now()
        pools, purses = list(asks.pools), list(asks.purses)
        for pool in pools:
            self._ask_share(pipe, pool, asks.pools[pool], now)
        for purse in purses:
            self._ask_claim(pipe, purse, asks.purses[purse], now)
        count = now - self._counted_at > WORKERS_SECONDS or not (pools or purses)
        if count:
            pipe.hlen(GATEWAYS_KEY)
        answers = await pipe.execute(raise_on_error=False)
        fault = next((each for each in answers if isinstance(each, Exception)), None)
        if fault is not None:
            if isinstance(fault, NoScriptError):
                self._scripts = {}  # Valkey was restarted
            raise fault
        now = self._gate.now()
        if count:
            self._counted_at = now
            self._gate.workers = max(1, answers.pop())
        for pool, answer in zip(pools, answers, strict=False):
            reply = PoolReply(*map(int, answer))
            self._set_clock(reply.now_ms / 1000, sent, now)
            pool.answered(reply, now)
        for purse, answer in zip(purses, answers[len(pools) :], strict=True):
            self._take_claim(purse, answer, now)
        # At once, before a newcomer can take what was fetched for those who waited.
        self._gate.answered()

    def _set_clock(self, theirs: float, sent: float, came: float) -> None:
        """Valkey's clock said `theirs` at some moment between those two."""
        most, least = theirs - sent, theirs - came
        self._clock = most if self._clock is None else max(least, min(most, self._clock))

    def _ask_share(self, pipe: Any, pool: Pool, waiting: list[int], now: float) -> None:
        ask = pool.ask(waiting, now, self._clock)
        tag = f"{LIMIT_PREFIX}{{{pool.name}}}"
        kind = "seats" if pool.kind.value == "seats" else "rate"
        uses = [number for pair in ask.uses for number in pair]
        pipe.evalsha(
            self._scripts[SHARE], 2, tag, f"{tag}:workers",
            self._name, kind, pool.limit, ask.keep, ask.need, ask.want, *uses,
        )  # fmt: skip

    def _ask_claim(self, pipe: Any, purse: Purse, waiting: list[int], now: float) -> None:
        ask = purse.ask(waiting)
        self._sequence += 1
        pipe.evalsha(
            self._scripts[CLAIM], 1, BUDGET_PREFIX + purse.name,
            self._name, self._sequence, purse.limit, f"{purse.budget.version:020}", ask.keep, ask.all, ask.ahead, ask.more,
            int(SETTLING_SECONDS * 1000), int(LEASE_SECONDS * 1000), *ask.needs,
        )  # fmt: skip

    def _take_claim(self, purse: Purse, answer: list[Any], now: float) -> None:
        said = answer[0]
        if said == b"ok":
            purse.answered(PurseReply(int(answer[1]), int(answer[2]), bool(answer[3])), now)
        elif said == b"wait":
            purse.told_to_wait(int(answer[2]), int(answer[1]) / 1000, now)
        elif said == b"stale":
            self._sequence = max(self._sequence, int(answer[1]))
        else:
            purse.not_written(now)

    # Learning what was spent before

    async def _join_all(self) -> None:
        while True:
            for purse in self._gate.unjoined():
                try:
                    await self.join(purse)
                except LOST:
                    self._failed()
                    break
                finally:
                    purse.joining = purse.joining and purse.joined
            await asyncio.sleep(TICK_SECONDS)

    async def joined_all(self) -> None:
        """Until what was spent of each budget is known."""
        while any(not purse.joined for purse in self._gate.purses):  # noqa: ASYNC110 - the gate knows no event loop
            await asyncio.sleep(TICK_SECONDS / 2)

    async def join(self, purse: Purse) -> bool:
        """What this worker has spent of a budget: what the ledger says up to a position of the spool, and the events behind it.
        False: not now. While it runs, requests that end are counted by the gate."""
        limit, ledger = await self._valkey.hmget(BUDGET_PREFIX + purse.name, ["limit", f"l:{self._name}"])
        if limit is None:
            return False
        amount, position = map(int, ledger.split()) if ledger is not None else (0, 0)
        events = self._events
        if position < events.first_position or events.late:
            return False
        purse.joining, purse.spent = True, 0
        end = events.next_position
        while events.durable < end:  # noqa: ASYNC110 - the spool knows no event loop
            await asyncio.sleep(TICK_SECONDS / 4)
        spent = amount
        at = position
        while at < end:
            found, after = await asyncio.to_thread(events.read, at, READ_EVENTS)
            if after <= at:
                break
            # A member's keys are found by looking through all of them, so not while requests wait for this thread.
            spent += await asyncio.to_thread(spent_in, self._gate, purse, found[: end - at], self._view())
            at = after
        if position < events.first_position:
            return False  # trimmed meanwhile; the ledger knows more by now
        purse.spent += spent
        purse.claim = purse.spent + purse.reserved
        purse.joined = True
        return True


def spent_in(gate: Gate, purse: Purse, events: list[UsageEvent], view: View | None) -> int:
    """What these events have cost, as far as they count for the purse."""
    if view is None:
        return 0
    members = _members(purse, events, view)
    prices = {route.deployment_id: route.prices for route in view.routes.values()}
    total = 0
    for event in events:
        if gate.belongs(purse, event, members):
            price = price_at(prices.get(event.deployment_id, ()), event.accepted_at)
            total += cost_of(event, price) if price is not None else 0
    return total


def _members(purse: Purse, events: list[UsageEvent], view: View) -> dict[str, str | None]:
    """Whose the keys of these events are, where that is asked for: key id -> member id. Keys are many, so only those are kept."""
    if purse.budget.scope is not BudgetScope.MEMBER:
        return {}
    wanted = {event.key_id for event in events if event.org_id == purse.budget.org_id}
    return {key.key_id: key.member_id for key in view.keys.values() if key.key_id in wanted} if wanted else {}


def recall(gate: Gate, events: Events, view: View | None) -> None:
    """For a gateway alone, at its start: what it spent before stands in its own spool, which nobody trims."""
    at, end = events.first_position, events.next_position
    while at < end:
        found, after = events.read(at, READ_EVENTS)
        if after <= at:
            break
        for purse in gate.purses:
            purse.spent += spent_in(gate, purse, found, view)
        at = after
