"""A minute that slides: what was used comes back exactly one minute after its use. Pure; the caller brings the clock.

Time is cut into slots of a tenth of a second. A unit used in slot s is free again when slot s + 601 begins, which is never
sooner than a minute after its use, so that no minute, wherever it begins, sees more than the limit.
"""

from __future__ import annotations

from collections import deque

SLOT_SECONDS = 0.1
WINDOW_SLOTS = 601


def slot_of(now: float) -> int:
    """`now` in seconds of whichever clock; all slots of a window must come from the same."""
    return int(now / SLOT_SECONDS)


class Window:
    """Units used within the last minute, by slot."""

    __slots__ = ("_by_slot", "_order", "used")

    def __init__(self) -> None:
        self._by_slot: dict[int, int] = {}
        self._order: deque[int] = deque()
        self.used = 0

    def add(self, slot: int, units: int) -> None:
        """Notes units used in `slot`; below 0 takes back. What has left the window cannot be taken back."""
        known = self._by_slot.get(slot)
        if known is None:
            if units < 0:
                return
            if self._order and slot < self._order[-1]:
                if slot < self._order[0]:
                    return
                slot = next(each for each in self._order if each >= slot)  # later than it was: never too early
                known = self._by_slot[slot]
            else:
                self._order.append(slot)
                known = 0
        self._by_slot[slot] = known + units
        self.used += units

    def expire(self, slot: int) -> int:
        """Forgets what is over by `slot`, the current one; returns what is still used."""
        while self._order and self._order[0] + WINDOW_SLOTS <= slot:
            self.used -= self._by_slot.pop(self._order.popleft())
        return self.used

    def until_free(self, slot: int, units: int, limit: int) -> float:
        """Seconds until `units` fit under `limit`, 0 if they do; a whole minute if they cannot while nothing expires."""
        excess = self.expire(slot) + units - limit
        if excess <= 0:
            return 0.0
        for each in self._order:
            excess -= self._by_slot[each]
            if excess <= 0:
                return (each + WINDOW_SLOTS - slot) * SLOT_SECONDS
        return WINDOW_SLOTS * SLOT_SECONDS
