"""A third small world, as somebody writes it who has read only docs/autoscaling.md: replicas work off batches, one after another; the
clock is Unix time; the autoscaler is told arrivals, requests in flight, replicas, and a capacity that is somewhat off."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise

from berth.deployments.autoscale import Capacity, Goals, Observation, Policy, State, autoscale

MOST, FIXED, EACH = 16, 0.2, 0.02  # requests of a batch; seconds of a batch, and more for each request in it
CAPACITY = 22.0  # requests a second of one replica within a second: of 30 that it does when it is full
BEGIN = 1_700_000_000.0


def arrivals(rate: Callable[[float], float], span: float, highest: float, seed: int) -> list[float]:
    chance, found, at = random.Random(seed), list[float](), 0.0
    while at < span:
        at += chance.expovariate(highest)
        if chance.random() * highest < rate(at):
            found.append(at)
    return found


class Batched:
    """`off`: what is told of the capacity, times what it is. `counts`: how many were asked for, at each call."""

    def __init__(self, came: list[float], replicas: int, *, off: float = 1.0, cold: float = 60.0, interval: float = 5.0,
                 begin: float = BEGIN, fixed: bool = False) -> None:  # fmt: skip
        self.came, self.cold, self.interval, self.begin, self.fixed = came, cold, interval, begin, fixed
        self.capacity = Capacity(requests_per_second=CAPACITY * off, concurrency=10.0 * off)
        self.policy = Policy(least=1, most=100, goals=Goals(first_token_seconds=1.0, share=0.99))
        self.free = [0.0] * replicas  # when each has done its batch
        self.ends = list[list[float]]([[] for _ in range(replicas)])
        self.starts = list[float]()
        self.state, self.counts, self.seconds = State(), list[int](), 0.0
        self.waits = list[float]()  # of the requests that a replica has taken

    def run(self) -> Batched:
        now = 0.0
        while len(self.waits) < len(self.came) and now < self.came[-1] + 600.0:
            self.look(now)
            self.seconds += self.interval * (len(self.free) + len(self.starts))
            until = now + self.interval
            while self.starts and self.starts[0] < until:
                self.serve(self.starts[0])
                self.free.append(self.starts.pop(0))
            self.serve(until)
            now = until
        return self

    def look(self, now: float) -> None:
        arrived = bisect_right(self.came, now) - len(self.waits)
        working = sum(at > now for at in self.busy(now))
        seen = Observation(
            now=self.begin + now,
            arrivals=len(self.waits) + arrived,
            ready=len(self.free),
            starting=len(self.starts),
            in_flight=working + arrived,
            policy=self.policy,
            capacity=self.capacity,
            cold_start=self.cold,
        )
        decision, self.state = autoscale(seen, self.state)
        desired = len(self.free) if self.fixed else decision.desired
        self.counts.append(desired)
        while len(self.free) + len(self.starts) < desired:
            self.starts.append(now + self.cold)
        while len(self.free) + len(self.starts) > desired and self.starts:
            self.starts.pop()
        self.free = sorted(self.free)[: max(1, desired)] if len(self.free) > desired else self.free

    def busy(self, now: float) -> list[float]:
        self.ends = [[at for at in batch if at > now] for batch in self.ends]
        self.ends = [batch for batch in self.ends if batch]
        return [at for batch in self.ends for at in batch]

    def serve(self, until: float) -> None:
        """Whoever is free first takes what waits, at most a batch."""
        while len(self.waits) < len(self.came):
            first = min(range(len(self.free)), key=self.free.__getitem__)
            begin = max(self.free[first], self.came[len(self.waits)])
            if begin >= until:
                return
            batch = [at for at in self.came[len(self.waits) : len(self.waits) + MOST] if at <= begin]
            end = begin + FIXED + EACH * len(batch)
            self.free[first] = end
            self.ends.append([end] * len(batch))
            self.waits += [end - at for at in batch]

    def share(self, since: float = 0.0) -> float:
        judged = [wait <= 1.0 for at, wait in zip(self.came, self.waits, strict=False) if at >= since]
        return sum(judged) / len(judged)

    @property
    def reversals(self) -> int:
        ways = [after > before for before, after in pairwise(self.counts) if after != before]
        return sum(one != other for one, other in pairwise(ways))
