"""Which replicas have failed and may be tried again. Pure; the caller brings the clock (seconds, monotonic).

A replica rests after one failure. Then a single request is the trial: if it is answered, the replica is as good as before; if
it fails, the rest is twice as long.
"""

from __future__ import annotations

from collections.abc import Container, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

FIRST_REST = 1.0  # seconds after the first failure
LONGEST_REST = 30.0

W = TypeVar("W", bound=Hashable)


@dataclass(slots=True)
class _Ill:
    until: float
    failures: int = 1
    trial: bool = False  # a request is out that decides


class Health(Generic[W]):
    """Only replicas that have failed and not answered since are in it."""

    def __init__(self) -> None:
        self.ill: dict[W, _Ill] = {}

    def usable(self, where: W, now: float) -> bool:
        """Whether a request may be sent there: it is well, or its rest is over and no trial is out."""
        ill = self.ill.get(where)
        return ill is None or (now >= ill.until and not ill.trial)

    def is_ill(self, where: W) -> bool:
        return where in self.ill

    def rests_until(self, where: W) -> float:
        ill = self.ill.get(where)
        return 0.0 if ill is None else ill.until

    def sent(self, where: W) -> None:
        """A request goes there; to one that has failed it is the trial."""
        if self.ill:
            ill = self.ill.get(where)
            if ill is not None:
                ill.trial = True

    def failed(self, where: W, now: float) -> None:
        """Failures of requests that were out together count once: it was one event."""
        ill = self.ill.get(where)
        if ill is None:
            self.ill[where] = _Ill(now + FIRST_REST)
        elif now >= ill.until:
            ill.failures += 1
            ill.until = now + min(LONGEST_REST, FIRST_REST * 2.0 ** min(ill.failures - 1, 10))
            ill.trial = False

    def answered(self, where: W) -> None:
        if self.ill:
            self.ill.pop(where, None)

    def left(self, where: W) -> None:
        """A request there has ended. If it was a trial without result, another may be made."""
        if self.ill:
            ill = self.ill.get(where)
            if ill is not None:
                ill.trial = False

    def keep_only(self, known: Container[W]) -> None:
        for where in [each for each in self.ill if each not in known]:
            del self.ill[where]
