"""Takes usage events from the spool to the Valkey stream, and forgets them only when PostgreSQL has them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from berth_gateway.config import Config
from berth_gateway.contract import USAGE_FORMAT, USAGE_POSITION_KEY, USAGE_STREAM, UsageBatch, usage_mac
from berth_gateway.logs import Log
from berth_gateway.spool import Spool
from berth_gateway.telemetry import Telemetry

BATCH_EVENTS = 500
WINDOW_EVENTS = 20_000  # shipped and not acknowledged: bounds what waits in Valkey
STALL_SECONDS = 5.0  # an acknowledgement that takes longer is looked after

_encode = msgspec.msgpack.Encoder().encode


class Ships(Protocol):
    """What usage is shipped from."""

    @property
    def config(self) -> Config: ...
    @property
    def spool(self) -> Spool: ...
    @property
    def telemetry(self) -> Telemetry: ...
    @property
    def log(self) -> Log: ...
    @property
    def now(self) -> Callable[[], float]: ...


class Shipper:
    """Keeps three numbers: durable (on disk here), shipped (in the stream), acknowledged (in PostgreSQL)."""

    def __init__(self, gateway: Ships, key: bytes) -> None:
        self._gateway = gateway
        self._key = key
        self._shipped = 0
        self._told = -1  # the position that Valkey last named; -1: never asked
        self._moved_at = 0.0
        self._first_unacknowledged: list[tuple[int, bytes]] = []  # (end, entry id) of shipped batches, oldest first

    async def step(self, valkey: Any) -> bool:
        """One round: learn what is acknowledged, ship what may be shipped. True if there is more. Raises on lost contact."""
        await self._learn(valkey)
        spool = self._gateway.spool
        if self._shipped >= spool.durable or self._shipped - max(self._told, 0) >= WINDOW_EVENTS:
            return False
        events, end = await asyncio.to_thread(spool.read, self._shipped, BATCH_EVENTS)
        if end <= self._shipped:
            return False
        start, name, payload = self._shipped, self._gateway.config.name, _encode(events)
        batch = UsageBatch(
            format=USAGE_FORMAT,
            gateway=name,
            start=start,
            end=end,
            payload=payload,
            mac=usage_mac(self._key, name, start, end, payload),
        )
        entry = await valkey.xadd(USAGE_STREAM, {b"batch": _encode(batch)})
        if not self._first_unacknowledged:
            self._moved_at = self._gateway.now()
        self._first_unacknowledged.append((end, entry))
        self._shipped = end
        self._gateway.telemetry.shipped.add(by=len(events))
        return end < spool.durable

    async def _learn(self, valkey: Any) -> None:
        told = await valkey.hget(USAGE_POSITION_KEY, self._gateway.config.name)
        position = int(told) if told is not None else 0
        if position != self._told:
            if position < self._told or self._told < 0:
                # First contact, or the other side went back to an older state: everything behind it is sent again.
                self._shipped = position
                self._first_unacknowledged.clear()
            self._told = position
            self._moved_at = self._gateway.now()
            self._gateway.spool.acknowledge(position)
            self._shipped = max(self._shipped, position)
            while self._first_unacknowledged and self._first_unacknowledged[0][0] <= position:
                self._first_unacknowledged.pop(0)
        elif self._first_unacknowledged and self._gateway.now() - self._moved_at > STALL_SECONDS:
            await self._look_after(valkey, position)

    async def _look_after(self, valkey: Any, position: int) -> None:
        """Nothing was acknowledged for a while. An entry that is still in the stream will be; one that is gone was lost."""
        self._moved_at = self._gateway.now()
        entry = self._first_unacknowledged[0][1]
        if not await valkey.xrange(USAGE_STREAM, entry, entry):
            self._gateway.log.info("usage_shipped_again", position=position, count=self._shipped - position)
            self._shipped = position
            self._first_unacknowledged.clear()
