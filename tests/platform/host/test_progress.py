from __future__ import annotations

import io

import pytest

from berth.host.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_step_is_one_line_and_its_time_is_remembered() -> None:
    out, timings = io.StringIO(), {}
    with Progress(timings, out).step("Database schema", usual=3) as step:
        step.outcome = "36 changes applied"
    assert out.getvalue().startswith("✓ Database schema: 36 changes applied in ")
    assert out.getvalue().count("\n") == 1
    assert list(timings) == ["Database schema"]


def test_a_long_step_says_what_to_expect_before_it_begins() -> None:
    out = io.StringIO()
    with Progress({"Import": 42.0}, out).step("Import", usual=3):
        assert out.getvalue() == "Import …, usually 42 s\n", "what was measured here counts more than a guess"


def test_a_terminal_sees_the_line_being_redrawn() -> None:
    out = Terminal()
    with Progress({}, out).step("Import", usual=5) as step:
        step.note = "waiting for the worker"
        step.tick()
        step.tick()
    drawn = out.getvalue()
    assert drawn.count("Import … 0 s (waiting for the worker), usually 5 s") == 1, "no need to draw the same again"
    assert drawn.endswith("s\n")


def test_a_terminal_sees_a_step_as_soon_as_it_begins() -> None:
    out = Terminal()
    with Progress({}, out).step("Database schema", usual=3):
        assert out.getvalue().endswith("  Database schema … 0 s, usually 3 s")


def test_a_step_that_fails_is_marked_and_not_remembered() -> None:
    out, timings = io.StringIO(), {}
    with pytest.raises(ValueError, match="no"), Progress(timings, out).step("Import"):
        raise ValueError("no")
    assert out.getvalue().startswith("✗ Import: not done")
    assert timings == {}
