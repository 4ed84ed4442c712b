"""docs/security.md names every threat; what it calls held or partly held is carried by tests, what is to come says so."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GROUPS = {"G": 11, "K": 5, "A": 11, "M": 9, "E": 5, "D": 4, "B": 4, "S": 1}
IDS = {f"{group}{number}" for group, last in GROUPS.items() for number in range(1, last + 1)}
ROW = re.compile(r"^\| ([A-Z]\d+) \| (.+?) \| (held|partly|to come) \| (.+) \|$", re.MULTILINE)


@functools.cache
def table() -> dict[str, tuple[str, str]]:
    """Id to (state, explanation)."""
    rows = ROW.findall((ROOT / "docs" / "security.md").read_text())
    assert len(rows) == len({row[0] for row in rows}), "an id stands twice in docs/security.md"
    return {row[0]: (row[2], row[3]) for row in rows}


@functools.cache
def carried() -> dict[str, list[str]]:
    """Id to the tests that carry it. A marker on a module or class counts for what is in it."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "threat":
                argument = node.args[0] if node.args else None
                assert isinstance(argument, ast.Constant), f"{path}: a threat's id is a plain string"
                found.setdefault(str(argument.value), []).append(f"{path.relative_to(ROOT)}:{node.lineno}")
    return found


def test_the_table_has_every_threat() -> None:
    assert set(table()) == IDS


def test_no_test_carries_an_unknown_id() -> None:
    assert {id_: places for id_, places in carried().items() if id_ not in IDS} == {}


@pytest.mark.parametrize("id_", sorted(IDS))
def test_what_is_held_is_tested_and_what_is_not_says_so(id_: str) -> None:
    state, explanation = table()[id_]
    if state == "to come":
        assert len(explanation) >= 15
    else:
        assert carried().get(id_), f"{id_} is said to be {state}, but no test carries it"
    assert ("To come:" in explanation) == (state == "partly"), f"{id_}: what is partly held names what is to come"
