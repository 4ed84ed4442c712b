"""How bursty a deployment is, and how much head-room that is worth. Pure.

A forecast is compared with what came when its time was up; the ratios go into a histogram that forgets slowly. Head-room is bought
as long as it costs less than the requests that would be late without it.
"""

from __future__ import annotations

from math import ceil, exp, log
from typing import Final

import msgspec

from berth.deployments.scaling.measured import Rate

LEAST, STEP, BUCKETS = 0.9, 1.06, 64  # ratios from 0.9 to 35
MEMORY: Final = 4 * 3_600.0  # seconds after which a comparison counts 1/e
PRIOR: Final = ((1.0, 300.0), (1.1, 18.0))  # believed before anything was seen: ratio, weight
PRICE: Final = 1.1  # of late requests, in capacity: over the root of their allowance, so that strict goals buy more


class Surprises(msgspec.Struct, frozen=True):
    """`weights[i]`: how much work came at LEAST * STEP**i times the forecast or a little more; in means of recent work."""

    weights: tuple[float, ...] = ()
    scale: float = 0.0  # the work of a usual comparison, so that a comparison weighs about 1

    def with_ratio(self, ratio: float, work: float, elapsed: float) -> Surprises:
        """`work`: how much came, so that many late requests count more than few. `elapsed`: seconds since the last comparison."""
        weights = list(self.weights or _prior())
        kept = exp(-elapsed / MEMORY)
        weights = [each * kept for each in weights]
        scale = work if self.scale <= 0 else self.scale + 0.02 * (work - self.scale)
        if scale > 0 and work > 0:
            weights[_bucket(ratio)] += min(work / scale, 20.0)
        return Surprises(tuple(weights), scale)

    def above(self, ratio: float) -> float:
        """The share of work that comes at more than `ratio` times the forecast."""
        weights = self.weights or _prior()
        total = sum(weights)
        if total <= 0:
            return 0.0
        place = log(max(ratio, LEAST) / LEAST) / log(STEP)
        if not place < BUCKETS:
            return 0.0  # endlessly many times included
        index = int(place)
        part = weights[index] * (1.0 - (place - index))
        return min(1.0, max(0.0, (part + sum(weights[index + 1 :])) / total))


def best_count(surprises: Surprises, rate: Rate, expected: float, allowance: float, most: float, limit: int) -> int:
    """The number of replicas at which one more would cost more than the late requests that it spares. `expected`: work a second;
    `allowance`: the share of requests that may be late; `most`: times `expected` beyond which nothing is bought;
    `limit`: replicas beyond which there is nothing to choose."""
    if expected <= 0:
        return 0
    least = rate.replicas(expected)
    if 0.8 * least >= limit:
        return ceil(least)  # more than may be had: nothing to choose
    last = min(max(ceil(least), ceil(rate.replicas(expected * most) - 1e-6)), max(limit, ceil(least)))
    price = PRICE / max(allowance, 1e-4) ** 0.5
    best, best_cost = 0, float("inf")
    for count in range(max(1, int(0.8 * least)), last + 1):
        if rate.edge(count) < expected and count < last:
            continue
        cost = count / least + price * surprises.above(rate.edge(count) / expected)
        if cost < best_cost - 1e-9:
            best, best_cost = count, cost
    return best


def _bucket(ratio: float) -> int:
    place = log(max(ratio, LEAST) / LEAST) / log(STEP)
    return max(0, int(place)) if place < BUCKETS else BUCKETS - 1


def _prior() -> tuple[float, ...]:
    weights = [0.0] * BUCKETS
    for ratio, weight in PRIOR:
        weights[_bucket(ratio)] += weight
    return tuple(weights)
