"""The few numbers that were fitted to measurements. Data: data/coefficients.toml, with how each was found.

Every engine has its own section; what a section does not say comes from the section it `extends`, in the end from `default`. A value
that depends on the kind of memory or the element type is a table with its own `default`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec

from berth.planner.once import once
from berth.planner.tables import document

Table = Mapping[str, Any]


class Coefficients(msgspec.Struct, frozen=True, dict=True):
    """Of one engine. `chain` goes from the engine's own section to the default."""

    engine: str
    chain: tuple[Table, ...]

    @once
    def known(self) -> dict[tuple[str, ...], dict[str, float]]:
        """What was looked up already, by kinds and name."""
        return {}

    def value(self, name: str, *kinds: str) -> float:
        """The first of `kinds` that any section of the chain knows, sections before kinds' defaults."""
        for section in self.chain:
            found = section.get(name)
            if isinstance(found, Mapping):
                for kind in (*kinds, "default"):
                    if kind in found:
                        return float(found[kind])
            elif found is not None:
                return float(found)
        raise KeyError(name)


@cache
def coefficients(engine: str) -> Coefficients:
    return build(document("coefficients.toml"), engine)


def build(sections: Table, engine: str) -> Coefficients:
    chain: list[Table] = []
    name = engine if engine in sections else "default"
    while name:
        section = sections[name]
        chain.append(section)
        name = section.get("extends", "" if name == "default" else "default")
    return Coefficients(engine, tuple(chain))
