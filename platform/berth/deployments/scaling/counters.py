"""From counters to what came since the last call. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from berth.deployments.scaling.observation import Observation
from berth.deployments.scaling.state import Counters

_NAMES: Final = Counters.__struct_fields__


MOST_PART: Final = 4.0  # windows that a pause between two calls may be longer than one, and still be taken for alike


def told(observation: Observation) -> Counters:
    values = {name: getattr(observation, name) for name in _NAMES}
    return Counters(**{**values, "arrivals": observation.arrivals or 0.0})


def since(observation: Observation, last: Counters, elapsed: float | None) -> Counters:
    """What came between the calls. `elapsed`: seconds since the last one; None: this is the first. Counters that are not known stay
    None, and one that is known for the first time gives 0, except that a window is a window also then."""
    found: dict[str, float | None] = {}
    for name in _NAMES:
        current, before = getattr(observation, name), getattr(last, name)
        if current is None:
            found[name] = None
        elif observation.window is not None:
            part = 1.0 if elapsed is None else elapsed / max(observation.window, 1e-3)
            part = part if part <= MOST_PART else 1.0
            found[name] = max(0.0, current) * part
        elif elapsed is None or before is None:
            found[name] = 0.0
        else:
            found[name] = current - before if current >= before else max(0.0, current)
    return Counters(**found)  # type: ignore[arg-type]


def added(one: Counters, other: Counters) -> Counters:
    """Sums; what is not known in `other` is not known."""
    values = {}
    for name in _NAMES:
        more = getattr(other, name)
        values[name] = None if more is None else (getattr(one, name) or 0.0) + more
    return msgspec.structs.replace(one, **values)
