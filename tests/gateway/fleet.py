"""Several workers on one real Valkey, in virtual time: the scripts read a clock and a server's life that the test sets."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import msgspec
import pytest
import redis

from berth.billing import claims
from berth_gateway import leases
from berth_gateway.contract import (
    BUDGET_PREFIX,
    USAGE_FORMAT,
    Budget,
    BudgetScope,
    CountedBy,
    Limits,
    Outcome,
    Period,
    Price,
    UsageEvent,
)
from berth_gateway.errors import Refusal
from berth_gateway.leases import Lessor
from berth_gateway.limits import Demand, Gate, Permit, Waiting
from berth_gateway.snapshot import View
from tests.gateway.harness import World

CLOCK, LIFE = "test:clock", "test:life"
START = 1_800_000_000.0
PRICE = Price(0, 1, 1, 1)  # a token costs the smallest unit there is


def in_virtual_time(script: str) -> str:
    made = script.replace("redis.call('TIME')", f"redis.call('HMGET', '{CLOCK}', 's', 'us')")
    made = made.replace("string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')", f"redis.call('GET', '{LIFE}')")
    assert made != script and "INFO" not in made
    return made


class Log:
    """What a worker's spool is to its budgets. `trimmed`: events before it are only in the ledger."""

    def __init__(self) -> None:
        self.events: list[UsageEvent] = []
        self.trimmed = 0
        self.late = 0

    @property
    def durable(self) -> int:
        return len(self.events)

    next_position = durable

    @property
    def first_position(self) -> int:
        return self.trimmed

    def read(self, start: int, limit: int) -> tuple[list[UsageEvent], int]:
        found = self.events[max(start, self.trimmed) : start + limit]
        return found, start + len(found)


class Worker:
    """A gateway process without sockets. `log` outlives it."""

    def __init__(self, fleet: Fleet, name: str, log: Log | None = None) -> None:
        self.fleet = fleet
        self.name = name
        self.log = log or Log()
        self.gate = Gate(fleet.now, fleet.wall)
        self.gate.connected = True
        self.lessor = Lessor(self.gate, name, fleet.url, self.log, lambda: fleet.view)
        self.running: list[Permit] = []
        self.done: list[Permit | Refusal] = []
        self.gate.apply({}, tuple(fleet.budgets))

    def ask(self, tokens: int = 1, cost: int = 0) -> Permit | Refusal | None:
        """The answer if there is one at once; others come to `done`."""
        fleet = self.fleet
        demand = Demand(fleet.key, fleet.world.org, fleet.route, tokens, cost, fleet.wall())
        try:
            found = self.gate.enter(demand, self._take)
        except Refusal as refusal:
            self.done.append(refusal)
            return refusal
        if isinstance(found, Waiting):
            return None
        self._take(found)
        return found

    def _take(self, verdict: Permit | Refusal) -> None:
        self.done.append(verdict)
        if isinstance(verdict, Permit):
            self.running.append(verdict)

    async def turn(self, *, tick: bool = True) -> None:
        for purse in self.gate.unjoined():
            if not await self.lessor.join(purse):
                purse.joining = False
        await self.lessor.turn(tick=tick)

    def end(self, permit: Permit, cost: int) -> None:
        """The request has used `cost`."""
        self.running.remove(permit)
        event = self.fleet.event(self.name, permit, cost)
        self.log.events.append(event)
        self.gate.settle(permit, event)

    async def close(self) -> None:
        await self.lessor._valkey.aclose()


class Fleet:
    def __init__(self, valkey: redis.Redis, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.valkey, self.url = valkey, url
        for module, name in ((leases, "SHARE"), (leases, "CLAIM"), (claims, "_SEED")):
            monkeypatch.setattr(module, name, in_virtual_time(getattr(module, name)))
        monkeypatch.setattr(claims, "client", lambda: valkey)
        monkeypatch.setattr(leases, "ANSWER_SECONDS", 30.0)  # a busy machine decides nothing here
        monkeypatch.setattr(leases, "PROBE_SECONDS", 30.0)
        self.seconds = 0.0
        self.skew = 0.0  # seconds by which the clock of Valkey's machine was set
        self.world = World()
        self.key = self.world.keys[0]
        self.route = self.world.route("acme/model", 1, prices=(PRICE,))
        self.budgets: list[Budget] = []
        self.view = View.of(self.world.snapshot())
        self.mirror: dict[str, int] = {}
        self.seeded = False
        self.set_clock()
        valkey.set(LIFE, "life-1")

    def now(self) -> float:
        return self.seconds

    def wall(self) -> float:
        return START + self.seconds

    def set_clock(self) -> None:
        at = self.wall() + self.skew
        self.valkey.hset(CLOCK, mapping={"s": int(at), "us": round(at % 1 * 1_000_000)})

    def pass_time(self, seconds: float) -> None:
        self.seconds += seconds
        self.set_clock()

    def limit(self, **limits: int) -> None:
        self.key = msgspec.structs.replace(self.key, limits=Limits(**limits))

    def budget(self, limit: int) -> Budget:
        period = Period("2027-01", START - 100, START + 10_000_000)
        made = Budget(str(uuid4()), self.world.org.org_id, BudgetScope.ORG, self.world.org.org_id, limit, 1, (period,))
        self.budgets.append(made)
        return made

    def event(self, gateway: str, permit: Permit, cost: int) -> UsageEvent:
        return UsageEvent(
            format=USAGE_FORMAT, event_id=str(uuid4()), gateway=gateway, org_id=self.world.org.org_id, key_id=self.key.key_id,
            deployment_id=self.route.deployment_id, revision=1, endpoint="completions", stream=False,
            accepted_at=permit.demand.at, duration_ms=1.0, outcome=Outcome.OK, status=200, counted_by=CountedBy.ENGINE,
            completion_tokens=cost,
        )  # fmt: skip

    def control_plane(self, ledger: dict[str, tuple[int, int]]) -> claims.Claims:
        """One look of the control plane. `ledger`: gateway -> amount and position."""
        budget = self.budgets[0]
        known = set(ledger) | set(self.mirror)
        told = [
            claims.Told(name, *ledger.get(name, (0, 0)), max(self.mirror.get(name, 0), ledger.get(name, (0, 0))[0]))
            for name in sorted(known)
        ]
        found = claims.seed(
            f"{budget.budget_id}:2027-01", limit_pico=budget.limit_pico, version=budget.version,
            lost=self.seeded, expires_at=0, told=told,
        )  # fmt: skip
        self.seeded = True
        self.mirror = found.by_gateway
        return found

    def lose_valkey(self) -> None:
        """Everything in Valkey is gone, and another server process answers."""
        life = int(str(self.valkey.get(LIFE), "ascii").split("-")[1])  # type: ignore[arg-type]
        self.valkey.flushall()
        self.valkey.set(LIFE, f"life-{life + 1}")
        self.set_clock()

    def hash(self) -> dict[bytes, bytes]:
        found: dict[Any, Any] = self.valkey.hgetall(f"{BUDGET_PREFIX}{self.budgets[0].budget_id}:2027-01")  # type: ignore[assignment]
        return found
