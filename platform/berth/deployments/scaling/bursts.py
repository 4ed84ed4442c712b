"""How bursty a deployment is: stretches in which more came than a forecast could have prepared for, how high they were, how often they
come again and how long they have stayed away. What of it is held ready follows from the share of requests that may be late. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import exp
from typing import Final

import msgspec

KEPT: Final = 96  # stretches
APART: Final = 60.0  # seconds between two stretches from which on they belong to two bursts
SHORTEST_HOLD: Final = 2_400.0  # seconds for which a burst is held ready, when nobody knows yet whether it comes again
EXCEPTION_HOLD: Final = 1_800.0  # of one that was higher than all the others
MANY: Final = 4  # bursts
LONGEST_HOLD: Final = 4 * 3_600.0
GAPS: Final = 3.0  # times the longest pause between bursts, lately
FADE: Final = 0.5  # of that time, in which it then goes down
ALIKE: Final = 0.75  # times a burst's height: it came again
LOWER: Final = 0.3  # times its height: another burst that can be compared with it
BUDGET: Final = 0.5  # of the requests that may be late, those that bursts may make late
MEMORY: Final = 2 * 3_600.0  # seconds after which work counts 1/e
LEAST_SPAN: Final = 3_600.0  # seconds against whose work bursts are weighed, at least


class Overrun(msgspec.Struct, frozen=True):
    """A stretch of some seconds in which more came than was foreseen a cold start before. Work a second, and work."""

    at: float
    rate: float
    work: float


class Bursts(msgspec.Struct, frozen=True):
    overruns: tuple[Overrun, ...] = ()  # that were not prepared for; oldest first
    returns: tuple[Overrun, ...] = ()  # that were prepared for only because something is kept after a peak
    work: float = 0.0  # all that came; forgets
    seconds: float = 0.0  # in which it came; forgets likewise
    highest: float = 0.0  # work a second in the busiest stretch; forgets

    def with_stretch(self, rate: float, seconds: float) -> Bursts:
        kept = exp(-seconds / MEMORY)
        return msgspec.structs.replace(
            self,
            work=kept * self.work + rate * seconds,
            seconds=kept * self.seconds + seconds,
            highest=max(kept * self.highest, rate),
        )

    def with_overrun(self, at: float, rate: float, work: float) -> Bursts:
        return msgspec.structs.replace(self, overruns=(*self.overruns[1 - KEPT :], Overrun(at, rate, work)))

    def with_return(self, at: float, rate: float) -> Bursts:
        return msgspec.structs.replace(self, returns=(*self.returns[1 - KEPT :], Overrun(at, rate, 0.0)))

    def floor(self, now: float, allowance: float, patience: float = 1.0) -> float:
        """Work a second that is to be held ready, so that of all requests bursts make no more late than they may. `allowance`: the
        share of requests that may be late. `patience`: times the usual time, of which nobody knows yet whether it is long enough."""
        if not self.overruns or self.seconds <= 0:
            return 0.0
        may = BUDGET * allowance * self.work * max(1.0, LEAST_SPAN / self.seconds)
        for rate, work in sorted(self._held(now, patience), reverse=True):
            may -= work
            if may < 0:
                return rate
        return 0.0

    def brief(self, cold_start: float) -> bool:
        """Whether bursts are known to be over before a replica that is asked for at their beginning is ready."""
        lengths, begun, last = list[float](), 0.0, -APART
        for each in self.overruns:
            if each.at - last >= APART:
                begun = each.at
                lengths.append(0.0)
            last, lengths[-1] = each.at, each.at - begun
        return len(lengths) > 1 and max(lengths[-4:]) < cold_start - APART / 6.0

    def _held(self, now: float, patience: float) -> Iterator[tuple[float, float]]:
        """What is still held of each, and its work. One that came again since is as young as that."""
        seen = sorted((each.at, each.rate) for each in (*self.overruns, *self.returns))
        for each in self.overruns:
            times = [at for at, rate in seen if rate >= ALIKE * each.rate]
            others = _starts([at for at, rate in seen if rate >= LOWER * each.rate])
            hold = held_for(times, patience, many=len(others) >= MANY)
            past = now - times[-1] - hold
            if past < FADE * hold:
                yield each.rate * min(1.0, 1.0 - past / (FADE * hold)), each.work


def held_for(times: Sequence[float], patience: float = 1.0, *, many: bool = False) -> float:
    """Seconds for which bursts at these times are held ready after the last one: the longer the pauses between them were, the longer.
    `many`: there were others, lower ones, so that a single one of this height is the exception."""
    starts = _starts(times)
    if many and len(starts) == 1:
        return min(patience * EXCEPTION_HOLD, LONGEST_HOLD)
    pauses = [after - before for before, after in zip(starts[-9:], starts[-8:], strict=False)]
    return min(max(patience * SHORTEST_HOLD, GAPS * max(pauses, default=0.0)), LONGEST_HOLD)


def _starts(times: Sequence[float]) -> list[float]:
    return [at for index, at in enumerate(times) if index == 0 or at - times[index - 1] > APART]
