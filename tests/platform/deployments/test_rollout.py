"""When a rollout goes on and when it goes back: the verdicts alone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth.deployments.decision import CRASH_LOOP_AFTER
from berth.deployments.rollout import (
    Course,
    Evidence,
    Margins,
    Next,
    Status,
    Strategy,
    canary_replicas,
    judge,
    worse,
)
from berth.deployments.world import Failure

NOW = 1_000_000.0
GOOD = Evidence(requests=200, failed=1, first_token_ms=100.0, streams=150)


def course(**fields: Any) -> Course:
    plain = Course(
        strategy=Strategy.CANARY,
        status=Status.PROGRESSING,
        has_base=True,
        automatic=True,
        steps=(5, 50),
        step=0,
        step_since=NOW - 1000,
        hold_seconds=300,
        margins=Margins(),
        new_ready=1,
        new_wanted=1,
        old_alive=1,
        failures=0,
        last_failure=None,
        old=GOOD,
        new=GOOD,
    )
    return msgspec.structs.replace(plain, **fields)


def test_a_step_begins_when_its_replicas_answer_and_ends_after_its_hold() -> None:
    assert judge(course(step_since=None, new_ready=0), NOW).next is Next.STAY
    assert judge(course(step_since=None), NOW).next is Next.BEGIN
    assert judge(course(step_since=NOW - 299), NOW).next is Next.STAY
    assert judge(course(), NOW).next is Next.PROMOTE


def test_nothing_is_promoted_on_too_few_requests() -> None:
    verdict = judge(course(new=Evidence(requests=19)), NOW)
    assert (verdict.next, verdict.reason) == (Next.STAY, "too_few_requests")
    assert verdict.message.startswith("1 more")


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        (Evidence(requests=100, failed=4, first_token_ms=100.0, streams=100), "more_errors"),
        (Evidence(requests=100, failed=0, first_token_ms=151.0, streams=100), "slower"),
    ],
)
@pytest.mark.parametrize("strategy", [Strategy.CANARY, Strategy.ROLLING])
def test_worse_than_before_by_more_than_the_margin_goes_back(strategy: Strategy, new: Evidence, reason: str) -> None:
    verdict = judge(course(strategy=strategy, new=new), NOW)
    assert (verdict.next, verdict.reason) == (Next.ROLL_BACK, reason)


@pytest.mark.parametrize(
    "new",
    [
        Evidence(requests=100, failed=2, first_token_ms=149.0, streams=100),  # within the margins
        Evidence(requests=19, failed=19),  # too few to say
        Evidence(requests=20, failed=2, first_token_ms=900.0, streams=19),  # too few failed, too few streams
    ],
)
def test_within_the_margins_or_on_too_little_it_stays(new: Evidence) -> None:
    assert worse(GOOD, new, Margins()) is None


def test_a_crash_loop_goes_back_and_what_cannot_be_mended_does_at_once() -> None:
    failed = Failure(NOW, "engine_exited", "It ended.")
    assert judge(course(failures=CRASH_LOOP_AFTER - 1, last_failure=failed), NOW).next is not Next.ROLL_BACK
    verdict = judge(course(failures=CRASH_LOOP_AFTER, last_failure=failed), NOW)
    assert (verdict.next, verdict.reason) == (Next.ROLL_BACK, "crash_loop")
    corrupt = Failure(NOW, "checksum_mismatch", "A file is not what it should be.")
    assert judge(course(failures=1, last_failure=corrupt), NOW).reason == "checksum_mismatch"
    assert judge(course(failures=9, last_failure=failed, has_base=False), NOW).next is not Next.ROLL_BACK


def test_a_rolling_update_is_watched_before_it_counts_as_good() -> None:
    rolling = course(strategy=Strategy.ROLLING, steps=(), step_since=None)
    assert judge(rolling, NOW).next is Next.STAY  # the old ones are still there
    assert judge(msgspec.structs.replace(rolling, old_alive=0), NOW).next is Next.WATCH
    watching = msgspec.structs.replace(rolling, old_alive=0, status=Status.WATCHING, step_since=NOW - 299)
    assert judge(watching, NOW).next is Next.STAY
    assert judge(watching, NOW + 1).next is Next.COMPLETE
    bad = msgspec.structs.replace(watching, new=Evidence(requests=50, failed=25))
    assert judge(bad, NOW).next is Next.ROLL_BACK


def test_a_canary_that_took_all_steps_is_done_when_the_old_are_gone() -> None:
    assert judge(course(step=2), NOW).next is Next.STAY
    assert judge(course(step=2, old_alive=0), NOW).next is Next.COMPLETE


def test_what_sleeps_proves_nothing() -> None:
    for strategy in Strategy:
        asleep = course(strategy=strategy, new_wanted=0, new_ready=0, old_alive=0, step_since=None)
        assert judge(asleep, NOW).next is Next.STAY


def test_a_shadow_waits_for_somebody() -> None:
    assert judge(course(strategy=Strategy.SHADOW, steps=()), NOW).next is Next.STAY
    assert judge(course(strategy=Strategy.SHADOW, steps=(), step=1, old_alive=0), NOW).next is Next.WATCH


@given(
    strategy=st.sampled_from(Strategy),
    failures=st.integers(0, 9),
    new=st.builds(Evidence, requests=st.integers(0, 99), failed=st.integers(0, 99)),
    step=st.integers(0, 3),
)
def test_what_somebody_holds_or_decides_by_hand_never_moves_back_by_itself(
    strategy: Strategy, failures: int, new: Evidence, step: int
) -> None:
    last = Failure(NOW, "engine_exited", "")
    seen = course(strategy=strategy, failures=failures, last_failure=last, new=new, step=step)
    assert judge(msgspec.structs.replace(seen, status=Status.PAUSED), NOW).next is Next.STAY
    assert judge(msgspec.structs.replace(seen, automatic=False), NOW).next not in (Next.ROLL_BACK, Next.PROMOTE)


@given(replicas=st.integers(1, 16), percent=st.integers(1, 100))
def test_a_canary_has_at_least_one_replica_and_at_most_all(replicas: int, percent: int) -> None:
    new = canary_replicas(replicas, percent)
    assert 1 <= new <= replicas
    assert new * 100 >= replicas * percent or new == replicas
