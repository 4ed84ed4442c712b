"""Spools that nobody writes any more: of workers that are no longer started, or of the one process that several replaced.

What is in them was accepted, so it is shipped like any other usage, under the name it was accepted under; then the folder goes.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from berth_gateway.config import Config
from berth_gateway.contract import worker_name
from berth_gateway.logs import Log
from berth_gateway.ship import Shipper
from berth_gateway.spool import Spool, SpoolError
from berth_gateway.telemetry import Telemetry

LOOK_SECONDS = 60.0
STEP_SECONDS = 0.2
_WORKER = re.compile(r"worker-([1-9]\d{0,3})\Z")
_LOST = (RedisError, OSError, TimeoutError)


@dataclass(frozen=True)
class Estate:
    """A spool to be shipped: what a gateway is to the shipper."""

    config: Config
    spool: Spool
    telemetry: Telemetry
    log: Log
    now: Callable[[], float]


def left_behind(config: Config) -> Iterator[tuple[int, Path]]:
    """Number (0: the one process) and folder of each spool that no process of this gateway uses now."""
    home = config.folder.parent if config.worker else config.folder
    if config.workers > 1 and any(home.glob("*.spool")):
        yield 0, home
    for folder in sorted(home.glob("worker-*")):
        found = _WORKER.match(folder.name)
        if found is None or not any(folder.glob("*.spool")):
            continue
        number = int(found[1])
        if config.workers == 1 or number > config.workers:
            yield number, folder


class Estates:
    """Looks for such spools and ships them. One process of a gateway does: the first worker, or the only one."""

    def __init__(
        self, config: Config, telemetry: Telemetry, log: Log, now: Callable[[], float], key_of: Callable[[int], bytes]
    ) -> None:
        """`key_of`: the key for usage batches by a worker's number, 0 for the one process."""
        self._config = config
        self._telemetry = telemetry
        self._log = log
        self._now = now
        self._key_of = key_of

    async def run(self) -> None:
        """Until cancelled."""
        async with contextlib.AsyncExitStack() as stack:
            valkey = Redis.from_url(self._config.redis_url, socket_timeout=3, socket_connect_timeout=3)
            stack.push_async_callback(valkey.aclose)
            while True:
                for number, folder in left_behind(self._config):
                    await self.ship(number, folder, valkey)
                await asyncio.sleep(LOOK_SECONDS)

    async def ship(self, number: int, folder: Path, valkey: Any) -> bool:
        """Ships one to its end. False: somebody uses it, or it cannot be read now."""
        try:
            spool = Spool(folder)
        except SpoolError:
            return False
        name = self._config.name.partition(":")[0]
        config = replace(self._config, name=worker_name(name, number) if number else name)
        estate = Estate(config, spool, self._telemetry, self._log, self._now)
        shipper = Shipper(estate, self._key_of(number))
        count = spool.pending
        try:
            while spool.pending:
                try:
                    more = await shipper.step(valkey)
                except _LOST:
                    self._telemetry.link_failures.add("estate")
                    more = False
                if not more:
                    await asyncio.sleep(STEP_SECONDS)
        finally:
            done = not spool.pending
            spool.close()
        if done:
            _empty(folder)
            self._log.info("estate_shipped", gateway=config.name, count=count)
        return done


def _empty(folder: Path) -> None:
    for path in folder.glob("*.spool"):
        path.unlink()
