"""What measured deployments teach: a factor for each engine, weight format and kind of hardware, shrunk towards 1 while there is
little to go by, bounded, visible and reversible. Pure: who stores the measurements calls `learn` with all of them; leaving some out
undoes them.

A factor multiplies a predicted time (above 1: it is slower than planned). It is the median of measured over planned in logarithms,
so single odd runs do not move it, and runs of one deployment count once.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

LEAST: Final = 20  # requests that a measurement must stand on to teach anything
SHRINK: Final = 3.0  # deployments that are worth as much as the planner's own word
MOST: Final = math.log(1.5)  # no factor goes beyond one and a half, either way
ODD: Final = math.log(4.0)  # a run that is this far off says something else than how fast the hardware is


class Lesson(msgspec.Struct, frozen=True):
    """Planned against measured, of one deployment over a while. Times in seconds, at the same load."""

    deployment: str
    engine: str
    scheme: str
    hardware: str
    metric: str  # TPOT or TTFT
    planned: float  # without any factor
    measured: float
    count: int = 1  # requests that the measurement stands on


class Factor(msgspec.Struct, frozen=True):
    value: float
    raw: float  # before shrinking and bounding
    deployments: int
    left_out: int  # runs that were too odd to count
    count: int = 0  # requests that the counted runs stand on


Key = tuple[str, str, str, str]  # engine, scheme, hardware, metric
TPOT: Final = "tpot"
TTFT: Final = "ttft"


def learn(lessons: Iterable[Lesson], *, least: int = LEAST) -> Mapping[Key, Factor]:
    """`least`: measurements on fewer requests do not count."""
    by_key: dict[Key, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    odd: dict[Key, int] = defaultdict(int)
    requests: dict[Key, int] = defaultdict(int)
    for lesson in lessons:
        if lesson.count < least or lesson.planned <= 0 or lesson.measured <= 0:
            continue
        key = (lesson.engine, lesson.scheme, lesson.hardware, lesson.metric)
        off = math.log(lesson.measured / lesson.planned)
        if abs(off) > ODD:
            odd[key] += 1
        else:
            by_key[key][lesson.deployment].append(off)
            requests[key] += lesson.count
    return {
        key: _factor([statistics.median(runs) for runs in each.values()], odd[key], requests[key])
        for key, each in sorted(by_key.items())
    }


def _factor(offs: list[float], odd: int, count: int) -> Factor:
    raw = statistics.median(offs)
    shrunk = raw * len(offs) / (len(offs) + SHRINK)
    return Factor(math.exp(max(-MOST, min(MOST, shrunk))), math.exp(raw), len(offs), odd, count)


def corrected(
    seconds: float, factors: Mapping[Key, Factor], engine: str, scheme: str, hardware: str, metric: str
) -> float:
    """A predicted time with what was learnt. What nothing is known about stays as it is."""
    found = factors.get((engine, scheme, hardware, metric))
    return seconds if found is None else seconds * found.value
