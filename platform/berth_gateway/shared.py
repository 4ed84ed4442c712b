"""The periodic work of a gateway among others, with a control plane behind Valkey."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

from berth_gateway.estates import Estates
from berth_gateway.gateway import Gateway
from berth_gateway.leases import Lessor
from berth_gateway.link import Link
from berth_gateway.slot_leases import SlotLessor

FIRST_ANSWER_SECONDS = 2.0


class Shared:
    """A gateway among others, with a control plane behind Valkey."""

    def __init__(self, gateway: Gateway, usage_key: bytes, key_of: Callable[[int], bytes]) -> None:
        """`key_of`: the key for usage batches of another worker, by its number."""
        gateway.slots.shared = True
        verdict = gateway.store.load(gateway.wall())
        if verdict is not None:
            gateway.log.info("snapshot_loaded", reason=verdict)
            gateway.limits_changed()
        self._link = Link(gateway, usage_key)
        self._lessor = Lessor(
            gateway.gate,
            gateway.config.name,
            gateway.config.redis_url,
            gateway.spool,
            lambda: gateway.store.view,
            lambda: gateway.telemetry.link_failures.add("limits"),
        )
        self._slots = SlotLessor(
            gateway.slots,
            gateway.config.name,
            gateway.config.redis_url,
            lambda: gateway.telemetry.link_failures.add("slots"),
        )
        self._estates = None
        if gateway.config.worker <= 1:
            self._estates = Estates(gateway.config, gateway.telemetry, gateway.log, gateway.now, key_of)

    def jobs(self) -> list[Coroutine[Any, Any, None]]:
        estates = [] if self._estates is None else [self._estates.run()]
        return [*self._link.jobs(), self._lessor.run(), self._slots.run(), *estates]

    async def ready(self) -> None:
        """Nobody is judged by the copy on disk before Valkey was asked whether it is still the newest."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_ANSWER_SECONDS):
                await self._link.asked_once.wait()
                await self._lessor.joined_all()
                await self._slots.settled()

    async def close(self) -> None:
        await self._slots.close()
        await self._lessor.close()
        await self._link.close()
