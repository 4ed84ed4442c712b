"""Who waits for room, in which order, and who makes room for whom. Pure.

Organisations stand in line by how long they wait; within an organisation its deployments of higher priority take its earlier places,
so nobody gets ahead of another organisation by calling everything urgent. Who is behind may start if all before him who fit now
still fit afterwards: room that nobody before could use is not left empty.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec


class Waiting(msgspec.Struct, frozen=True):
    """A deployment that waits for room for one more replica."""

    deployment: str
    org: str
    priority: int
    since: float  # Unix seconds
    memory: int  # bytes


class Holder(msgspec.Struct, frozen=True):
    """A deployment whose replicas hold room."""

    deployment: str
    priority: int
    since: float  # when the youngest of them was started
    memory: int  # bytes, of one replica
    replicas: int


def in_line(waiting: Iterable[Waiting]) -> list[Waiting]:
    by_time = sorted(waiting, key=lambda one: (one.since, one.deployment))
    own: dict[str, list[Waiting]] = defaultdict(list)
    for one in by_time:
        own[one.org].append(one)
    for some in own.values():
        some.sort(key=lambda one: (one.priority, -one.since, one.deployment))  # the last is taken first
    return [own[place.org].pop() for place in by_time]


def left_for(line: Sequence[Waiting], deployment: str, room: int) -> int:
    """Bytes that this one may take: without what those before it can use now. One that does not wait yet comes last."""
    left = room
    for one in line:
        if one.deployment == deployment:
            break
        if one.memory <= left:
            left -= one.memory
    return left


def position(line: Sequence[Waiting], deployment: str) -> int:
    """From 1. One that does not wait yet comes last."""
    return next((number for number, one in enumerate(line, 1) if one.deployment == deployment), len(line) + 1)


def making_room(missing: int, holders: Iterable[Holder], priority: int) -> dict[str, int]:
    """How many replicas which deployments give up for one of this priority that misses so many bytes: the least important first, of
    those the youngest. Nobody gives up anything if all of it together would not help."""
    given: dict[str, int] = {}
    below = [holder for holder in holders if holder.priority < priority and holder.replicas > 0 and holder.memory > 0]
    for holder in sorted(below, key=lambda one: (one.priority, -one.since, one.deployment)):
        if missing <= 0:
            break
        count = min(holder.replicas, -(-missing // holder.memory))
        given[holder.deployment] = count
        missing -= count * holder.memory
    return given if missing <= 0 else {}
