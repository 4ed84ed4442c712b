"""Workers that share limits and budgets through a real Valkey, in virtual time."""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_left
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from berth.host.valkey import Valkey
from berth_gateway.errors import Refusal
from berth_gateway.limits import Permit
from tests.gateway.fleet import Fleet, Log, Worker

WORKERS = 8


@pytest.fixture
def fleet(valkey: redis.Redis, valkey_server: Valkey, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    return Fleet(valkey, valkey_server.url, monkeypatch)


def admitted(workers: list[Worker]) -> list[Permit]:
    return [each for worker in workers for each in worker.done if isinstance(each, Permit)]


def refused(workers: list[Worker]) -> list[Refusal]:
    return [each for worker in workers for each in worker.done if isinstance(each, Refusal)]


# --- rates


@pytest.mark.threat("G10")
@pytest.mark.parametrize(("kind", "limit", "size"), [("rpm", 1200, 1), ("tpm", 60_000, 50)])
def test_eight_workers_share_a_minute_within_one_percent(fleet: Fleet, kind: str, limit: int, size: int) -> None:
    """Asked for three times what is allowed, unevenly: no minute sees more than the limit, and two see no less than 99 % of it."""
    fleet.limit(**{kind: limit})
    chance = random.Random(7)
    units = limit // size
    used: list[float] = []

    async def run() -> None:
        workers = [Worker(fleet, f"w{n}") for n in range(WORKERS)]
        while fleet.seconds < 120:
            for worker in workers:
                for _ in range(chance.randint(0, 3)):
                    worker.ask(tokens=size)
            chance.shuffle(workers)
            for worker in workers:
                await worker.turn()
                used.extend(fleet.seconds for each in worker.done if isinstance(each, Permit))
                worker.running.clear()
                worker.done.clear()
            fleet.pass_time(0.2)
        for worker in workers:
            await worker.close()

    asyncio.run(run())
    for number, start in enumerate(used):
        assert bisect_left(used, start + 60) - number <= units, f"the minute from {start}"
    assert bisect_left(used, 60) >= units * 0.99 and len(used) >= 2 * units * 0.99


def test_a_cold_limit_is_exact_too(fleet: Fleet) -> None:
    """Ten requests a minute, one call to each of eight workers, again and again: ten pass."""
    fleet.limit(rpm=10)

    async def run() -> list[Worker]:
        workers = [Worker(fleet, f"w{n}") for n in range(WORKERS)]
        for _ in range(4):
            for worker in workers:
                worker.ask()
            await asyncio.gather(*(worker.turn() for worker in workers))
        for worker in workers:
            await worker.close()
        return workers

    workers = asyncio.run(run())
    assert len(admitted(workers)) == 10 and len(refused(workers)) == 22
    assert all(b"retry-after: 60\r\n" in each.headers() for each in refused(workers))


def test_seats_are_shared_and_those_of_a_dead_worker_come_free(fleet: Fleet) -> None:
    fleet.limit(concurrency=5)

    async def run() -> None:
        a, b = Worker(fleet, "a"), Worker(fleet, "b")
        for _ in range(4):
            a.ask()
            b.ask()
        await a.turn()
        await b.turn()
        assert (len(a.running), len(b.running)) == (4, 1)
        a.end(a.running[0], 0)
        for _ in range(10):
            fleet.pass_time(0.1)
            await a.turn()
        b.ask()
        await b.turn()
        assert len(b.running) == 2
        for _ in range(12):  # a is gone; b goes on
            fleet.pass_time(1)
            await b.turn()
        for _ in range(4):
            b.ask()
        await b.turn()
        assert len(b.running) == 5
        await a.close()
        await b.close()

    asyncio.run(run())


def test_without_valkey_what_each_worker_had_becomes_its_fair_share(fleet: Fleet) -> None:
    """Never more than the limit together, and within a minute all of it."""
    fleet.limit(rpm=40)

    async def run() -> tuple[int, list[int]]:
        workers = [Worker(fleet, f"w{n}") for n in range(4)]
        for worker in workers:
            worker.ask()
        for _ in range(2):
            for worker in workers:
                await worker.turn()
            fleet.pass_time(0.3)
            for worker in workers:
                worker.ask()

        def all_ask() -> None:
            for worker in workers:
                worker.gate.unanswered()
                for _ in range(30):
                    worker.ask()

        all_ask()
        first = len(admitted(workers))
        for worker in workers:
            worker.done.clear()
        for _ in range(7):
            fleet.pass_time(10)
            all_ask()
        for worker in workers:
            await worker.close()
        return first, [len(admitted([worker])) for worker in workers]

    first, then = asyncio.run(run())
    assert 20 <= first <= 40
    assert then == [10, 10, 10, 10]


# --- budgets


@pytest.mark.threat("G10")
@pytest.mark.parametrize("extra", [0, 99])
def test_200_calls_at_once_on_a_budget_for_10(fleet: Fleet, extra: int) -> None:
    """Two workers, a hundred calls each: ten fit exactly, whatever is left over."""
    fleet.budget(1000 + extra)
    fleet.control_plane({})

    async def run() -> list[Worker]:
        workers = [Worker(fleet, "a"), Worker(fleet, "b")]
        for worker in workers:
            await worker.turn()
            for _ in range(100):
                worker.ask(cost=100)
        for _ in range(4):
            await asyncio.gather(*(worker.turn(tick=False) for worker in workers))
        for worker in workers:
            await worker.close()
        return workers

    workers = asyncio.run(run())
    assert len(admitted(workers)) == 10 and len(refused(workers)) == 190
    assert {each.code for each in refused(workers)} == {"insufficient_quota"}
    assert all(b"x-should-retry: false" in each.headers() for each in refused(workers))
    assert int(fleet.hash()[b"left"]) == extra


def test_a_large_budget_is_fetched_ahead_so_that_nobody_waits(fleet: Fleet) -> None:
    fleet.budget(10**15)
    fleet.control_plane({})

    async def run() -> int:
        worker, at_once = Worker(fleet, "a"), 0
        for step in range(100):
            answer = worker.ask(cost=1000)
            at_once += step > 30 and isinstance(answer, Permit)
            await worker.turn(tick=True)
            fleet.pass_time(0.1)
        await worker.close()
        return at_once

    assert asyncio.run(run()) == 69


def test_idle_money_goes_back(fleet: Fleet) -> None:
    fleet.budget(10**9)
    fleet.control_plane({})

    async def run() -> None:
        worker = Worker(fleet, "a")
        for _ in range(30):
            worker.ask(cost=10_000)
            await worker.turn()
            fleet.pass_time(0.1)
        for permit in list(worker.running):
            worker.end(permit, 7_000)
        for _ in range(200):
            await worker.turn()
            fleet.pass_time(0.1)
        await worker.close()

    asyncio.run(run())
    assert int(fleet.hash()[b"c:a"]) == 30 * 7_000
    assert int(fleet.hash()[b"left"]) == 10**9 - 30 * 7_000


def test_without_valkey_the_lease_runs_out_and_then_the_budget_is_closed(fleet: Fleet) -> None:
    fleet.budget(10**12)
    fleet.control_plane({})

    async def run() -> None:
        worker = Worker(fleet, "a")
        for _ in range(20):
            worker.ask(cost=10)
            await worker.turn()
            fleet.pass_time(0.1)
        worker.gate.unanswered()
        assert isinstance(worker.ask(cost=10), Permit), "what is leased is good without Valkey"
        refusal = worker.ask(cost=10**11)
        assert isinstance(refusal, Refusal)
        assert (refusal.status, refusal.code) == (503, "service_unavailable") and b"retry-after: 1" in refusal.headers()
        fleet.pass_time(25)
        refusal = worker.ask(cost=10)
        assert isinstance(refusal, Refusal) and refusal.status == 503
        await worker.turn()
        worker.ask(cost=10)
        await worker.turn()
        assert isinstance(worker.done[-1], Permit), "and all is well again"
        await worker.close()

    asyncio.run(run())


@pytest.mark.threat("G10")
def test_after_a_loss_nothing_is_granted_before_everybody_was_heard(fleet: Fleet) -> None:
    """Granted since the control plane last looked, then Valkey loses everything: only the worker itself knows."""
    fleet.budget(1000)
    fleet.control_plane({})

    async def run() -> None:
        a, b = Worker(fleet, "a"), Worker(fleet, "b")
        a.ask(cost=600)
        await a.turn()
        await b.turn()
        fleet.lose_valkey()
        fleet.control_plane({})
        fleet.pass_time(0.3)  # what b has just heard is old
        b.ask(cost=600)
        await b.turn()
        refusal = b.done[-1]
        assert isinstance(refusal, Refusal) and (refusal.status, refusal.code) == (503, "service_unavailable")
        await a.turn()  # as it does every three seconds
        fleet.pass_time(4.5)
        b.ask(cost=600)
        await b.turn()
        refusal = b.done[-1]
        assert isinstance(refusal, Refusal) and refusal.code == "insufficient_quota"
        b.ask(cost=400)
        await b.turn()
        assert isinstance(b.done[-1], Permit)
        await a.close()
        await b.close()

    asyncio.run(run())


def test_a_lowered_limit_holds_at_once_and_a_raised_one_too(fleet: Fleet) -> None:
    fleet.budget(1000)
    fleet.control_plane({})

    async def run() -> None:
        worker = Worker(fleet, "a")

        async def ask(cost: int) -> Any:
            worker.ask(cost=cost)
            await worker.turn()
            fleet.pass_time(0.3)
            return worker.done[-1]

        assert isinstance(await ask(600), Permit)
        for limit, fits in ((500, False), (700, True), (650, False), (10_000, True)):
            fleet.budgets[0] = replace(fleet.budgets[0], limit_pico=limit, version=fleet.budgets[0].version + 1)
            worker.gate.apply({}, tuple(fleet.budgets))
            await worker.turn()
            assert isinstance(await ask(50), Permit) is fits, limit
        await worker.close()

    asyncio.run(run())


# --- budgets, whatever happens


class Books:
    """What the control plane has of each worker: amount and position."""

    def __init__(self) -> None:
        self.ledger: dict[str, tuple[int, int]] = {}

    def ingest(self, worker: Worker, *, trim: bool) -> None:
        log = worker.log
        _, position = self.ledger.get(worker.name, (0, 0))
        amount = sum(event.completion_tokens for event in log.events)
        self.ledger[worker.name] = (amount, max(position, len(log.events)))
        if trim:
            log.trimmed = len(log.events)


NAMES = ("a", "b", "c")
step = st.tuples(
    st.sampled_from(
        ["ask", "ask", "ask", "end", "end", "turn", "turn", "crash", "restart", "lose", "look", "ingest", "wait"]
    ),
    st.integers(0, 2),
    st.integers(1, 300),
)


@pytest.mark.threat("G10")
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(step, max_size=40), st.integers(300, 2000))
def test_a_budget_holds_through_crashes_lost_valkey_and_late_settling(
    fleet: Fleet, steps: list[tuple[str, int, int]], limit: int
) -> None:
    """What was spent and what running requests may still cost never exceeds the limit, and in the end the books agree."""
    fleet.lose_valkey()
    fleet.budgets.clear()
    fleet.budget(limit)
    fleet.seeded, fleet.mirror = False, {}
    asyncio.run(_live(fleet, steps, limit))


