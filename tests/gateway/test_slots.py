"""Slots of one replica, shared by processes through a real Valkey: never more in flight than it has, and none left unused."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

from berth.host.valkey import Valkey
from berth_gateway import slot_leases
from berth_gateway.contract import SLOTS_PREFIX, Replica
from berth_gateway.route import Router, address
from berth_gateway.slot_leases import SlotLessor
from berth_gateway.slots import Slots, even_share
from tests.gateway.harness import World

REPLICA = Replica("r1", "127.0.0.1", 9, "secret-of-r1", 8)
WHERE = address(REPLICA)
PROCESSES = 10  # eight workers and two more gateways


class Process:
    """A gateway process without sockets: what runs and what waits are numbers, the clock is the fleet's."""

    def __init__(self, fleet: Fleet, name: str, slots: int) -> None:
        self.fleet, self.name = fleet, name
        self.router = Router()
        self.waiting = 0
        self.slots = Slots(self.router, fleet.now, lambda _: self.waiting, lambda _: self.start())
        self.slots.shared = True
        self.spot = self.router.spot(WHERE)
        self.lessor = SlotLessor(self.slots, name, fleet.url)
        self.slots.apply(
            [World().route("acme/model", replicas=(Replica("r1", "127.0.0.1", 9, "secret-of-r1", slots),))]
        )

    def ask(self) -> None:
        self.waiting += 1
        self.start()
        if self.waiting:
            self.slots.short(next(iter(self.slots.leases.values())).deployments[0])

    def start(self) -> None:
        while self.waiting and self.spot.in_flight < self.spot.most:
            self.waiting -= 1
            self.spot.in_flight += 1

    def end(self) -> None:
        if self.spot.in_flight:
            self.spot.in_flight -= 1
            self.start()

    async def turn(self, *, tick: bool = True) -> bool:
        if tick:
            self.slots.tick(PROCESSES)
        return await self.lessor.turn(tick=tick)


class Fleet:
    """In virtual time. What processes tell each other is heard at once."""

    def __init__(self, url: str, slots: int = 8, size: int = PROCESSES) -> None:
        self.url, self.slots, self.size = url, slots, size
        self.seconds = 0.0
        self.processes: list[Process] = []

    def now(self) -> float:
        return self.seconds

    @property
    def in_flight(self) -> int:
        return sum(each.spot.in_flight for each in self.processes)

    async def rounds(self, number: int = 6) -> None:
        for _ in range(number):
            self.seconds += 0.1
            for each in self.processes:
                assert await each.turn()
                for lease in each.slots.leases.values():  # the channel, without its delay
                    for other in self.processes:
                        other.slots.poke(lease.name)
            assert self.in_flight <= self.slots

    async def begin(self) -> None:
        self.processes = [Process(self, f"w{n}", self.slots) for n in range(self.size)]
        await self.rounds(2)

    async def end(self) -> None:
        for each in self.processes:
            await each.lessor.close()


def run(fleet: Fleet, what: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        await fleet.begin()
        await what()
        await fleet.end()

    asyncio.run(whole())


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_leases, "ANSWER_SECONDS", 30.0)  # a busy machine decides nothing here


def _settled(valkey: redis.Redis) -> None:
    """As on a Valkey that has run for a while."""
    lease = Slots(Router(), lambda: 0.0, lambda _: 0, lambda _: None)
    lease.apply([World().route("acme/model", replicas=(REPLICA,))])
    name = next(iter(lease.leases.values())).name
    valkey.delete(SLOTS_PREFIX + name)
    valkey.hset(SLOTS_PREFIX + name, "settled", 0)


@pytest.fixture
def url(valkey: redis.Redis, valkey_server: Valkey) -> str:
    _settled(valkey)
    return valkey_server.url


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("slots", [8, 3])
def test_ten_processes_never_have_more_in_flight_than_there_are_slots(url: str, slots: int, seed: int) -> None:
    """Whatever comes and ends where, and in whatever order they ask Valkey."""
    fleet, chance = Fleet(url, slots), random.Random(seed)
    fullest = 0

    async def what() -> None:
        nonlocal fullest
        for _ in range(120):
            for each in chance.sample(fleet.processes, 4):
                for _ in range(chance.choice([0, 0, 1, 3])):
                    each.ask()
                if chance.random() < 0.6:
                    each.end()
                assert fleet.in_flight <= slots
            for each in chance.sample(fleet.processes, 5):
                await each.turn(tick=chance.random() < 0.5)
                assert fleet.in_flight <= slots
            fullest = max(fullest, fleet.in_flight)
            fleet.seconds += 0.03
        for each in fleet.processes:
            each.waiting = 0
            while each.spot.in_flight:
                each.end()

    run(fleet, what)
    assert fullest == slots


def test_one_process_that_is_asked_alone_gets_every_slot(url: str) -> None:
    fleet = Fleet(url)

    async def what() -> None:
        for _ in range(20):
            fleet.processes[3].ask()
        await fleet.rounds(4)
        assert fleet.processes[3].spot.in_flight == 8

    run(fleet, what)


def test_what_is_idle_is_dealt_out_before_it_is_asked_for(url: str) -> None:
    """Eight processes, eight slots: each has one, and a request there asks nobody."""
    fleet = Fleet(url, size=8)

    async def what() -> None:
        await fleet.rounds()
        for each in fleet.processes:
            each.ask()
        assert fleet.in_flight == 8

    run(fleet, what)


