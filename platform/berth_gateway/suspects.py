"""Keys whose requests ran in engines that died: after the third within ten minutes a key is held for that deployment. Pure.

A connection that breaks is only a suspicion: a replica that answers again has not died. One that starts anew has another secret and
so another address.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

STRIKES = 3
WINDOW = 600.0  # seconds that a strike counts, and that a key is held

W = TypeVar("W", bound=Hashable)


class Suspects(Generic[W]):
    """Strikes by key and deployment. `where` is one run of one engine."""

    def __init__(self) -> None:
        self.strikes: dict[tuple[str, str], dict[W, float]] = {}

    def died(self, key_id: str, deployment: str, where: W, now: float) -> int:
        """A request of this key was with an engine that broke off. Returns how many strikes the key has now."""
        strikes = self.strikes.setdefault((key_id, deployment), {})
        strikes.setdefault(where, now)
        return self._count((key_id, deployment), now)

    def answered(self, where: W) -> None:
        """It lives: what was held against anybody because of it is taken back."""
        if self.strikes:
            for subject in [each for each, strikes in self.strikes.items() if where in strikes]:
                del self.strikes[subject][where]
                if not self.strikes[subject]:
                    del self.strikes[subject]

    def held_for(self, key_id: str, deployment: str, now: float) -> float:
        """Seconds that this key is still held for this deployment; 0 if it is not."""
        if not self.strikes or self._count((key_id, deployment), now) < STRIKES:
            return 0.0
        latest = sorted(self.strikes[key_id, deployment].values())[-STRIKES:]
        return latest[0] + WINDOW - now

    def _count(self, subject: tuple[str, str], now: float) -> int:
        strikes = self.strikes.get(subject)
        if strikes is None:
            return 0
        for where in [each for each, at in strikes.items() if now - at >= WINDOW]:
            del strikes[where]
        if not strikes:
            del self.strikes[subject]
        return len(strikes)

    def tidy(self, now: float) -> None:
        for subject in list(self.strikes):
            self._count(subject, now)
