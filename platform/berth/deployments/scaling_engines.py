"""What engines say of themselves, from whoever observes the replicas to whoever scales them. It is worth nothing after some seconds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final, cast

import msgspec

from berth.compute.provider import ObservedReplica
from berth.outbox.valkey import UNAVAILABLE, client

KEY: Final = "berth:engines"
_GOOD_MS: Final = 15_000


class Gauges(msgspec.Struct, frozen=True):
    """Of a deployment's ready replicas. None: their engine does not say."""

    queued: int | None = None  # requests that wait within engines
    cache_use: float | None = None  # of the key-value caches, mean, 0 to 1


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, Gauges]).decode


def gauges_of(observed: Iterable[ObservedReplica]) -> dict[str, Gauges]:
    """By deployment. Pure."""
    queued, uses = defaultdict[str, list[int]](list), defaultdict[str, list[float]](list)
    for replica in observed:
        if not replica.ready or replica.metrics is None:
            continue
        if replica.metrics.queued is not None:
            queued[replica.deployment_id].append(replica.metrics.queued)
        if replica.metrics.kv_usage is not None:
            uses[replica.deployment_id].append(replica.metrics.kv_usage)
    return {
        each: Gauges(
            sum(queued[each]) if each in queued else None,
            sum(uses[each]) / len(uses[each]) if each in uses else None,
        )
        for each in sorted(queued.keys() | uses.keys())
    }


def tell(observed: Iterable[ObservedReplica]) -> None:
    """Never raises: scaling does without."""
    found = gauges_of(observed)
    try:
        client().set(KEY, _encode(found), px=_GOOD_MS)
    except UNAVAILABLE:
        return


def heard() -> dict[str, Gauges]:
    """Empty when nobody has told lately. Raises one of UNAVAILABLE."""
    packed = cast("bytes | None", client().get(KEY))
    if packed is None:
        return {}
    try:
        return _decode(packed)
    except msgspec.MsgspecError:
        return {}  # of another version
