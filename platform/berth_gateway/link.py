"""The gateway's tasks on Valkey: watch the snapshot, report, ship usage. Each goes on by itself when Valkey comes back."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from berth_gateway import wake
from berth_gateway.contract import GATEWAYS_KEY, SNAPSHOT_CHANNEL, SNAPSHOT_KEY
from berth_gateway.gateway import Gateway
from berth_gateway.record_ship import RecordShipper
from berth_gateway.ship import Shipper
from berth_gateway.snapshot import Verdict

POLL_SECONDS = 1.0
REPORT_SECONDS = 1.0
WAKE_SECONDS = 1.0  # a deployment that is still asleep is asked for again
SHIP_SECONDS = 0.1
LONGEST_PAUSE = 5.0
CLOSE_SECONDS = 5.0  # for the last usage, when the process ends

_encode = msgspec.msgpack.Encoder().encode
_LOST = (RedisError, OSError, TimeoutError)


class Link:
    """Owns the connections to Valkey."""

    def __init__(self, gateway: Gateway, usage_key: bytes) -> None:
        self._gateway = gateway
        self._valkey = Redis.from_url(
            gateway.config.redis_url,
            socket_timeout=3,
            socket_connect_timeout=3,
            retry=Retry(NoBackoff(), 0),
            decode_responses=False,
        )
        self._shipper = Shipper(gateway, usage_key)
        self._records = RecordShipper(gateway, usage_key)
        self._changed = asyncio.Event()
        self._report_now = asyncio.Event()
        self._wake_now = asyncio.Event()
        gateway.places.on_wake = self._wake_now.set
        self.asked_once = asyncio.Event()  # Valkey was asked for the snapshot, whatever it said
        self._refused: object = None  # (epoch, version) that was judged and refused

    def jobs(self) -> list[Coroutine[Any, Any, None]]:
        """What has to run, each until cancelled."""
        return [
            self._keep_on("snapshot", self._watch),
            self._keep_on("listen", self._listen),
            self._keep_on("report", self._report),
            self._keep_on("usage", self._ship),
            self._keep_on("wake", self._wake),
            self._keep_on("load", self._load),
            self._keep_on("records", self._ship_records),
        ]

    async def close(self) -> None:
        """Says good-bye: the last usage, and no more sign of life."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                while await self._shipper.step(self._valkey):
                    pass
                while await self._records.step(self._valkey):
                    pass
                await self._valkey.hdel(GATEWAYS_KEY, self._gateway.config.name)
        except _LOST:
            self._gateway.telemetry.link_failures.add("close")  # the next process of this name ships what is left
        await self._valkey.aclose()

    async def _keep_on(self, job: str, work: Callable[[], Awaitable[None]]) -> None:
        pause = 0.1
        lost = False
        while True:
            started = self._gateway.now()
            try:
                await work()
            except _LOST as fault:
                self._gateway.telemetry.link_failures.add(job)
                if not lost:
                    self._gateway.log.error("valkey_lost", reason=job, error=type(fault).__name__)
                lost = True
                self.asked_once.set()
            else:
                lost = False
            if self._gateway.now() - started > LONGEST_PAUSE:
                pause, lost = 0.1, False
            await asyncio.sleep(pause * (0.5 + random.random()))  # noqa: S311 - spreads reconnects, hides nothing
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _watch(self) -> None:
        while True:
            self._changed.clear()
            await self._poll()
            self.asked_once.set()
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _poll(self) -> None:
        epoch, version = await self._valkey.hmget(SNAPSHOT_KEY, ["epoch", "version"])
        if epoch is None or version is None:
            return
        view, gateway = self._gateway.store.view, self._gateway
        if view is not None and (view.epoch.encode(), b"%d" % view.version) == (epoch, version):
            gateway.store.confirm(gateway.wall())
            return
        if (epoch, version) == self._refused:
            return  # judged already; whatever replaces it has another name or is offered by a message
        packed = await self._valkey.hget(SNAPSHOT_KEY, "signed")
        if not isinstance(packed, bytes):
            return
        verdict = gateway.offer_snapshot(packed)
        self._refused = None if verdict in (Verdict.APPLIED, Verdict.CURRENT) else (epoch, version)
        if verdict is Verdict.APPLIED:
            self._report_now.set()

    async def _listen(self) -> None:
        async with self._valkey.pubsub() as channel:
            await channel.subscribe(SNAPSHOT_CHANNEL)
            while True:
                message = await channel.get_message(ignore_subscribe_messages=True, timeout=2.0)
                if message is not None:
                    self._refused = None
                    self._changed.set()

    async def _report(self) -> None:
        while True:
            self._report_now.clear()
            await self._valkey.hset(GATEWAYS_KEY, self._gateway.config.name, _encode(self._gateway.report()))
            try:
                async with asyncio.timeout(REPORT_SECONDS):
                    await self._report_now.wait()
            except TimeoutError:
                continue

    async def _wake(self) -> None:
        while True:
            self._wake_now.clear()
            await wake.send_wakes(self._gateway, self._valkey)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WAKE_SECONDS):
                    await self._wake_now.wait()

    async def _load(self) -> None:
        while True:
            await wake.send_load(self._gateway, self._valkey)
            await asyncio.sleep(REPORT_SECONDS)

    async def _ship_records(self) -> None:
        while True:
            if not await self._records.step(self._valkey):
                await asyncio.sleep(SHIP_SECONDS)

    async def _ship(self) -> None:
        while True:
            if not await self._shipper.step(self._valkey):
                await asyncio.sleep(SHIP_SECONDS)
