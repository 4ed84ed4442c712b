"""Whether predictions put measured configurations in the right order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec


class Ranked(msgspec.Struct, frozen=True):
    """Pairs of measurements, and how many of them were predicted the right way round."""

    pairs: int
    right: int

    @property
    def share(self) -> float | None:
        return self.right / self.pairs if self.pairs else None


class Value(msgspec.Struct, frozen=True):
    group: tuple[str, ...]  # only values of one group are compared
    measured: float
    predicted: float


def rank(values: Iterable[Value], *, least: float, most: float | None = None) -> Ranked:
    """Of the pairs whose larger measurement is more than `least` above the smaller (and at most `most`)."""
    groups: dict[tuple[str, ...], list[Value]] = defaultdict(list)
    for value in values:
        groups[value.group].append(value)
    pairs = right = 0
    for members in groups.values():
        more, good = _count(sorted(members, key=lambda value: value.measured), least, most)
        pairs, right = pairs + more, right + good
    return Ranked(pairs, right)


def _count(members: Sequence[Value], least: float, most: float | None) -> tuple[int, int]:
    pairs = right = 0
    for index, low in enumerate(members):
        for high in members[index + 1 :]:
            if high.measured <= low.measured * (1 + least):
                continue
            if most is not None and high.measured > low.measured * (1 + most):
                break
            pairs += 1
            right += high.predicted > low.predicted
    return pairs, right
