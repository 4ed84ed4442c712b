"""Shared limits while processes get no turn and messages come late, in virtual time."""

from __future__ import annotations

import asyncio
from bisect import bisect_left

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from berth.host.valkey import Valkey
from berth_gateway.errors import Refusal
from berth_gateway.limits import Permit
from tests.gateway.fleet import Fleet, Worker
from tests.gateway.late import Late, LateWorker

WORKERS = 8
RPM, TPM = 1200, 60_000
SECONDS = 100


@pytest.fixture
def fleet(valkey: redis.Redis, valkey_server: Valkey, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    return Fleet(valkey, valkey_server.url, monkeypatch)


def most_in_a_minute(used: list[tuple[float, int]]) -> int:
    """`used`: when, and how much, in order."""
    times, sums = [at for at, _ in used], [0]
    for _, units in used:
        sums.append(sums[-1] + units)
    return max(sums[bisect_left(times, at + 60)] - sums[number] for number, at in enumerate(times))


def stumble_and_ask(late: Late, workers: list[LateWorker], favourite: LateWorker, tokens: int, really: int) -> None:
    for worker in workers:
        if not worker.stopped and late.chance.random() < 0.04:
            worker.stopped_until = late.fleet.seconds + late.chance.uniform(0.05, 0.9)
        if worker.stopped:
            continue
        for permit in list(worker.running):
            if late.chance.random() < 0.1:
                worker.end(permit, really)
        for _ in range(late.chance.choice((0, 0, 1, 1)) + (4 if worker is favourite else 0)):
            worker.ask(tokens=tokens)


async def live(fleet: Fleet, seed: int, tokens: int, really: int) -> list[tuple[float, int]]:
    """Three times what is allowed is asked for, unevenly. A request sets `tokens` aside and uses `really` in the end: when that was."""
    late = Late(fleet, seed)
    workers = [LateWorker(late, f"w{n}", late.chance.random()) for n in range(WORKERS)]
    began = fleet.seconds
    lives = [asyncio.ensure_future(each.live(lambda: fleet.seconds - began > SECONDS)) for each in workers]
    favourite = workers[0]
    while fleet.seconds - began < SECONDS:
        if late.chance.random() < 0.02:
            favourite = late.chance.choice(workers)
        stumble_and_ask(late, workers, favourite, tokens, really)
        await late.step()
    while not all(each.done() for each in lives):
        await late.step()
    for life in lives:
        life.result()
    for worker in workers:
        await worker.close()
    return sorted((at, really) for worker in workers for at, _ in worker.let_in)


def requests_hold(fleet: Fleet, seed: int) -> None:
    fleet.limit(rpm=RPM)
    used = asyncio.run(live(fleet, seed, 1, 1))
    most = most_in_a_minute(used)
    print("requests", seed, most, len(used))
    assert most <= RPM * 1.01
    assert len([at for at, _ in used if at < used[0][0] + 60]) >= RPM * 0.99


def tokens_hold(fleet: Fleet, seed: int) -> None:
    """Much is set aside for each request and given back at its end."""
    fleet.limit(tpm=TPM)
    used = asyncio.run(live(fleet, seed, 400, 45))
    most = most_in_a_minute(used)
    print("tokens", seed, most, len(used))
    assert most <= TPM * 1.01


@pytest.mark.threat("G10")
@pytest.mark.parametrize("hold", [requests_hold, tokens_hold])
def test_a_minute_holds_though_processes_get_no_turn_and_messages_come_late(fleet: Fleet, hold: object) -> None:
    assert callable(hold)
    hold(fleet, 1)


@pytest.mark.slow
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32), st.sampled_from([requests_hold, tokens_hold]))
def test_a_minute_holds_however_they_stumble(fleet: Fleet, seed: int, hold: object) -> None:
    fleet.lose_valkey()
    fleet.seconds = 0.0
    assert callable(hold)
    hold(fleet, seed)


def refused(worker: Worker) -> bool:
    return isinstance(worker.done[-1], Refusal)


@pytest.mark.parametrize("skew", [-3600.0, -20.0, 3600.0])
def test_a_minute_stays_a_minute_when_valkeys_clock_is_set(fleet: Fleet, skew: float) -> None:
    """Set back, what was used comes back a minute later, not an hour; what a worker held that died before, too."""
    fleet.limit(rpm=100)

    async def run() -> None:
        alive, dead = Worker(fleet, "alive"), Worker(fleet, "dead")
        for worker in (dead, alive):
            for _ in range(40):
                worker.ask()
            await worker.turn()
        fleet.skew = skew
        fleet.pass_time(0.3)
        await alive.turn()
        for _ in range(70):
            alive.ask()
            await alive.turn(tick=False)
        assert refused(alive) or skew > 0
        for _ in range(13):
            fleet.pass_time(10)
            await alive.turn()
        alive.done.clear()
        for _ in range(100):
            alive.ask()
            await alive.turn(tick=False)
        assert len(alive.done) == 100 and not any(isinstance(each, Refusal) for each in alive.done)
        await alive.close()
        await dead.close()

    asyncio.run(run())


def test_a_budget_opens_though_valkeys_clock_was_set_back(fleet: Fleet) -> None:
    fleet.budget(1000)
    fleet.control_plane({})

    async def run() -> None:
        worker = Worker(fleet, "a")
        await worker.turn()
        fleet.lose_valkey()
        fleet.control_plane({})
        await worker.turn()
        fleet.skew = -3600.0
        for _ in range(30):
            fleet.pass_time(1)
            await worker.turn()
        worker.ask(cost=100)
        await worker.turn()
        assert isinstance(worker.done[-1], Permit)
        await worker.close()

    asyncio.run(run())
