"""What the time of day tells: declared peaks, and the daily pattern that was learned. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from berth.deployments.scaling.observation import DAY, Peak

SLOTS: Final = 144  # of ten minutes
SLOT: Final = DAY / SLOTS
_NEW: Final = 0.35  # weight of the last day in a slot's mean
_STEEPEST: Final = 3.0


class Pattern(msgspec.Struct, frozen=True):
    """Mean work a second by time of day; below 0: not seen yet. The current slot is being summed up."""

    means: tuple[float, ...] = ()
    slot: int = -1  # number of the current slot since time began
    work: float = 0.0
    seconds: float = 0.0

    def with_work(self, now: float, work: float, seconds: float) -> Pattern:
        slot = int(now // SLOT)
        if slot == self.slot:
            return msgspec.structs.replace(self, work=self.work + work, seconds=self.seconds + seconds)
        means = self.means
        if self.slot >= 0 and self.seconds > 0.5 * SLOT:
            means = means or (-1.0,) * SLOTS
            index, rate = self.slot % SLOTS, self.work / self.seconds
            old = means[index]
            new = rate if old < 0 else old + _NEW * (rate - old)
            means = (*means[:index], new, *means[index + 1 :])
        return Pattern(means, slot, work, seconds)

    def growth(self, now: float, ahead: float) -> float:
        """By how much the load usually grows from now until `ahead` seconds later; 1 when it does not or nothing is known."""
        before, after = self._at(now), self._at(now + ahead)
        if before is None or after is None or before <= 0 or after <= before:
            return 1.0
        return min(after / before, _STEEPEST)

    def _at(self, moment: float) -> float | None:
        """Between the middles of two slots."""
        if not self.means:
            return None
        place = moment / SLOT - 0.5
        left = int(place // 1)
        share = place - left
        low, high = self.means[left % SLOTS], self.means[(left + 1) % SLOTS]
        return None if low < 0 or high < 0 else low + share * (high - low)


def declared(peaks: Sequence[Peak], now: float, ahead: float) -> tuple[int, float]:
    """Replicas and requests a second that are declared for some moment from now until `ahead` seconds later."""
    replicas, rate = 0, 0.0
    for peak in peaks:
        if _overlaps(peak, now, now + ahead):
            replicas = max(replicas, peak.replicas or 0)
            rate = max(rate, peak.requests_per_second or 0.0)
    return replicas, rate


def _overlaps(peak: Peak, begin: float, end: float) -> bool:
    start, stop = peak.start, peak.end
    if peak.every is not None and peak.every > 0 and end >= start:
        rounds = (begin - start) // peak.every
        rounds = max(0.0, rounds)
        start, stop = start + rounds * peak.every, stop + rounds * peak.every
        if stop < begin:
            start, stop = start + peak.every, stop + peak.every
    return start <= end and stop >= begin
