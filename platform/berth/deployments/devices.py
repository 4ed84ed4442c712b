"""Which GPUs a replica gets. Pure. A device is one replica's alone; when another organisation had it before, it is overwritten first."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec


class Picked(msgspec.Struct, frozen=True):
    devices: tuple[str, ...]
    scrub: bool  # somebody else's memory may still be on one of them


def pick(
    devices: Sequence[str], taken: Collection[str], last_owner: Mapping[str, str], org: str, count: int
) -> Picked | None:
    """`count` devices that nobody has, those first that were this organisation's or nobody's before. None: there are not enough."""
    free = [each for each in devices if each not in taken]
    if count <= 0 or len(free) < count:
        return None if count > 0 else Picked((), False)
    chosen = sorted(free, key=lambda each: (last_owner.get(each, org) != org, each))[:count]
    return Picked(tuple(chosen), any(last_owner.get(each, org) != org for each in chosen))
