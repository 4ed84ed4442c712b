"""What the autoscaler answers."""

from __future__ import annotations

import msgspec


class Reason(msgspec.Struct, frozen=True):
    """Why a number is what it is: a stable code, an English sentence, and the numbers in it."""

    code: str
    text: str
    values: dict[str, float] = {}


class Decision(msgspec.Struct, frozen=True):
    desired: int  # replicas, ready and starting together; always within the policy's bounds
    reasons: tuple[Reason, ...]  # the one that decided first
    concurrency: (
        int | None
    )  # requests that a replica should get at once at most; others wait at the gateway. None: not known
    need: float  # replicas that the load needs at the forecast, before rounding and holding
    forecast: float  # requests a second that it is prepared for: the most that was foreseen lately
    rate: float  # requests a second now
    capacity: float | None  # requests a second of one replica, as used
    head_room: float  # what `desired` replicas can do, times the forecast
