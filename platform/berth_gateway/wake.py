"""Telling the control plane through Valkey: which deployment a request waits for, and how much each has to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from berth_gateway.contract import LOAD_PREFIX, WAKE_PREFIX, WAKE_STREAM

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from berth_gateway.gateway import Gateway

AGAIN_MS = 10_000  # a wake that led to nothing is asked for again after this
LOAD_KEPT_MS = 15_000  # a gateway that fell silent has no load after this
MOST_WAKES = 10_000

_encode = msgspec.msgpack.Encoder().encode


async def send_wakes(gateway: Gateway, valkey: Redis) -> None:
    """Each sleep is ended once, however many gateways have requests for it: who sets the mark first sends the message."""
    for wake in gateway.places.wakes():
        mark = f"{WAKE_PREFIX}{wake.deployment_id}:{wake.sleep}"
        if await valkey.set(mark, gateway.config.name, nx=True, px=AGAIN_MS):
            await valkey.xadd(WAKE_STREAM, {b"wake": _encode(wake)}, maxlen=MOST_WAKES, approximate=True)
            gateway.log.info("wake_asked", deployment_id=wake.deployment_id)


async def send_load(gateway: Gateway, valkey: Redis) -> None:
    changed, gone = gateway.loads.take()
    key = LOAD_PREFIX + gateway.config.name
    if changed:
        fields: dict[Any, Any] = dict(changed)
        await valkey.hset(key, mapping=fields)
    if gone:
        await valkey.hdel(key, *gone)
    await valkey.pexpire(key, LOAD_KEPT_MS)
