"""Several gateways of several workers behind one Valkey, many clients, and a machine that stumbles."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import redis

from tests.gateway.harness import MASTER, GatewayProcess, World, usage_key


def start(folder: Path, world: World, url: str, name: str, workers: int, **environ: str) -> GatewayProcess:
    """A gateway of that many workers in a folder of its own."""
    own = folder / name
    own.mkdir()
    made = GatewayProcess(
        own, world, url, BERTH_GATEWAY_NAME=name, BERTH_GATEWAY_WORKERS=str(workers), BERTH_GATEWAY_LOG_REQUESTS="0",
        **environ,
    )  # fmt: skip
    (own / "usage.key").write_text(usage_key(MASTER, name).hex())
    return made.start()


def workers_of(gateway: GatewayProcess) -> list[int]:
    """Their process ids."""
    assert gateway.process is not None
    parent = gateway.process.pid
    return list(map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split()))


class Told(NamedTuple):
    """One answer: when it was asked for, when it had come (monotonic seconds)."""

    asked: float
    came: float
    status: int


class Callers:
    """Raw clients on kept connections."""

    def __init__(self) -> None:
        self.told: list[Told] = []

    async def _call(self, port: int, message: bytes, pause: float, until: float) -> None:
        """Asks every `pause` seconds, or as soon as the last answer is there."""
        reader, writer, due = None, None, time.monotonic() + random.random() * pause
        while time.monotonic() < until:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            if writer is None or reader is None:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            asked = time.monotonic()
            writer.write(message)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
            self.told.append(Told(asked, time.monotonic(), int(head[9:12])))
            if b"connection: close" in head:
                writer.close()
                reader = writer = None
            due = max(due + pause, time.monotonic() - pause)
        if writer is not None:
            writer.close()

    async def call(self, ports: list[int], message: bytes, callers: int, pause: float, seconds: float) -> None:
        until = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            for number in range(callers):
                group.create_task(self._call(ports[number % len(ports)], message, pause, until))

    def served(self) -> list[Told]:
        return [each for each in self.told if each.status == 200]

    def surely_within_a_minute(self) -> int:
        """The most answers of any minute that were asked for and had come in it, so that they were let through in it."""
        asked = sorted(self.served())
        most = 0
        for first in asked:
            within = asked[bisect_left(asked, first) :]
            most = max(most, sum(each.came < first.asked + 60 for each in within if each.asked < first.asked + 60))
        return most

    def maybe_within_the_first_minute(self) -> int:
        """The answers that may have been let through in the minute that began with the first question."""
        start = min(self.told).asked
        return sum(each.asked < start + 60 for each in self.served())


@contextlib.contextmanager
def stumbling(workers: list[int], valkey: redis.Redis, chance: random.Random) -> Iterator[None]:
    """Until the end, processes now and then get no turn for up to half a second, and Valkey answers late."""
    stop = threading.Event()

    def halt() -> None:
        while not stop.wait(chance.uniform(0.05, 0.4)):
            some = chance.sample(workers, chance.randint(1, 2))
            for pid in some:
                os.kill(pid, signal.SIGSTOP)
            stop.wait(chance.uniform(0.02, 0.5))
            for pid in some:
                os.kill(pid, signal.SIGCONT)

    def pause() -> None:
        while not stop.wait(chance.uniform(0.2, 2.0)):
            valkey.execute_command("CLIENT", "PAUSE", chance.randint(20, 400), "ALL")

    threads = [threading.Thread(target=each, daemon=True) for each in (halt, pause)]
    for each in threads:
        each.start()
    try:
        yield
    finally:
        stop.set()
        for each in threads:
            each.join()