def test_a_busy_process_makes_room_for_the_others_as_its_requests_end(url: str) -> None:
    fleet = Fleet(url, size=2)
    a, b = 0, 1

    async def what() -> None:
        for _ in range(40):
            fleet.processes[a].ask()
        await fleet.rounds(4)
        assert fleet.processes[a].spot.in_flight == 8
        for _ in range(40):
            fleet.processes[b].ask()
        for _ in range(8):
            fleet.processes[a].end()
            await fleet.rounds(2)
        assert [each.spot.in_flight for each in fleet.processes] == [4, 4]

    run(fleet, what)


def test_with_more_processes_than_slots_everybody_has_a_turn(
    url: str, valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        slot_leases,
        "SLOTS",
        slot_leases.SLOTS.replace("redis.call('TIME')", "redis.call('HMGET', 'test:clock', 's', 'us')"),
    )
    fleet = Fleet(url, slots=2, size=5)
    valkey.hset("test:clock", mapping={"s": 0, "us": 0})
    served: set[str] = set()

    async def what() -> None:
        for second in range(40):
            valkey.hset("test:clock", mapping={"s": second, "us": 0})
            for each in fleet.processes:
                each.ask()
            await fleet.rounds(2)
            served.update(each.name for each in fleet.processes if each.spot.in_flight)
            for each in fleet.processes:
                while each.spot.in_flight > each.spot.most or (each.spot.in_flight and second % 2):
                    each.spot.in_flight -= 1

    run(fleet, what)
    assert len(served) == 5


def test_what_a_killed_process_held_comes_free(url: str, valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        slot_leases,
        "SLOTS",
        slot_leases.SLOTS.replace("redis.call('TIME')", "redis.call('HMGET', 'test:clock', 's', 'us')"),
    )
    valkey.hset("test:clock", mapping={"s": 100, "us": 0})
    fleet = Fleet(url, size=2)

    async def what() -> None:
        for each in fleet.processes:
            for _ in range(10):
                each.ask()
        await fleet.rounds()
        dead = fleet.processes.pop()
        assert dead.spot.in_flight == 4
        await fleet.rounds()
        assert fleet.in_flight == 4
        valkey.hset("test:clock", mapping={"s": 111, "us": 0})
        await fleet.rounds()
        assert fleet.in_flight == 8
        await dead.lessor.close()

    run(fleet, what)


def test_without_valkey_each_goes_on_with_its_even_part(url: str) -> None:
    fleet = Fleet(url, size=4)

    async def what() -> None:
        busy, *others = fleet.processes
        for _ in range(8):
            busy.ask()
        await fleet.rounds(4)
        assert busy.spot.in_flight == 8
        for each in fleet.processes:
            await each.lessor._valkey.aclose()
            each.lessor._valkey = Redis(port=1, retry=None)
            for _ in range(10):
                each.ask()
        for _ in range(5):
            fleet.seconds += 0.5
            for each in fleet.processes:
                each.slots.tick(4)
                assert not await each.lessor.turn(tick=True)
        assert [each.spot.in_flight for each in others] == [2, 2, 2]
        busy.waiting = 3
        for _ in range(6):
            busy.end()
        assert busy.spot.in_flight == 2 and busy.waiting == 3, "what ran may end, but nothing follows it"
        busy.end()
        assert busy.spot.in_flight == 2

    run(fleet, what)


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():  # noqa: ASYNC110 - any condition
            await asyncio.sleep(0.01)


def test_processes_hear_of_each_other_over_the_channel(url: str) -> None:
    """Ten that run by the real clock: whoever is asked gets all, one after the other, and never more is in flight."""
    fleet = Fleet(url)

    async def what() -> None:
        fleet.processes = [Process(fleet, f"w{n}", 8) for n in range(PROCESSES)]
        for each in fleet.processes:
            each.slots.now = asyncio.get_running_loop().time
        tasks = [asyncio.create_task(each.lessor.run()) for each in fleet.processes]
        for each in fleet.processes:
            await each.lessor.settled()
        for number in (3, 7):
            busy = fleet.processes[number]
            for _ in range(20):
                busy.ask()
            await _until(lambda busy=busy: busy.spot.in_flight == 8)  # type: ignore[misc]
            assert fleet.in_flight == 8
            busy.waiting = 0
            while busy.spot.in_flight:
                busy.end()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await fleet.end()

    asyncio.run(what())


def test_a_valkey_that_has_just_started_gives_no_more_than_the_even_part_until_all_were_heard(
    url: str, valkey: redis.Redis
) -> None:
    fleet = Fleet(url, size=2)

    async def what() -> None:
        (name,) = [lease.name for lease in fleet.processes[0].slots.leases.values()]
        valkey.delete(SLOTS_PREFIX + name)
        valkey.hset(SLOTS_PREFIX + name, "settled", 1 << 52)
        for each in fleet.processes:
            for _ in range(10):
                each.ask()
            each.slots.workers = 2
        fleet.processes[0].slots.workers = 4
        await fleet.processes[0].turn(tick=False)
        assert fleet.processes[0].spot.in_flight <= even_share(8, 2)

    run(fleet, what)


@given(st.integers(1, 600), st.integers(1, 64))
def test_even_parts_use_all_slots_and_no_more(slots: int, workers: int) -> None:
    parts = [even_share(slots, workers, number) for number in range(workers)]
    assert sum(parts) == max(slots, workers) and min(parts) >= 1
    assert sum(even_share(slots, workers, workers) for _ in range(workers)) <= max(slots, workers)
