"""Slots of replicas, from and to Valkey: one message under way at a time, everything due in it (`slots`, `slot_script`)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from berth_gateway.contract import SLOTS_CHANNEL, SLOTS_PREFIX
from berth_gateway.slot_script import SLOTS
from berth_gateway.slots import Lease, Slots, even_share

TICK_SECONDS = 0.1
ANSWER_SECONDS = 0.5
LISTEN_SECONDS = 2.0
LOST = (RedisError, OSError, TimeoutError)


class SlotLessor:
    """Keeps one process's slots in step with what it wants. `failed` is told when contact is lost."""

    def __init__(self, slots: Slots, name: str, redis_url: str, failed: Callable[[], None] = lambda: None) -> None:
        self._slots, self._name, self._failed = slots, name, failed
        self._valkey = Redis.from_url(
            redis_url, socket_timeout=ANSWER_SECONDS, socket_connect_timeout=ANSWER_SECONDS, retry=Retry(NoBackoff(), 0)
        )
        self._script = ""
        self._wake = asyncio.Event()
        slots.wake = self._wake.set

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._exchange())
            group.create_task(self._listen())

    async def close(self) -> None:
        """Gives everything back: nothing runs any more."""
        self._slots.wake = _nobody
        with contextlib.suppress(*LOST):
            async with asyncio.timeout(ANSWER_SECONDS):
                pipe = self._valkey.pipeline(transaction=False)
                for lease in self._slots.leases.values():
                    pipe.hdel(SLOTS_PREFIX + lease.name, f"w:{self._name}")
                await pipe.execute()
        await self._valkey.aclose()

    async def settled(self) -> None:
        """Until it is known of every replica what this process may have there."""
        while not self._slots.settled:  # noqa: ASYNC110 - the core knows no event loop
            await asyncio.sleep(TICK_SECONDS / 4)

    async def turn(self, *, tick: bool) -> bool:
        """Sends what is due and takes in the answers. False: Valkey did not answer."""
        due = self._slots.collect(tick=tick)
        if not due:
            return True
        since = self._slots.now()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._send(due)
        except LOST:
            self._failed()
            self._slots.unanswered(due, since)
            return False
        return True

    async def _exchange(self) -> None:
        while True:
            tick = False
            try:
                async with asyncio.timeout(TICK_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                tick = True
            self._wake.clear()
            if not await self.turn(tick=tick):
                await asyncio.sleep(TICK_SECONDS)

    async def _listen(self) -> None:
        while True:
            with contextlib.suppress(*LOST):
                async with self._valkey.pubsub() as channel:
                    await channel.subscribe(SLOTS_CHANNEL)
                    while True:
                        message = await channel.get_message(ignore_subscribe_messages=True, timeout=LISTEN_SECONDS)
                        if message is not None:
                            self._heard(message["data"])
            await asyncio.sleep(ANSWER_SECONDS)

    def _heard(self, data: bytes) -> None:
        name, _, worker = data.decode("ascii", "replace").partition(" ")
        if worker != self._name:
            self._slots.poke(name)

    async def _send(self, due: list[Lease]) -> None:
        if not self._script:
            self._script = await self._valkey.script_load(SLOTS)
        pipe = self._valkey.pipeline(transaction=False)
        for lease in due:
            ask = self._slots.ask(lease)
            even = even_share(lease.slots, self._slots.workers, self._slots.workers)
            pipe.evalsha(
                self._script, 1, SLOTS_PREFIX + lease.name,
                self._name, lease.name, SLOTS_CHANNEL, lease.slots, ask.keep, ask.want, even,
            )  # fmt: skip
        answers: list[Any] = await pipe.execute(raise_on_error=False)
        for lease, answer in zip(due, answers, strict=True):
            if isinstance(answer, Exception):
                if isinstance(answer, NoScriptError):
                    self._script = ""  # Valkey was restarted
                raise answer
            self._slots.answered(lease, int(answer[0]), int(answer[1]))


def _nobody() -> None:
    """Nothing is asked any more."""
