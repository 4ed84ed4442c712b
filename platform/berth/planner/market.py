"""Tiers as data: what can be rented or owned, at what price. Operators add their own; a provider's offers become tiers the same way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import cache
from typing import Any

import msgspec

from berth.planner.hardware import GIB, Gpu, all_gpus
from berth.planner.tables import document


class Station(msgspec.Struct, frozen=True, eq=False):
    """A machine with some devices of one kind."""

    key: str
    gpu: Gpu
    counts: tuple[int, ...]
    price: Decimal | None  # US dollars an hour and device; None: not priced
    source: str
    regions: tuple[str, ...] = ()  # where the price holds; none: not told
    here: bool = False  # a provider of this installation offers it: other tiers are planned, not deployed


@cache
def stations() -> tuple[Station, ...]:
    return read_stations(document("tiers.toml")["tier"])


def read_stations(entries: Sequence[Mapping[str, Any]]) -> tuple[Station, ...]:
    """From the shape of tiers.toml. Raises KeyError for hardware that is not known."""
    return tuple(_station(entry) for entry in entries)


def _station(entry: Mapping[str, Any]) -> Station:
    gpu = all_gpus()[entry["gpu"]]
    changed: dict[str, Any] = {}
    if "memory_gib" in entry:
        changed |= {"memory": int(entry["memory_gib"] * GIB), "usable": int((entry["memory_gib"] - 1.5) * GIB)}
    if "bandwidth_share" in entry:
        changed["bandwidth"] = gpu.bandwidth * entry["bandwidth_share"]
        changed["flops"] = {kind: rate * entry["bandwidth_share"] for kind, rate in gpu.flops.items()}
    price = entry.get("price")
    return Station(
        key=entry["key"],
        gpu=msgspec.structs.replace(gpu, **changed) if changed else gpu,
        counts=tuple(entry.get("counts", (1,))),
        price=None if price is None else Decimal(str(price)),
        source=entry.get("source", ""),
        regions=tuple(entry.get("regions", ())),
        here=bool(entry.get("here", False)),
    )
