"""Hardware that replicas can be planned on, as the planner sees it."""

from __future__ import annotations

from decimal import Decimal

import msgspec


class Tier(msgspec.Struct, frozen=True):
    """What one replica could have there if nothing else ran."""

    key: str  # "cpu-local"
    kind: str  # "cpu", "gpu"
    cores: int
    memory_bytes: int
    memory_bandwidth: int | None = None  # bytes per second; None: not known
    price_per_hour: Decimal | None = None  # of one replica; None: not priced
    gpu: str | None = None  # the planner's name of its devices
    gpus: int = 0  # devices that one replica could have

    @property
    def usable_memory(self) -> int:
        """Without what the system and Berth itself need beside a replica: 1 GiB, on small machines a quarter."""
        return self.memory_bytes - min(1 << 30, self.memory_bytes // 4)

    @property
    def threads(self) -> int:
        """For one engine. All cores at once collapse as soon as anything else wants one (measured), so one stays free."""
        return max(1, self.cores - 1)
