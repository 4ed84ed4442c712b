"""The library: popular open models by name, with what is known of them. A data file; nothing is asked of anybody."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

FILE: Final = Path(__file__).with_name("data") / "library.toml"


class LibraryModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One model. `repository` empty: it comes with Berth."""

    key: str
    title: str
    publisher: str
    repository: str
    files: str
    name: str
    licence: str
    licence_url: str
    gated: bool
    parameters: int
    active_parameters: int
    context_length: int
    size: int  # bytes
    tasks: tuple[str, ...]
    good_for: dict[str, str]
    needs: dict[str, Any]
    offline: bool
    source: str
    provenance: str  # "read", "entered"
    shape: str = ""  # key in the planner's table of shapes


@cache
def models() -> tuple[LibraryModel, ...]:
    """In the file's order: smallest of each family first."""
    told = tomllib.loads(FILE.read_text("utf-8"))
    return tuple(msgspec.convert(each, LibraryModel) for each in told["model"])
