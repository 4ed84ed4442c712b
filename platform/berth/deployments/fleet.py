"""The replicas of a running deployment, sorted by what they are good for. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from berth.deployments.world import Life, Seen, Wanted


class Fleet(msgspec.Struct, frozen=True):
    current: tuple[Seen, ...]  # of the wanted configuration, one for each wanted ordinal
    base: tuple[Seen, ...]  # of the configuration before, as many as are to stay
    surplus: tuple[Seen, ...]  # of the wanted configuration, beyond what is wanted
    old: tuple[Seen, ...]
    leaving: tuple[Seen, ...]
    shadow: bool  # what is of the wanted configuration serves nobody

    @property
    def ready(self) -> int:
        return _ready(self.current)

    @property
    def spare_ready(self) -> tuple[Seen, ...]:
        """They answer, and are to go as soon as enough others do."""
        rest = self.old if self.shadow else (*self.old, *self.surplus)
        return tuple(seen for seen in rest if seen.life is Life.READY)

    @property
    def serving(self) -> int:
        """How many answer callers."""
        return (0 if self.shadow else self.ready) + _ready(self.base) + len(self.spare_ready)

    @property
    def useless(self) -> tuple[Seen, ...]:
        """Nobody needs them, and nobody is answered by them."""
        rest = [seen for seen in (*self.old, *self.surplus) if seen.life is not Life.READY]
        return (*rest, *(seen for seen in self.surplus if self.shadow and seen.life is Life.READY))

    @property
    def alive(self) -> int:
        return sum(map(len, (self.current, self.base, self.surplus, self.old, self.leaving)))

    @property
    def on_the_way(self) -> bool:
        return any(seen.life in (Life.PENDING, Life.STARTING) for seen in (*self.current, *self.base))


def _ready(some: Sequence[Seen]) -> int:
    return sum(seen.life is Life.READY for seen in some)


def sort_fleet(wanted: Wanted, everything: Sequence[Seen]) -> Fleet:
    current: dict[int, Seen] = {}
    base: dict[int, Seen] = {}
    surplus: list[Seen] = []
    old: list[Seen] = []
    leaving: list[Seen] = []
    # The one that is ready keeps its place before one that still starts, then the newer revision, then the name.
    ranked = sorted(everything, key=lambda seen: (seen.life is not Life.READY, -seen.revision, seen.name))
    for seen in ranked:
        if seen.life is Life.LEAVING or seen.stuck:
            leaving.append(seen)
        elif seen.revision in wanted.same:
            _place(seen, current, wanted.new, surplus)
        elif wanted.base is not None and seen.revision in wanted.base.same:
            _place(seen, base, wanted.base.replicas, old)
        else:
            old.append(seen)
    placed, kept = tuple(current.values()), tuple(base.values())
    return Fleet(placed, kept, tuple(surplus), tuple(old), tuple(leaving), shadow=wanted.shadow)


def _place(seen: Seen, placed: dict[int, Seen], count: int, beyond: list[Seen]) -> None:
    if seen.ordinal < count and seen.ordinal not in placed:
        placed[seen.ordinal] = seen
    else:
        beyond.append(seen)
