"""What an owner may say of how a deployment is scaled, beside its bounds, its idle time and its declared peaks."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

MOST_STABILISATION: Final = 7_200
LEAST_SHARE, MOST_SHARE = 0.5, 0.9999
MOST_HEAD_ROOM: Final = 5.0


class Wishes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The defaults are good. Bounds keep a typing error from costing a fleet, or from taking one away at each small wave."""

    # Seconds for which fewer must have been enough before a replica goes.
    stabilisation_seconds: Annotated[float, msgspec.Meta(ge=30, le=MOST_STABILISATION)] = 400.0
    # Factor on the forecast; None: learned from how bursty the traffic is.
    head_room: Annotated[float, msgspec.Meta(ge=1, le=MOST_HEAD_ROOM)] | None = None
    # Of the requests that are to be within the goals.
    share: Annotated[float, msgspec.Meta(ge=LEAST_SHARE, le=MOST_SHARE)] = 0.995
    # Whether the daily pattern is learned.
    daily: bool = True


def wishes_of(stored: dict[str, Any]) -> Wishes:
    return msgspec.convert(stored, Wishes)
