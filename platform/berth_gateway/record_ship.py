"""Takes records from memory to the Valkey stream, sealed. Whatever has no room, or no Valkey, is dropped and counted."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from berth_gateway.contract import MOST_RECORDS, RECORD_STREAM, SealedRecord
from berth_gateway.gateway import Gateway
from berth_gateway.recording import Captured, sealed

AT_ONCE = 50

_encode = msgspec.msgpack.Encoder().encode


class RecordShipper:
    """Seals in a thread, so that no request waits for it."""

    def __init__(self, gateway: Gateway, usage_key: bytes) -> None:
        self._gateway = gateway
        self._key = usage_key
        gateway.records.ships = True

    async def step(self, valkey: Any) -> bool:
        """One round. True if there is more. Raises on lost contact; what was taken is then dropped."""
        gateway = self._gateway
        taken = gateway.records.take(AT_ONCE)
        if not taken:
            return False
        try:
            made = await asyncio.to_thread(self._seal, taken)
            waiting = await valkey.xlen(RECORD_STREAM)
            room = max(0, MOST_RECORDS - int(waiting))
            async with valkey.pipeline(transaction=False) as pipe:
                for record in made[:room]:
                    pipe.xadd(RECORD_STREAM, {b"record": _encode(record)})
                await pipe.execute()
        except BaseException:
            gateway.telemetry.records.add("valkey", by=len(taken))
            raise
        gateway.telemetry.records.add("shipped", by=min(room, len(made)))
        if len(made) > room:
            gateway.telemetry.records.add("full", by=len(made) - room)
        return bool(gateway.records.waiting)

    def _seal(self, taken: list[Captured]) -> list[SealedRecord]:
        name, made = self._gateway.config.name, []
        for each in taken:
            try:
                made.append(sealed(each, name, self._key))
            except ValueError:  # no public key at all: nothing may leave as it is
                self._gateway.telemetry.records.add("unsealable")
        return made
