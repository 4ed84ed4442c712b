"""How much came, over any stretch of the last minutes: cumulative samples, dense where they are young. Pure."""

from __future__ import annotations

from bisect import bisect_right
from math import sqrt
from typing import Final

import msgspec

KEPT: Final = 330.0  # seconds: more than anybody looks back
SAME: Final = 0.05  # seconds between two moments, at least
_DENSE, _MIDDLE = 30.0, 150.0  # seconds: younger samples are all kept; then one every 5 s, then one every 15 s
_GAPS: Final = ((_MIDDLE, 15.0), (_DENSE, 5.0))


class History(msgspec.Struct, frozen=True):
    """`sums[i]` came until `times[i]`, in units of work (a request of the usual size is 1)."""

    times: tuple[float, ...] = ()
    sums: tuple[float, ...] = ()

    @property
    def span(self) -> float:
        return self.times[-1] - self.times[0] if self.times else 0.0

    @property
    def gap(self) -> float:
        """Seconds between the last two samples."""
        return self.times[-1] - self.times[-2] if len(self.times) > 1 else 0.0

    def with_sample(self, now: float, added: float) -> History:
        """A moment that is not clearly after the last one counts as the last one."""
        if not self.times:
            return History((now,), (added,))
        total = self.sums[-1] + added
        if now < self.times[-1] + SAME:
            return History(self.times, (*self.sums[:-1], total))
        return _thinned((*self.times, now), (*self.sums, total))

    def rate(self, window: float) -> float:
        """Work a second over the last `window` seconds; over what is known, if that is less. 0 with a single sample."""
        return self.rate_between(window, 0.0)

    def rate_between(self, begin: float, end: float) -> float:
        """Work a second from `begin` to `end` seconds ago."""
        if len(self.times) < 2:
            return 0.0
        now, first = self.times[-1], self.times[0]
        left, right = max(first, now - begin), now - end
        if right < left + SAME:
            return 0.0
        return max(0.0, (self._at(right) - self._at(left)) / (right - left))

    def _at(self, moment: float) -> float:
        times, sums = self.times, self.sums
        after = bisect_right(times, moment)
        if after >= len(times):
            return sums[-1]
        if after == 0:
            return sums[0]
        share = (moment - times[after - 1]) / (times[after] - times[after - 1])
        return sums[after - 1] + share * (sums[after] - sums[after - 1])


def _thinned(times: tuple[float, ...], sums: tuple[float, ...]) -> History:
    now = times[-1]
    kept_times: list[float] = []
    kept_sums: list[float] = []
    for index, (at, total) in enumerate(zip(times, sums, strict=True)):
        age = now - at
        if age > KEPT and index + 1 < len(times) and now - times[index + 1] > KEPT:
            continue
        gap = next((gap for older, gap in _GAPS if age > older), 0.0)
        if gap and kept_times and 0 < index < len(times) - 1 and times[index + 1] - kept_times[-1] <= gap:
            continue
        kept_times.append(at)
        kept_sums.append(total)
    return History(tuple(kept_times), tuple(kept_sums))


def noise(rate: float, window: float, spread: float = 1.0) -> float:
    """The standard deviation of a rate counted over `window` seconds, `spread`: variance over mean of
    what comes, 1 for arrivals that are independent of each other."""
    return sqrt(max(rate, 0.0) * spread / window) if window > 0 else 0.0
