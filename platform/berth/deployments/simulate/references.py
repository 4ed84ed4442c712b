"""What scaling is compared with: a fixed number, a plain target-concurrency HPA, and somebody who knows the future."""

from __future__ import annotations

from collections import deque
from math import ceil

from berth.deployments.scaling.observation import Observation
from berth.deployments.simulate.setting import Order
from berth.deployments.simulate.trace import Trace


class Always:
    """The same number from beginning to end."""

    interval = 60.0

    def __init__(self, count: int, concurrency: int | None) -> None:
        self._order = Order(count, concurrency)

    def decide(self, seen: Observation) -> Order:
        return self._order


class TargetConcurrency:
    """Kubernetes' horizontal pod autoscaler on requests in flight, with its own defaults: every 15 s, 10 % tolerance, at most twice
    as many (or four more) in 15 s, and the highest recommendation of 300 s on the way down."""

    interval = 15.0
    _TOLERANCE, _DOWN = 0.1, 300.0

    def __init__(self, target: float, concurrency: int | None) -> None:
        self._target, self._concurrency = target, concurrency
        self._advised: deque[tuple[float, int]] = deque()
        self._count: int | None = None

    def decide(self, seen: Observation) -> Order:
        count = self._count if self._count is not None else max(1, seen.ready + seen.starting)
        load = seen.flying + seen.held
        ratio = load / (self._target * max(1, seen.ready))
        advised = count
        if abs(ratio - 1.0) > self._TOLERANCE:
            advised = ceil(load / self._target)
        advised = min(max(advised, seen.policy.least, 1), seen.policy.most)
        self._advised.append((seen.now, advised))
        while self._advised[0][0] < seen.now - self._DOWN:
            self._advised.popleft()
        highest = max(each for _, each in self._advised)
        count = min(advised, max(2 * count, count + 4)) if advised > count else min(count, highest)
        self._count = count
        return Order(count, self._concurrency)


class Clairvoyant:
    """Knows all arrivals. Has a replica ready exactly while it is needed, asks for it the cold start before, and keeps it through pauses
    that are shorter than a cold start, since a new one would cost more."""

    interval = 1.0

    def __init__(
        self, counts: list[int], slot: float, cold_start: float, concurrency: int | None, begin: float
    ) -> None:
        self._slot, self._concurrency, self._begin = slot, concurrency, begin
        self._orders = plan_ahead(counts, ceil(cold_start / slot))

    @property
    def initial(self) -> int:
        return self._orders[0]

    def decide(self, seen: Observation) -> Order:
        slot = min(len(self._orders) - 1, int((seen.now - self._begin) / self._slot))
        return Order(self._orders[slot], self._concurrency)


def plan_ahead(counts: list[int], ahead: int) -> list[int]:
    """Replicas that have to exist in each slot so that `counts` are ready in it, at the least cost. Each level of the count is looked at
    on its own: a pause of up to `ahead` slots is cheaper kept than ended."""
    orders = [0] * len(counts)
    for level in range(1, max(counts, default=0) + 1):
        last: int | None = None
        for slot, count in enumerate(counts):
            if count >= level:
                begin = max(0, slot - ahead) if last is None or slot - last - 1 > ahead else last + 1
                for each in range(begin, slot + 1):
                    orders[each] += 1 if last is None or each > last else 0
                last = slot
    return orders


def work_by_slot(trace: Trace, slot: float, weights: tuple[float, float]) -> list[float]:
    """Requests' work that arrives in each slot: `weights` of a prompt token and of a reply token."""
    found = [0.0] * (int(trace.span / slot) + 1)
    for at, prompt, output in zip(trace.at, trace.prompt, trace.output, strict=True):
        found[int(at / slot)] += weights[0] * prompt + weights[1] * output
    return found


def needed(work: list[float], slot: float, rate: float, window: int, least: int = 0) -> list[int]:
    """Replicas for each slot, if one does `rate` work a second and the busiest of the `window` slots around counts."""
    counts = []
    for index in range(len(work)):
        near = work[max(0, index - window) : index + window + 1]
        counts.append(max(least, ceil(max(near) / (slot * rate) - 1e-9)))
    return counts
