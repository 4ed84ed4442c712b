"""Allowed moves, pauses between tries, and how a replica's life is told from two views of it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth.deployments import models
from berth.deployments.decision import CRASH_LOOP_RETRY, back_off
from berth.deployments.states import MOVES, NotAllowed, State, check_move
from berth.deployments.world import Life, Row, Sight, Want, merge


def test_moves() -> None:
    assert set(MOVES) == set(State)
    assert MOVES[State.DELETED] == {State.DELETED}
    for before in State:
        for after in State:
            if before is after or after in MOVES[before]:
                check_move(before, after)
            else:
                with pytest.raises(NotAllowed):
                    check_move(before, after)


def test_the_states_are_those_of_the_rows() -> None:
    assert {state.value for state in State} == set(models.State.values)
    assert {want.value for want in Want} == set(models.Desired.values)


@given(failures=st.integers(0, 100))
def test_pauses_only_grow(failures: int) -> None:
    assert back_off(failures) <= back_off(failures + 1) <= CRASH_LOOP_RETRY


def test_lives_are_told_apart() -> None:
    now = 1_000_000.0
    row = Row("r", 1, 0, 100, now - 100)

    def life(sight: Sight | None, **fields: float) -> str:
        merged = merge([msgspec.structs.replace(row, **fields)], [sight] if sight else [], now)
        return str(merged.seen[0].life) if merged.seen else ("failed" if merged.ended[0].failed else "ended")

    assert life(None) == Life.PENDING
    assert life(None, retired_at=now) == "ended"
    assert life(Sight("r", "loading", True, False, now)) == Life.STARTING
    assert life(Sight("r", "ready", True, True, now)) == Life.READY
    assert life(Sight("r", "ready", True, True, now), retired_at=now) == Life.LEAVING
    assert life(Sight("r", "draining", True, False, now)) == Life.LEAVING
    assert life(Sight("r", "stopped", False, False, now)) == "ended"
    assert life(Sight("r", "failed", False, False, now)) == "failed"
    assert life(Sight("r", "stopped", False, False, 0.0)) == "failed"
    assert life(Sight("r", "stopped", False, False, 0.0), started_at=now - 1) == Life.PENDING
