"""The periodic work of a gateway without Valkey: look after the snapshot file."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from berth_gateway.gateway import Gateway
from berth_gateway.snapshot_file import FileStore, SnapshotFileError

LOOK_SECONDS = 1.0


class Alone:
    """Looks after the file; there is nobody to tell."""

    def __init__(self, gateway: Gateway, store: FileStore) -> None:
        self._gateway, self._store = gateway, store
        gateway.gate.alone = True
        gateway.gate.workers = gateway.config.workers
        gateway.snapshot_applied()

    def jobs(self) -> list[Coroutine[Any, Any, None]]:
        return [watch_file(self._gateway, self._store)]

    async def ready(self) -> None:
        return

    async def close(self) -> None:
        return


async def watch_file(gateway: Gateway, store: FileStore) -> None:
    """Applies the file whenever it changes. One that cannot be read is told once; what was applied stays."""
    told = ""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        try:
            if store.refresh(gateway.wall()):
                gateway.snapshot_applied()
            told = ""
        except SnapshotFileError as fault:
            if str(fault) != told:
                gateway.telemetry.snapshots.add("unreadable")
                gateway.log.error("snapshot_refused", reason="unreadable")
            told = str(fault)
