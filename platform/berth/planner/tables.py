"""The planner's data files: tiers, capabilities, coefficients, shapes. They are part of the package and read once."""

from __future__ import annotations

import csv
import tomllib
from functools import cache
from importlib.resources import files
from typing import Any


def _text(name: str) -> str:
    return (files("berth.planner") / "data" / name).read_text(encoding="utf-8")


@cache
def rows(name: str, *, delimiter: str = ",") -> tuple[dict[str, str], ...]:
    """A table's lines; those that start with # are comments."""
    lines = [line for line in _text(name).splitlines() if line and not line.startswith("#")]
    return tuple(csv.DictReader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE))


def parse(text: str) -> dict[str, Any]:
    """An operator's own table."""
    return tomllib.loads(text)


@cache
def document(name: str) -> dict[str, Any]:
    return tomllib.loads(_text(name))
