"""What a run is worth: percentiles, the share within the goals, replica-hours, actions and reversals."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import msgspec

from berth.deployments.scaling.observation import Goals
from berth.deployments.simulate.replica import Requests
from berth.deployments.simulate.setting import Run
from berth.deployments.simulate.speed import Speed

HOUR = 3_600.0


class Measured(msgspec.Struct, frozen=True):
    """Seconds; shares from 0 to 1."""

    name: str
    requests: int
    ttft: tuple[float, float, float]  # 50th, 95th, 99th percentile
    tpot: tuple[float, float, float]
    share: float  # within the goals, of all that arrived
    replica_hours: float
    dropped: int
    held: int
    longest_wait: float  # for the first token; of those that were not dropped
    actions: int
    reversals: int
    reversals_per_hour: float
    most_replicas: int


def judge(goals: Goals, speed: Speed) -> Callable[[Requests, int], bool]:
    """Whether a request was within the goals. One whose prompt alone takes longer than the goal counts against twice that."""

    def good(requests: Requests, number: int) -> bool:
        first, end = requests.first[number], requests.end[number]
        if first < 0 or end < 0:
            return False
        if goals.first_token_seconds is not None:
            taken = first - requests.arrival[number]
            if taken > goals.first_token_seconds:
                alone = speed.unloaded(requests.prompt[number])
                if alone <= goals.first_token_seconds or taken > 2.0 * alone:
                    return False
        tokens = requests.output[number] - 1
        return goals.token_seconds is None or tokens < 1 or end - first <= goals.token_seconds * tokens

    return good


def reversals(run: Run) -> int:
    """How often the number of replicas went the other way than before."""
    ways = [change.after > change.before for change in run.changes]
    return sum(one != other for one, other in pairwise(ways))


def percentiles(values: list[float]) -> tuple[float, float, float]:
    if not values:
        return (0.0, 0.0, 0.0)
    values.sort()
    last = len(values) - 1
    return (values[int(0.5 * last)], values[int(0.95 * last)], values[int(0.99 * last)])


def measure(name: str, run: Run, goals: Goals, speed: Speed, begin: float = 0.0, end: float = 1e18) -> Measured:
    """`begin`, `end`: only requests that arrived between them are judged."""
    requests, good = run.requests, judge(goals, speed)
    numbers = [n for n in range(len(requests)) if begin <= requests.arrival[n] < end]
    served = [n for n in numbers if requests.first[n] >= 0]
    ttft = [requests.first[n] - requests.arrival[n] for n in served]
    tpot = [
        (requests.end[n] - requests.first[n]) / (requests.output[n] - 1)
        for n in served
        if requests.output[n] > 1 and requests.end[n] >= 0
    ]
    back = reversals(run)
    return Measured(
        name=name,
        requests=len(numbers),
        ttft=percentiles(ttft),
        tpot=percentiles(tpot),
        share=sum(good(requests, n) for n in numbers) / len(numbers) if numbers else 1.0,
        replica_hours=run.replica_seconds / HOUR,
        dropped=len(run.dropped),
        held=run.held,
        longest_wait=max(ttft, default=0.0),
        actions=len(run.changes),
        reversals=back,
        reversals_per_hour=back / (max(run.span, 1.0) / HOUR),
        most_replicas=run.most,
    )
