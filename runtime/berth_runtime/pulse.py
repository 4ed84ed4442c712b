"""Whether a running engine still works: it answers, and at work it gets on. No I/O."""

from __future__ import annotations

import time
from collections.abc import Callable

from berth_runtime.spec import EngineMetrics


class Pulse:
    """`felt` is called from the thread that measures, the rest from the one that watches."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`seconds` without a sign of life are too many; 0: any number is fine."""
        self._seconds = seconds
        self._clock = clock
        self._answered = self._moved = clock()
        self._mark: object = None

    def begin(self) -> None:
        """The engine has just generated a token."""
        self._answered = self._moved = self._clock()
        self._mark = None

    def felt(self, metrics: EngineMetrics) -> None:
        """The engine has answered. It moves if its counters do, or if it has nothing to do."""
        now = self._clock()
        self._answered = now
        mark = (metrics.steps, metrics.prompt_tokens, metrics.completion_tokens)
        tells = any(count is not None for count in mark)
        if not metrics.running or not tells or mark != self._mark:
            self._moved = now
        self._mark = mark

    def missing(self) -> str | None:
        """What has been missing for too long, in words; None if nothing is."""
        if not self._seconds:
            return None
        now = self._clock()
        if now - self._answered > self._seconds:
            return "it has not answered"
        if now - self._moved > self._seconds:
            return "it has requests and computes nothing"
        return None
