"""What waits now, and what will wait until replicas that start are ready: arithmetic of flows. Pure. Requests and seconds."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Backlog(msgspec.Struct, frozen=True):
    peak: float  # the most that will wait before replicas asked for now could help
    left: float  # what will still wait then


def foresee(
    waiting: float, rate: float, ready: int, each: float, starts: Sequence[tuple[float, int]], ahead: float
) -> Backlog:
    """`each`: requests a second that a replica works off when it is full; `starts`: in how many seconds how many become ready."""
    level = peak = max(0.0, waiting)
    serving, at = ready, 0.0
    for when, count in [*sorted(starts), (ahead, 0)]:
        until = min(max(when, at), ahead)
        level = max(0.0, level + (rate - serving * each) * (until - at))
        peak = max(peak, level)
        at = until
        serving += count
    return Backlog(peak, level)
