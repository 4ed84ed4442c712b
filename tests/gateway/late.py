"""Workers whose processes get no turn for a while and whose messages come late, each with a clock of its own, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from berth_gateway.limits import Permit
from tests.gateway.fleet import Fleet, Worker

STEP = 0.1
PATIENCE = 0.5  # seconds after which who waits is decided on without Valkey, as `leases.ANSWER_SECONDS`


class Late:
    """Time of a fleet that also lets messages and processes wait for it."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self.fleet = fleet
        self.chance = random.Random(seed)
        self.talking = 0  # messages that are on their way through the real Valkey now
        self._due: list[tuple[float, asyncio.Future[None]]] = []

    async def until(self, at: float) -> None:
        if at > self.fleet.seconds:
            made = asyncio.get_running_loop().create_future()
            self._due.append((at, made))
            await made

    async def step(self) -> None:
        """Lets time pass and everything happen that is due then."""
        self.fleet.pass_time(STEP)
        due = [made for at, made in self._due if at <= self.fleet.seconds]
        self._due = [each for each in self._due if each[0] > self.fleet.seconds]
        for made in due:
            if not made.done():
                made.set_result(None)
        for _ in range(12):
            await asyncio.sleep(0)
        while self.talking:  # noqa: ASYNC110 - many messages, one question
            await asyncio.sleep(0.0002)
        for _ in range(12):
            await asyncio.sleep(0)

    def delay(self) -> float:
        """Of a message, one way."""
        return self.chance.choice((0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.1, 0.2, 0.3, 0.7))


class LateWorker(Worker):
    """`let_in`: when requests were let through, and the units of each."""

    def __init__(self, late: Late, name: str, ahead: float) -> None:
        """`ahead`: seconds by which this process' clock is ahead of the test's."""
        super().__init__(late.fleet, name)
        self.late = late
        self.stopped_until = 0.0
        self.let_in: list[tuple[float, Permit]] = []
        self.gate.now = lambda: late.fleet.seconds + ahead
        real = self.lessor._valkey.pipeline
        self.lessor._valkey.pipeline = lambda **some: _LatePipe(real(**some), self)  # type: ignore[method-assign]

    def _take(self, verdict: Any) -> None:
        if isinstance(verdict, Permit):
            self.let_in.append((self.fleet.seconds, verdict))
            self.running.append(verdict)

    @property
    def stopped(self) -> bool:
        return self.fleet.seconds < self.stopped_until

    async def turn(self, *, tick: bool = True) -> None:
        """As `Lessor._exchange` does, but that patience is measured in virtual time."""
        turning = asyncio.ensure_future(super().turn(tick=tick))
        try:
            began = self.fleet.seconds
            while not turning.done():
                await self.late.until(self.fleet.seconds + STEP / 2)
                if not turning.done() and not self.stopped and self.fleet.seconds - began > PATIENCE:
                    self.gate.unanswered()
            await turning
        finally:
            turning.cancel()

    async def live(self, end: Callable[[], bool]) -> None:
        while not end():
            await self.late.until(max(self.stopped_until, self.fleet.seconds + STEP / 2))
            await self.turn()


class _LatePipe:
    """A message to Valkey that is under way for a while, and an answer that waits until its process has a turn."""

    def __init__(self, real: Any, worker: LateWorker) -> None:
        self._real, self._worker = real, worker

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    async def execute(self, **some: Any) -> Any:
        late, worker = self._worker.late, self._worker
        await late.until(late.fleet.seconds + late.delay())
        late.talking += 1
        try:
            found = await self._real.execute(**some)
        finally:
            late.talking -= 1
        await late.until(late.fleet.seconds + late.delay())
        while worker.stopped:
            await late.until(worker.stopped_until)
        return found