async def _live(fleet: Fleet, steps: list[tuple[str, int, int]], limit: int) -> None:
    life = Life(fleet)
    for act, which, amount in steps:
        fleet.pass_time(0.05)
        name = NAMES[which]
        if act in ("look", "wait", "lose"):
            await life.happen(act, amount)
        elif act == "restart" and name not in life.alive:
            await life.restart(name)
        elif name in life.alive:
            await life.do(act, life.alive[name], amount)
        life.check(limit)
    await life.end_well(limit)


class Life:
    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.books = Books()
        fleet.control_plane({})
        self.logs = {name: Log() for name in NAMES}
        self.alive = {name: Worker(fleet, name, self.logs[name]) for name in NAMES}

    def look(self) -> None:
        self.fleet.control_plane(self.books.ledger)

    async def happen(self, act: str, amount: int) -> None:
        if act == "wait":
            self.fleet.pass_time(amount / 10)
        elif act == "look":
            self.look()
        else:
            if len(self.alive) < len(NAMES):
                # Who is dead cannot say what it was granted; the control plane has seen it, as it looks every two seconds.
                self.look()
            self.fleet.lose_valkey()
            await self.turn_all()
            self.look()
            await self.turn_all()

    async def turn_all(self) -> None:
        for worker in self.alive.values():
            await worker.turn()

    async def restart(self, name: str) -> None:
        self.alive[name] = Worker(self.fleet, name, self.logs[name])
        await self.alive[name].turn()

    async def do(self, act: str, worker: Worker, amount: int) -> None:
        if act == "ask":
            worker.ask(cost=amount)
        elif act == "turn":
            await worker.turn(tick=amount % 2 == 0)
        elif act == "ingest":
            self.books.ingest(worker, trim=amount % 2 == 0)
        elif act == "end" and worker.running:
            permit = worker.running[amount % len(worker.running)]
            worker.end(permit, min(amount, permit.demand.cost))
        elif act == "crash":
            for permit in worker.running:  # settled at the next start, from what the spool knows
                self.logs[worker.name].events.append(self.fleet.event(worker.name, permit, permit.demand.cost // 2))
            await worker.close()
            del self.alive[worker.name]

    def spent(self, name: str) -> int:
        return sum(event.completion_tokens for event in self.logs[name].events)

    def check(self, limit: int) -> None:
        running = sum(permit.demand.cost for worker in self.alive.values() for permit in worker.running)
        assert sum(map(self.spent, NAMES)) + running <= limit

    async def end_well(self, limit: int) -> None:
        """Everybody comes back and rests: then claims are what was spent, and all that is left can be had."""
        for name in set(NAMES) - set(self.alive):
            await self.restart(name)
        await self.turn_all()
        for worker in self.alive.values():
            for permit in list(worker.running):
                worker.end(permit, permit.demand.cost)
            self.books.ingest(worker, trim=False)
            worker.gate.retire()  # a quiet while is over: nothing is wanted ahead
        for _ in range(12):
            self.look()
            await self.turn_all()
            self.fleet.pass_time(2.5)
        held, left = self.fleet.hash(), limit - sum(map(self.spent, NAMES))
        assert {name: int(held.get(b"c:%b" % name.encode(), 0)) for name in NAMES} == {n: self.spent(n) for n in NAMES}
        assert int(held[b"left"]) == left
        if left:
            self.alive["a"].ask(cost=left)
            await self.alive["a"].turn()
            assert isinstance(self.alive["a"].done[-1], Permit)
        for worker in self.alive.values():
            await worker.close()


def test_more_than_one_message_holds_are_admitted_and_nobody_jumps_the_queue(fleet: Fleet) -> None:
    """Many wait, and a newcomer comes at every moment in between: as long as there is money, nobody is refused."""
    fleet.budget(10**6)
    fleet.limit(rpm=10_000, concurrency=10_000)
    fleet.control_plane({})

    async def run() -> Worker:
        worker = Worker(fleet, "a")
        await worker.turn()
        stop = asyncio.Event()

        async def newcomers() -> None:
            while not stop.is_set():
                worker.ask(cost=10)
                await asyncio.sleep(0)

        coming = asyncio.ensure_future(newcomers())
        for _ in range(1500):
            worker.ask(cost=10)
        for _ in range(8):
            await worker.turn(tick=False)
        stop.set()
        await coming
        while worker.gate.waiting:
            await worker.turn(tick=False)
        await worker.close()
        return worker

    worker = asyncio.run(run())
    assert len(admitted([worker])) >= 1500 and refused([worker]) == []
