"""Two small worlds that share nothing with the simulator of the product, to hold the autoscaler to results in: servers with places and
one queue, and engines that share their tokens among all they have. Both tell the autoscaler as much or as little as a test wants."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import pairwise
from math import ceil

import msgspec

from berth.deployments.autoscale import Capacity, Goals, Observation, Policy, State, autoscale

Jobs = list[tuple[float, float]]  # arrival, size (mean 1)
Dress = Callable[[Observation], Observation]

GOAL = 1.0  # seconds to the first token


@dataclass
class Outcome:
    jobs: Jobs
    waits: list[float]  # seconds to the first token
    hours: float  # of replicas
    orders: list[tuple[float, int]]  # when, how many
    slowest: float = 0.0  # a decision, seconds of CPU
    final: State = field(default_factory=State)

    def share(self, since: float = 0.0, until: float = 1e18) -> float:
        """Of those that came in that time, within the goal."""
        low = bisect_left(self.jobs, (since,))
        high = bisect_left(self.jobs, (until,))
        return sum(wait <= GOAL for wait in self.waits[low:high]) / max(1, high - low)

    def at(self, moment: float) -> int:
        return max((each for each in self.orders if each[0] <= moment), default=(0.0, 0))[1]

    @property
    def reversals(self) -> int:
        ways = [b > a for (_, a), (_, b) in pairwise(self.orders) if a != b]
        return sum(one != other for one, other in pairwise(ways))


class World:
    """Arrivals, one queue, replicas that are cold for a while. How a replica works is the subclass's."""

    capacity = Capacity()

    def __init__(self, jobs: Jobs, *, initial: int = 1, cold: float = 60.0, interval: float = 2.0, dress: Dress | None = None,
                 told: Capacity | None = None, policy: Policy | None = None, fixed: int | None = None) -> None:  # fmt: skip
        self.jobs, self.cold, self.interval, self.fixed = jobs, cold, interval, fixed
        self.told = self.capacity if told is None else told
        self.dress: Dress = dress or (lambda seen: seen)
        self.policy = policy or Policy(most=200, goals=Goals(first_token_seconds=GOAL, share=0.99))
        self.ready, self.starts, self.state = initial, list[float](), State()
        self.queue: deque[int] = deque()
        self.waits = [1e9] * len(jobs)
        self.came = self.answers = self.late = 0
        self.first_sum = 0.0

    # What a subclass tells of its replicas.
    def flying(self) -> int:
        raise NotImplementedError

    def advance(self, until: float) -> None:
        raise NotImplementedError

    def began(self, number: int, at: float) -> None:
        self.waits[number] = at - self.jobs[number][0]
        self.answers += 1
        self.first_sum += self.waits[number]
        self.late += self.waits[number] > GOAL

    def run(self) -> Outcome:
        now, hours, orders = 0.0, 0.0, [(0.0, self.ready)]
        end = self.jobs[-1][0] + 30.0
        while now < end:
            desired = self.fixed if self.fixed is not None else self.look(now)
            if desired != orders[-1][1]:
                orders.append((now, desired))
            while self.ready + len(self.starts) < desired:
                self.starts.append(now + self.cold)
            while self.ready + len(self.starts) > desired and self.starts:
                self.starts.pop()
            self.ready = min(self.ready, desired)
            hours += (self.ready + len(self.starts)) * self.interval / 3_600.0
            until = now + self.interval
            while self.starts and self.starts[0] <= until:
                self.advance(self.starts.pop(0))
                self.ready += 1
            self.advance(until)
            now = until
        return Outcome(self.jobs, self.waits, hours, orders, final=self.state)

    def look(self, now: float) -> int:
        seen = Observation(
            now=now, arrivals=float(self.came), ready=self.ready, starting=len(self.starts), in_flight=float(self.flying()),
            queued=float(len(self.queue)), policy=self.policy, capacity=self.told, cold_start=self.cold, answers=float(self.answers),
            first_token_seconds=self.first_sum, late=float(self.late),
        )  # fmt: skip
        decision, self.state = autoscale(self.dress(seen), self.state)
        return decision.desired


