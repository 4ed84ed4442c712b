"""What each engine can load and where it can run. An engine that is not here is not planned."""

from __future__ import annotations

from typing import Final

import msgspec


class EngineCapabilities(msgspec.Struct, frozen=True):
    formats: frozenset[str]
    kinds: frozenset[str]  # of tiers
    max_slots: int
    context_step: int  # the context of a request is rounded up to a multiple of this


ENGINES: Final[dict[str, EngineCapabilities]] = {
    "llamacpp": EngineCapabilities(
        formats=frozenset({"gguf"}), kinds=frozenset({"cpu"}), max_slots=256, context_step=256
    ),
}
