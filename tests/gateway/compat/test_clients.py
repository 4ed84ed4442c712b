"""The clients that people use, in their own packages, against real engines behind the real gateway."""

from __future__ import annotations

import pytest

from berth_gateway.contract import CountedBy, Outcome
from tests.gateway.compat.conftest import CLIENTS, Run

pytestmark = pytest.mark.timeout(400)  # all of them are run before the first test
each_client = pytest.mark.parametrize("run", CLIENTS, indirect=True)


@each_client
def test_a_client_finds_what_it_expects(run: Run) -> None:
    """Models, plain and streamed answers, errors in the client's own classes, leaving in the middle: see its script."""
    assert {name: result for name, result in run.checks.items() if result != "ok"} == {}
    assert {"plain", "stream", "errors", "abort"} <= set(run.checks)
    assert all(run.versions.values())


@each_client
def test_what_a_client_was_told_is_what_is_billed(run: Run) -> None:
    """Every answered request is one event with the same figures, and nothing else is billed but what was aborted."""
    answered = [event for event in run.events if event.outcome is Outcome.OK]
    assert sorted((event.prompt_tokens, event.completion_tokens) for event in answered) == run.usage
    assert all(event.counted_by is CountedBy.ENGINE for event in answered)
    rejected = [event for event in run.events if event.outcome is Outcome.REJECTED]
    assert all(event.prompt_tokens == event.completion_tokens == 0 for event in rejected)


@each_client
def test_a_client_that_leaves_pays_for_what_was_produced(run: Run) -> None:
    (left,) = [event for event in run.events if event.outcome is Outcome.CLIENT_CLOSED]
    assert left.counted_by is CountedBy.ENGINE_RUNNING
    assert left.prompt_tokens > 0
    assert 0 < left.completion_tokens < 500
    assert {event.outcome for event in run.events} <= {Outcome.OK, Outcome.REJECTED, Outcome.CLIENT_CLOSED}