class Places(World):
    """M/G/c: each replica has 16 places; a request takes one for 4 s times its size, and its first token comes 0.15 s after it got it."""

    PLACES, SECONDS, PREFILL = 16, 4.0, 0.15
    capacity = Capacity(requests_per_second=3.0, pooled_requests_per_second=3.5, concurrency=12.0)

    def __init__(self, *args: object, **more: object) -> None:
        super().__init__(*args, **more)  # type: ignore[arg-type]
        self.ends: list[float] = []

    def flying(self) -> int:
        return len(self.ends)

    def advance(self, until: float) -> None:
        while True:
            come = self.jobs[self.came][0] if self.came < len(self.jobs) else 1e18
            leave = self.ends[0] if self.ends else 1e18
            at = min(come, leave)
            if at > until:
                break
            if come <= leave:
                self.queue.append(self.came)
                self.came += 1
            else:
                heappop(self.ends)
            self._fill(at)
        self._fill(until)

    def _fill(self, at: float) -> None:
        while self.queue and len(self.ends) < self.PLACES * self.ready:
            number = self.queue.popleft()
            self.began(number, at + self.PREFILL)
            heappush(self.ends, at + self.SECONDS * self.jobs[number][1])


class Shared(World):
    """Processor sharing: whoever is within a replica gets an equal share of its tokens; prompts are worked off first, one after
    another, at most half of the time. Nothing waits at a gateway: requests go to the replica with the least at once, and stay."""

    STEP = 0.1
    PROMPT, TOKENS = 40.0, 1_200.0  # prompts (of size 1) a second; tokens a second that all share
    REPLY, EACH = 60.0, 60.0  # tokens of a reply of size 1; tokens a second that one gets at most
    capacity = Capacity(requests_per_second=13.0, pooled_requests_per_second=15.0, concurrency=30.0)

    def __init__(self, *args: object, **more: object) -> None:
        super().__init__(*args, **more)  # type: ignore[arg-type]
        self.engines: list[tuple[deque[list[float]], list[list[float]]]] = []
        self.clock = 0.0

    def flying(self) -> int:
        return sum(len(prompts) + len(replies) for prompts, replies in self.engines)

    def advance(self, until: float) -> None:
        while len(self.engines) < self.ready:
            self.engines.append((deque(), []))
        while self.clock + self.STEP <= until + 1e-9:
            self.clock += self.STEP
            self._arrive()
            for prompts, replies in self.engines:
                self._work(prompts, replies)
        # Who is no longer wanted is emptied into the others: it only finishes what it has.
        while len(self.engines) > max(1, self.ready):
            prompts, replies = self.engines.pop()
            self.engines[0][0].extend(prompts)
            self.engines[0][1].extend(replies)

    def _arrive(self) -> None:
        while self.came < len(self.jobs) and self.jobs[self.came][0] <= self.clock:
            size = self.jobs[self.came][1]
            least = min(self.engines, key=lambda each: len(each[0]) + len(each[1]))
            least[0].append([self.came, size / self.PROMPT, self.REPLY * size])
            self.came += 1

    def _work(self, prompts: deque[list[float]], replies: list[list[float]]) -> None:
        left = self.STEP * (0.5 if replies else 1.0)
        used = 0.0
        while prompts and left > 0:
            head = prompts[0]
            part = min(head[1], left)
            head[1] -= part
            left -= part
            used += part
            if head[1] <= 1e-9:
                prompts.popleft()
                self.began(int(head[0]), self.clock)
                replies.append(head)
        if replies:
            each = min(self.EACH, self.TOKENS / len(replies)) * (self.STEP - used)
            for one in replies:
                one[2] -= each
            replies[:] = [one for one in replies if one[2] > 0]


# Traffic. `scale`: requests a second that the calm has.


def jobs(rate: Callable[[float], float], span: float, highest: float, seed: int = 1) -> Jobs:
    chance, found, at = random.Random(seed), Jobs(), 0.0
    while True:
        at += chance.expovariate(highest)
        if at >= span:
            return found
        if chance.random() * highest < rate(at):
            found.append((at, chance.gammavariate(2.0, 0.5)))


def turns(
    span: float, seed: int, draw: Callable[[random.Random, int], tuple[float, float]]
) -> Callable[[float], float]:
    """`draw`: seconds and rate of the i-th stretch."""
    chance, begins, rates, at = random.Random(seed), list[float](), list[float](), 0.0
    while at < span:
        seconds, rate = draw(chance, len(begins))
        begins.append(at)
        rates.append(rate)
        at += seconds

    return lambda moment: rates[max(0, bisect_left(begins, moment) - 1)]


def spiky(scale: float, times: float, low: float, high: float, span: float = 3_600.0, seed: int = 1) -> Jobs:
    """Spikes of `times` as much, for `low` to `high` seconds, every three to ten minutes."""
    rate = turns(
        span, seed, lambda c, i: (c.uniform(low, high), times * scale) if i % 2 else (c.uniform(180, 600), scale)
    )
    return jobs(rate, span, times * scale, seed)


