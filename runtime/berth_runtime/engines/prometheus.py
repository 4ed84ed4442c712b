"""Reading single numbers from Prometheus' text format."""

from __future__ import annotations

import math


def samples(text: str) -> dict[str, float]:
    """Sum over the label sets of each metric, by name. Lines that are not samples are passed over."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        name, _, rest = line.partition("{") if "{" in line else line.partition(" ")
        value = rest.rpartition("}")[2].split()
        if not value:
            continue
        try:
            number = float(value[0])
        except ValueError:
            continue
        if math.isfinite(number):
            found[name.strip()] = found.get(name.strip(), 0.0) + number
    return found


def whole(found: dict[str, float], name: str) -> int | None:
    """A counter or gauge as an integer; None if the engine did not say."""
    return int(found[name]) if name in found else None


def fraction(found: dict[str, float], name: str) -> float | None:
    """A number that need not be whole; None if the engine did not say."""
    return found.get(name)
