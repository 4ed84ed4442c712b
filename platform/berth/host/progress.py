"""What `make up` says while it works: one line a step, with how long it took or usually takes."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import TextIO

REPEAT = 10.0  # seconds after which a long step says again that it is still at work, where no line can be redrawn


class Step:
    """A step in progress; call `tick` now and then."""

    def __init__(self, title: str, usual: float | None, out: TextIO) -> None:
        self.title = title
        self.usual = usual
        self.note = ""
        self.outcome = "done"
        self._out = out
        self._live = out.isatty()
        self._begun = time.monotonic()
        self._said = self._begun
        self._drawn = ""
        if self._live:
            self.tick()
        elif (usual or 0) > REPEAT / 2:
            self._line(f"{self.title} …{self._expectation()}")

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._begun

    def tick(self) -> None:
        note = f" ({self.note})" if self.note else ""
        if self._live:
            self._draw(f"  {self.title} … {self.elapsed:.0f} s{note}{self._expectation()}")
        elif time.monotonic() - self._said > REPEAT:
            self._said = time.monotonic()
            self._line(f"{self.title} … still at it after {self.elapsed:.0f} s{note}{self._expectation()}")

    def finish(self, mark: str = "✓") -> None:
        self._draw("")
        self._line(f"{mark} {self.title}: {self.outcome} in {self.elapsed:.1f} s")

    def _expectation(self) -> str:
        return f", usually {max(1, round(self.usual))} s" if self.usual else ""

    def _draw(self, text: str) -> None:
        if self._live and text != self._drawn:
            self._out.write(f"\r\x1b[2K{text}")
            self._out.flush()
            self._drawn = text

    def _line(self, text: str) -> None:
        self._out.write(text + "\n")
        self._out.flush()


class Progress:
    """Prints steps. `timings` holds how long each step took last time, in seconds, and is updated."""

    def __init__(self, timings: MutableMapping[str, float], out: TextIO = sys.stdout) -> None:
        self.timings = timings
        self.out = out

    def say(self, text: str = "") -> None:
        self.out.write(text + "\n")
        self.out.flush()

    @contextmanager
    def step(self, title: str, usual: float | None = None) -> Iterator[Step]:
        """One step; an exception marks it as failed and goes on. `usual` is a guess for the first time, in seconds."""
        remembered = self.timings.get(title)
        step = Step(title, remembered if isinstance(remembered, int | float) else usual, self.out)
        try:
            yield step
        except BaseException:
            step.outcome = "not done, given up"
            step.finish("✗")
            raise
        step.finish()
        self.timings[title] = round(step.elapsed, 2)
