"""What a replica can really do: the planned capacity, corrected by how it answers at the load that it has. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from berth.deployments.scaling.observation import Capacity, Goals

LEAST_FACTOR, MOST_FACTOR = 0.3, 3.0
CLEAN: Final = 30.0  # seconds without a change of the fleet that an assessment covers at least
ANSWERS: Final = 40.0  # in that time at least
DOWN, MOST_DOWN = 0.93, 0.8  # the least and the most of a correction at once
RECOVER: Final = 7_200.0  # seconds after which one that was not confirmed is halved
NEAR, PROVED = 0.7, 6.0  # of what is believed: so much that it is confirmed; times as fast then
LEFT: Final = 0.2
TRUE, MARGIN = (
    0.85,
    0.75,
)  # of what is believed that a full replica does: less is a correction; of it, what it does within the goals
STALE, SOME = 10.0, 0.9  # times the goal for the first token; a share of the answers
CROWDED, ROOMY = 2.0, 1.3  # times the planned concurrency in flight


class Corrected(msgspec.Struct, frozen=True):
    """`factor` on what was planned; `seen`: the most work a second of one replica at which the goals were kept."""

    factor: float = 1.0
    seen: float = 0.0
    strained: float | None = None  # the least work a second at which they were missed, lately


class Window(msgspec.Struct, frozen=True):
    """What was measured over a stretch in which the fleet did not change. Means; None: not known."""

    seconds: float
    work: float  # a second, of one replica
    answers: float
    first: float | None = None  # seconds to the first token, waiting at the gateway left out
    late: float | None = None  # share of the answers
    token: float | None = None  # seconds between tokens
    waiting: float = 0.0  # requests that waited outside replicas, at its end
    cache_use: float | None = None
    peak: float = 0.0  # work a second of one replica in its busiest ten seconds
    left: float = 0.0  # share of what came that had not been finished at its end
    crowd: float | None = None  # requests in flight at its end, times the planned concurrency


def is_strained(window: Window, goals: Goals, unloaded: float | None) -> bool:
    """Whether a replica is at its end: the mean shows it before the goals are missed, because waiting times spread widely."""
    allowed = 1.0 - goals.share
    if window.late is not None and window.late > 2.0 * allowed and window.late * window.answers >= 4.0:
        return True
    goal = goals.first_token_seconds
    if goal is not None and window.first is not None:
        alone = min(unloaded or 0.0, goal)
        if window.first > alone + (goal - alone) / 3.0:
            return True
    if goals.token_seconds is not None and window.token is not None and window.token > 0.8 * goals.token_seconds:
        return True
    if window.crowd is not None and window.crowd > CROWDED:
        return True
    if window.crowd is None and window.late is None and window.first is None and window.left > LEFT:
        return True
    return window.cache_use is not None and window.cache_use > 0.97


def is_stale(window: Window, goals: Goals) -> bool:
    """Whether those that were late had waited since long before, while others were not late: what came earlier is being worked off."""
    goal = goals.first_token_seconds
    if goal is None or window.first is None or not window.late:
        return False
    return window.late < SOME and window.first / window.late > STALE * goal


def corrected(known: Corrected, window: Window, goals: Goals, believed: float, unloaded: float | None) -> Corrected:
    """`believed`: work a second of one replica by `known`. Being late with more than was believed possible says nothing new."""
    if window.seconds < CLEAN or window.answers < ANSWERS or window.work <= 0 or believed <= 0:
        return known
    if is_stale(window, goals):
        return known
    if is_strained(window, goals, unloaded):
        peak = max(window.work, window.peak)
        if window.work > 1.1 * believed:
            return known
        # What was late even in its busiest seconds with less than was believed is less by that much.
        factor = max(LEAST_FACTOR, known.factor * max(MOST_DOWN, min(DOWN, peak / believed)))
        seen = min(known.seen, max(window.work, MOST_DOWN * known.seen))
        return Corrected(factor, seen, window.work)
    strained = known.strained
    if strained is not None and window.work > strained:
        strained = window.work
    factor = known.factor
    told = window.first is not None or window.late is not None
    if window.work > believed and told and (window.crowd or 0.0) < ROOMY:
        factor *= window.work / believed
    elif factor < 1.0:
        proved = PROVED if window.work > NEAR * believed and (window.crowd or 0.0) < ROOMY else 1.0
        factor += (1.0 - factor) * min(1.0, proved * window.seconds / RECOVER)
    return Corrected(min(factor, MOST_FACTOR), max(known.seen, window.work), strained)


def overfull(known: Corrected, done: float, full: float | None, planned: bool) -> Corrected:
    """`done`: work a second that a replica does while requests wait for it; `full`: what was believed; `planned`: by a plan."""
    if done <= 0:
        return known
    if not planned:
        return msgspec.structs.replace(known, seen=min(known.seen, MARGIN * done) if known.seen > 0 else MARGIN * done)
    if full is None or done >= TRUE * full:
        return known
    return msgspec.structs.replace(known, factor=max(LEAST_FACTOR, known.factor * max(MOST_DOWN, done / full)))


class Rate(msgspec.Struct, frozen=True):
    """Requests a second of one replica: alone, and in a large fleet; and what it works off when it is full."""

    alone: float
    pooled: float

    @property
    def full(self) -> float:
        return 1.1 * self.pooled

    def work(self, count: int) -> float:
        """Work a second of so many."""
        return float(count * self.pooled - (self.pooled - self.alone) * count**0.5)

    def edge(self, count: int) -> float:
        """Work a second from which on many requests are late: between what is done within the goals and what is done when all are
        full. A short stretch just above the first harms few; a large fleet has less room between the two."""
        within, full = self.work(count), self.full * count
        return float(within * (full / within) ** min(0.5, EDGE / count))

    def replicas(self, load: float) -> float:
        """That do `load`, as a fraction. n replicas do n*pooled - (pooled - alone)*sqrt(n): of many, one is always free."""
        if load <= 0:
            return 0.0
        less = self.pooled - self.alone
        root = (less + (less * less + 4.0 * self.pooled * load) ** 0.5) / (2.0 * self.pooled)
        return float(root * root)


EDGE: Final = 1.2  # replicas: how soon the room above what is done within the goals is not counted on any more
POOLING: Final = 1.1  # what a fleet adds where nobody said


def rate_of(capacity: Capacity, factor: float, residence: float | None, seen: float) -> Rate | None:
    """`residence`: seconds that a request spends in a replica. None: nothing was planned and nothing is known yet."""
    alone = capacity.requests_per_second
    if alone is None and capacity.concurrency is not None and residence:
        alone = capacity.concurrency / residence
    if alone is None:
        # Nobody planned anything: what was done well before can be done again, and a little more is tried.
        tried = _bounded(1.2 * seen * min(1.0, factor))
        return Rate(tried, tried) if seen > 0 else None
    pooled = capacity.pooled_requests_per_second or alone * POOLING
    alone = _bounded(alone * factor)
    return Rate(alone, max(alone, _bounded(pooled * factor)))


def _bounded(rate: float) -> float:
    """Nothing is infinitely fast or slow."""
    return min(max(rate, 1e-6), 1e9)
