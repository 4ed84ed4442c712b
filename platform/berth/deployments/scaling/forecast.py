"""What will come when a replica that is asked for now is ready. Pure; work a second."""

from __future__ import annotations

from typing import Final

import msgspec

from berth.deployments.scaling.history import History, noise

PANIC_WINDOWS: Final = (3.0, 6.0, 12.0, 24.0)  # seconds
SURE: Final = 3.0  # standard deviations from which on more is no chance
LASTING: Final = 180.0
_LEVEL, _BEFORE = 60.0, 180.0
_MOST_TREND: Final = 0.5
DAMP: Final = 0.25  # growth seldom goes on as it was


FIRST: Final = 8.0  # seconds of history, before which a rise is no rise
RISING: Final = 2.0  # standard deviations


class Outlook(msgspec.Struct, frozen=True):
    rate: float  # now
    expected: float  # `ahead` seconds from now, if what was goes on
    lasting: float  # what has lasted for minutes
    jump: float  # what came suddenly, if it is more than could be expected; else 0
    lately: float  # over the last seconds, as far as they can be trusted


def outlook(
    history: History, ahead: float, growth: float, spread: float, prepared: float, few: bool = False
) -> Outlook:
    """`growth`: as the time of day tells; `spread`: variance over mean of what comes; `prepared`: only more is a jump;
    `few`: there are one or two replicas, so that a rise at the very beginning is worth following."""
    level = history.rate(_LEVEL)
    begun = _beginning(history, ahead, spread) if few else 0.0
    expected = max(level + _trend(history, level, ahead, spread), begun) * growth
    sudden, least = surest(history, spread)
    jump = sudden if least > max(expected, prepared) else 0.0
    return Outlook(level, expected, min(expected, history.rate(LASTING)), jump, sudden)


def _trend(history: History, level: float, ahead: float, spread: float) -> float:
    """Growth that both the last minutes and the last half minute show, beyond chance."""
    if history.span < 300.0:
        return 0.0
    reach = min(_BEFORE, history.span)
    before = history.rate_between(reach, _LEVEL)
    long = (level - before - noise(level, _LEVEL, spread)) / ((reach - _LEVEL) / 2.0 + _LEVEL / 2.0)
    half = _LEVEL / 2.0
    young, old = history.rate_between(half, 0.0), history.rate_between(_LEVEL, half)
    short = (young - old + 1.5 * noise(level, half, spread)) / half
    slope = min(long, short)
    return max(0.0, min(DAMP * slope * (ahead + half), _MOST_TREND * level))


def _beginning(history: History, ahead: float, spread: float) -> float:
    """In the first minute, when nothing else is known: a rise beyond chance goes on, until there is twice as much."""
    if not FIRST <= history.span <= _LEVEL:
        return 0.0
    half = history.span / 2.0
    young, old = history.rate(half), history.rate_between(history.span, half)
    slope = (young - old - RISING * noise(young + old, half, spread)) / half
    return young + min(slope * ahead, young) if slope > 0 else 0.0


def surest(history: History, spread: float) -> tuple[float, float]:
    """The rate over the stretch that shows most surely that there is so much, and what it is at least."""
    if len(history.times) < 2:
        return 0.0, 0.0
    best = found = 0.0
    for window in PANIC_WINDOWS:
        window = max(window, history.gap)
        rate = history.rate(window)
        sure = rate - SURE * noise(rate, window, spread)
        if sure > best:
            best, found = sure, rate
    return found, best
