"""Counters, gauges and histograms in Prometheus' text form."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_MICROSECONDS = tuple(round(bound * 1e6) for bound in SECONDS)


class Counter:
    """Only rises. One number for each combination of labels."""

    kind = "counter"

    def __init__(self, name: str, help_: str, labels: tuple[str, ...] = ()) -> None:
        self.name, self.help, self.labels = name, help_, labels
        self._values: dict[tuple[str, ...], list[float]] = {} if labels else {(): [0]}

    def cell(self, *labels: str) -> list[float]:
        """The one number of these labels, for who adds to it often."""
        found = self._values.get(labels)
        if found is None:
            found = self._values[labels] = [0]
        return found

    def add(self, *labels: str, by: float = 1) -> None:
        self.cell(*labels)[0] += by

    def value(self, *labels: str) -> float:
        return self._values.get(labels, [0])[0]

    def lines(self) -> list[str]:
        return [f"{self.name}{_labels(self.labels, v)} {n[0]:g}" for v, n in sorted(self._values.items())]

    def forget(self, gone: Callable[[tuple[str, ...]], bool]) -> None:
        self._values = {labels: value for labels, value in self._values.items() if not gone(labels)}


class Gauge:
    """Read when asked."""

    kind = "gauge"

    def __init__(self, name: str, help_: str, read: Callable[[], float]) -> None:
        self.name, self.help, self._read = name, help_, read

    def lines(self) -> list[str]:
        return [f"{self.name} {self._read():.17g}"]


class Gauges:
    """Read when asked: one number for each combination of labels that there is at that moment."""

    kind = "gauge"

    def __init__(
        self, name: str, help_: str, labels: tuple[str, ...], read: Callable[[], Mapping[tuple[str, ...], float]]
    ) -> None:
        self.name, self.help, self.labels, self._read = name, help_, labels, read

    def lines(self) -> list[str]:
        return [f"{self.name}{_labels(self.labels, v)} {n:g}" for v, n in sorted(self._read().items())]


class Histogram:
    kind = "histogram"

    def __init__(
        self, name: str, help_: str, labels: tuple[str, ...] = (), bounds: tuple[float, ...] = SECONDS
    ) -> None:
        self.name, self.help, self.labels, self._bounds = name, help_, labels, bounds
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._sums: dict[tuple[str, ...], list[float]] = {}

    def cell(self, *labels: str) -> tuple[list[int], list[float]]:
        """Buckets and sum of these labels, for who adds to them often."""
        counts = self._counts.get(labels)
        if counts is None:
            counts = self._counts[labels] = [0] * (len(self._bounds) + 1)
            self._sums[labels] = [0.0]
        return counts, self._sums[labels]

    def observe(self, value: float, *labels: str) -> None:
        observe(self.cell(*labels), value, self._bounds)

    def lines(self) -> list[str]:
        out = []
        for values, counts in sorted(self._counts.items()):
            total = 0
            for bound, count in zip([*map(str, self._bounds), "+Inf"], counts, strict=True):
                total += count
                out.append(f"{self.name}_bucket{_labels((*self.labels, 'le'), (*values, bound))} {total}")
            out.append(f"{self.name}_sum{_labels(self.labels, values)} {self._sums[values][0]:g}")
            out.append(f"{self.name}_count{_labels(self.labels, values)} {total}")
        return out

    def forget(self, gone: Callable[[tuple[str, ...]], bool]) -> None:
        for values in [each for each in self._counts if gone(each)]:
            del self._counts[values], self._sums[values]


def observe(cell: tuple[list[int], list[float]], value: float, bounds: tuple[float, ...] = SECONDS) -> None:
    """One more in a histogram's cell."""
    cell[0][bisect_left(bounds, value)] += 1
    cell[1][0] += value


def observe_all(cell: tuple[list[int], list[float]], values: Sequence[float]) -> float:
    """The same for many at once, in microseconds, with the usual bounds; gives their sum. They are sorted and the bounds looked up among
    them, so that few steps are taken however many they are."""
    counts, ranked, below = cell[0], sorted(values), 0
    for at, bound in enumerate(_MICROSECONDS):
        upto = bisect_right(ranked, bound, below)
        counts[at] += upto - below
        below = upto
        if below == len(ranked):
            break
    counts[-1] += len(ranked) - below
    total = sum(values)
    cell[1][0] += total / 1e6
    return total


def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    if not names:
        return ""
    return "{" + ",".join(f'{n}="{v}"' for n, v in zip(names, values, strict=True)) + "}"
