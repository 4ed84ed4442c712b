"""The engines there are, by name."""

from __future__ import annotations

from collections.abc import Callable

from berth_runtime.engines.engine import Engine
from berth_runtime.engines.llamacpp import LlamaCpp

ENGINES: dict[str, Callable[[], Engine]] = {LlamaCpp.name: LlamaCpp}


def engine_named(name: str) -> Engine | None:
    """The engine, or None if this runtime does not have it."""
    make = ENGINES.get(name)
    return make() if make else None