def modulated(scale: float, span: float = 3_600.0, seed: int = 1) -> Jobs:
    rate = turns(span, seed, lambda c, i: (40.0 + c.expovariate(1 / 120.0), scale * (1.0, 3.0)[i % 2]))
    return jobs(rate, span, 3.0 * scale, seed)


def batches(scale: float, span: float = 3_600.0, seed: int = 1) -> Jobs:
    rate = turns(
        span, seed, lambda c, i: (c.uniform(120, 300), 0.02 * scale) if i % 2 else (c.uniform(90, 240), 3.0 * scale)
    )
    return jobs(rate, span, 3.0 * scale, seed)


def crowds(scale: float, span: float = 5_400.0, seed: int = 1) -> Jobs:
    def rate(at: float) -> float:
        into = at % 1_200.0 - 600.0
        return scale * (
            1.0 + (0.0 if into < 0 else 6.0 * min(1.0, into / 45.0) * 0.5 ** (max(0.0, into - 45.0) / 120.0))
        )

    return jobs(rate, span, 7.0 * scale, seed)


def selfsimilar(scale: float, span: float = 3_600.0, seed: int = 1) -> Jobs:
    """Many sources that are on and off for Pareto times."""
    chance, sources = random.Random(seed), list[Callable[[float], float]]()
    for _ in range(20):
        begin = chance.randrange(2)

        def drawn(c: random.Random, i: int, begin: int = begin) -> tuple[float, float]:
            return min(1_200.0, 20.0 * c.paretovariate(1.3)), 0.1 * scale * ((i + begin) % 2)

        sources.append(turns(span, chance.randrange(10**6), drawn))
    return jobs(lambda at: sum(source(at) for source in sources), span, 2.0 * scale, seed)


def daily(scale: float, span: float = 7_200.0, seed: int = 1) -> Jobs:
    wobble = turns(span, seed, lambda c, _: (90.0, c.lognormvariate(0.0, 0.15)))
    return jobs(lambda at: min(3.0, (1.0 + at / span) * wobble(at)) * scale, span, 3.0 * scale, seed)


def stepped(scale: float, times: float, at: float = 600.0, span: float = 1_800.0, seed: int = 1) -> Jobs:
    return jobs(lambda moment: scale * (times if moment >= at else 1.0), span, times * scale, seed)


def peak_of(made: Jobs, window: float = 10.0) -> float:
    """Requests a second in the busiest stretch."""
    counts: dict[int, int] = {}
    for at, _ in made:
        counts[int(at // window)] = counts.get(int(at // window), 0) + 1
    return max(counts.values()) / window


def fixed_at_peak(kind: type[World], made: Jobs) -> int:
    """Replicas that do what the busiest ten seconds bring."""
    return ceil(peak_of(made) / (kind.capacity.pooled_requests_per_second or 1.0))


# How little or how oddly a caller tells.


def bare(seen: Observation) -> Observation:
    """Only counted arrivals, and how many replicas there are."""
    return Observation(now=seen.now, arrivals=seen.arrivals, ready=seen.ready, starting=seen.starting, policy=seen.policy,
                       capacity=seen.capacity, cold_start=seen.cold_start)  # fmt: skip


def gauges(seen: Observation) -> Observation:
    return msgspec.structs.replace(bare(seen), in_flight=seen.in_flight, queued=seen.queued)


def flying_only(seen: Observation) -> Observation:
    return msgspec.structs.replace(gauges(seen), arrivals=None)


class Rates:
    """Arrivals as a rate since the last call, or as a count in a window, each off by some share."""

    def __init__(self, window: float | None = None, noise: float = 0.0) -> None:
        self.window, self.chance, self.noise = window, random.Random(5), noise
        self.last: tuple[float, float] | None = None

    def __call__(self, seen: Observation) -> Observation:
        at, came = self.last or (seen.now, seen.arrivals or 0.0)
        self.last = (seen.now, seen.arrivals or 0.0)
        fresh = ((seen.arrivals or 0.0) - came) * max(0.0, self.chance.gauss(1.0, self.noise) if self.noise else 1.0)
        told = gauges(seen)
        if self.window is not None:
            return msgspec.structs.replace(told, arrivals=fresh, window=self.window)
        return msgspec.structs.replace(
            told, arrivals=None, arrival_rate=fresh / (seen.now - at) if seen.now > at else 0.0
        )
