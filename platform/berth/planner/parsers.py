"""Which of an engine's parsers reads what a model writes: calls of tools, and what it thinks before it answers. By family, from
data/parsers.toml."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from berth.planner.tables import document

BY_NAME: Final = frozenset(
    {"vllm"}
)  # engines that are told a parser by these names; llama.cpp reads the template itself


class Parsers(msgspec.Struct, frozen=True):
    """In vLLM's words. None: there is none to be set."""

    tools: str | None = None
    reasoning: str | None = None


def parsers_for(engine: str, architecture: str, name: str, *, takes_tools: bool) -> Parsers:
    """`name`: what the model is called, by itself or by its owner. `takes_tools`: whether its chat template does."""
    if engine not in BY_NAME:
        return Parsers()
    families: list[dict[str, Any]] = document("parsers.toml")["family"]
    for family in families:
        pattern = family.get("name")
        if architecture not in family["architectures"] or (pattern and not re.search(pattern, name.lower())):
            continue
        return Parsers(family.get("tools") if takes_tools else None, family.get("reasoning"))
    return Parsers()
