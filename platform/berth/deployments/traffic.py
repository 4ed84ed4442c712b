"""How requests are split between the revisions of a deployment, for those who publish routes. Pure.

The reconciler writes `Deployment.traffic`:

    {}                                           every ready replica serves, all alike
    {"new": [3], "weight": 25}                   ready replicas of revision 3 get 25 % of the requests, all others the rest
    {"new": [3], "shadow": 10}                   ready replicas of revision 3 get copies of 10 % of the requests, and serve nobody
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")


class Split(msgspec.Struct, Generic[T], frozen=True):
    serving: tuple[T, ...]
    weights: tuple[tuple[int, int], ...] = ()  # revision, share in hundredths of a percent; empty: alike
    shadow: tuple[T, ...] = ()
    percent: int = 0  # of requests that the shadow gets copies of


def split(traffic: Mapping[str, Any], ready: Sequence[T], revision_of: Callable[[T], int]) -> Split[T]:
    """`ready` are the replicas that could serve. What is new is never alone in not serving: without any other replica it serves."""
    new_revisions = set(traffic.get("new", ()))
    new = [each for each in ready if revision_of(each) in new_revisions]
    old = [each for each in ready if revision_of(each) not in new_revisions]
    if not new or ("shadow" not in traffic and "weight" not in traffic):
        return Split(tuple(ready))
    if "shadow" in traffic:
        percent = int(traffic["shadow"])
        return Split(tuple(old), shadow=tuple(new) if percent else (), percent=percent)
    if not old:
        return Split(tuple(ready))
    weight = min(100, max(0, int(traffic["weight"])))
    return Split(tuple(ready), weights=(*_shares(new, weight, revision_of), *_shares(old, 100 - weight, revision_of)))


def _shares(replicas: Sequence[T], weight: int, revision_of: Callable[[T], int]) -> list[tuple[int, int]]:
    """A side's weight, by its replicas: revisions that differ in the number of replicas only are on one side."""
    counted = Counter(revision_of(each) for each in replicas)
    total = sum(counted.values())
    return [(revision, weight * 100 * count // total) for revision, count in sorted(counted.items())]
