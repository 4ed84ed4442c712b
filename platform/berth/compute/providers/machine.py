"""What this machine has: cores, memory and how fast it reads memory, within the limits set on us."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

import psutil

_CGROUP: Final = Path("/sys/fs/cgroup")
_COPY_BYTES: Final = 64 << 20  # well above what a processor caches
_COPIES: Final = 3


def cores() -> int:
    """CPU cores that we may use, at least 1."""
    allowed = len(os.sched_getaffinity(0))
    quota, period = _first_words(_CGROUP / "cpu.max")
    if quota.isdigit() and period.isdigit() and int(period):
        allowed = min(allowed, int(quota) // int(period))
    return max(allowed, 1)


def memory() -> int:
    """Bytes of memory that we may use."""
    total = psutil.virtual_memory().total
    limit, _ = _first_words(_CGROUP / "memory.max")
    return min(total, int(limit)) if limit.isdigit() else total


def free_memory() -> int:
    """Bytes of these that could be used now without swapping."""
    available = psutil.virtual_memory().available
    limit, _ = _first_words(_CGROUP / "memory.max")
    used, _ = _first_words(_CGROUP / "memory.current")
    if limit.isdigit() and used.isdigit():
        available = min(available, max(int(limit) - int(used), 0))
    return available


@cache
def memory_bandwidth() -> int:
    """Bytes per second, the best of a few large copies by one core (read and write both count). Takes about 0.1 s."""
    source = bytearray(_COPY_BYTES)
    target = bytearray(_COPY_BYTES)
    best = float("inf")
    for _ in range(_COPIES):
        began = time.perf_counter()
        target[:] = source
        best = min(best, time.perf_counter() - began)
    return int(2 * _COPY_BYTES / best)


def _first_words(path: Path) -> tuple[str, str]:
    with suppress(OSError):
        words = [*path.read_text().split(), "", ""]
        return words[0], words[1]
    return "", ""
