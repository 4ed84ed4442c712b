"""What a replica was measured to do, from the requests that it served. Pure.

Decode speed of a request: (completion tokens − 1) / (duration − first token). Medians, so that single odd requests do not count.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from statistics import median
from typing import Final

import msgspec

from berth.metering.selectors import Served

SPEED: Final = "tokens_per_second"
FIRST: Final = "ttft_ms"
MEMORY: Final = "memory"  # bytes of a replica; the most that was seen, and no median of requests
LEAST_TOKENS: Final = 8  # of a completion: a shorter one says little about speed
ALONE: Final = 1.25  # requests at once, below which a first token does not wait for others


class Measured(msgspec.Struct, frozen=True):
    """The median over `count` requests, and what they were like in the median."""

    metric: str  # SPEED (of one request) or FIRST
    value: float
    count: int
    load: float  # requests at once in a replica
    fresh_tokens: int  # prompt tokens that no cache answered
    context: int  # tokens half way through the answer
    since: float  # Unix seconds: when the first and the last of them came
    until: float


def measure(requests: Sequence[Served], replicas: int) -> list[Measured]:
    """`requests` of one revision, whatever became of them: all are load, but only those that the engine counted are measured."""
    beside = _loads(requests, replicas)
    found = []
    for metric, value_of in ((SPEED, _speed), (FIRST, _first)):
        one = _median(metric, requests, beside, value_of)
        if one is not None:
            found.append(one)
    return found


def _median(
    metric: str, requests: Sequence[Served], beside: Sequence[float], value_of: Callable[[Served], float | None]
) -> Measured | None:
    pairs = [
        (request, value, load)
        for request, load in zip(requests, beside, strict=True)
        if (value := value_of(request)) is not None
    ]
    if not pairs:
        return None
    counted = [request for request, _, _ in pairs]
    return Measured(
        metric=metric,
        value=median(value for _, value, _ in pairs),
        count=len(pairs),
        load=round(median(load for _, _, load in pairs), 2),
        fresh_tokens=round(median(each.prompt_tokens - each.cached_tokens for each in counted)),
        context=round(median(each.prompt_tokens + each.completion_tokens / 2 for each in counted)),
        since=min(each.accepted_at for each in counted),
        until=max(each.accepted_at for each in counted),
    )


def _speed(request: Served) -> float | None:
    if not request.counted or request.first_token_ms is None or request.completion_tokens < LEAST_TOKENS:
        return None
    seconds = (request.duration_ms - request.first_token_ms) / 1000
    return (request.completion_tokens - 1) / seconds if seconds > 0 else None


def _first(request: Served) -> float | None:
    if not request.counted or request.completion_tokens < LEAST_TOKENS:
        return None
    return request.first_token_ms


def _loads(requests: Sequence[Served], replicas: int) -> list[float]:
    """How many requests ran at the middle of each, itself included, in one of the replicas."""
    starts = sorted(request.accepted_at for request in requests)
    ends = sorted(request.ended_at for request in requests)
    loads = []
    for request in requests:
        middle = (request.accepted_at + request.ended_at) / 2
        running = bisect_right(starts, middle) - bisect_left(ends, middle)
        loads.append(max(1.0, running / max(1, replicas)))
    return loads
