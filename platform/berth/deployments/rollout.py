"""When a rollout goes on, is finished, or goes back. Pure: evidence and an instant in, a verdict out."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from berth.deployments.decision import CRASH_LOOP_AFTER
from berth.deployments.world import PERMANENT, Failure

LEAST_FAILED: Final = 3  # failed requests below which nothing is concluded from them


class Strategy(StrEnum):
    """The same values as `models.Strategy`; here without Django."""

    ROLLING = "rolling"
    CANARY = "canary"
    SHADOW = "shadow"


class Status(StrEnum):
    """Those of `models.Status` in which a rollout is open."""

    PROGRESSING = "progressing"
    PAUSED = "paused"
    WATCHING = "watching"


class Margins(msgspec.Struct, frozen=True):
    """How much worse than the old revision the new one may be."""

    failed: float = 2.0  # percentage points more of failed requests
    slower: float = 1.5  # times the old one's median time to the first token
    requests: int = 20  # of the new revision, before anything is concluded


class Evidence(msgspec.Struct, frozen=True):
    """What a revision's requests were like, as metered."""

    requests: int = 0
    failed: int = 0
    first_token_ms: float | None = None  # median, of streams
    streams: int = 0  # that it is the median of

    @property
    def failed_percent(self) -> float:
        return 100 * self.failed / self.requests if self.requests else 0.0


class Course(msgspec.Struct, frozen=True):
    """A rollout as it stands."""

    strategy: Strategy
    status: Status
    has_base: bool  # there is something to go back to
    automatic: bool
    steps: tuple[int, ...]  # percent of requests
    step: int
    step_since: float | None  # Unix seconds
    hold_seconds: float
    margins: Margins
    new_ready: int
    new_wanted: int
    old_alive: int
    failures: int  # of the new revision, in a row
    last_failure: Failure | None
    old: Evidence
    new: Evidence

    @property
    def full(self) -> bool:
        return is_full(self.strategy, self.steps, self.step)


class Next(StrEnum):
    STAY = "stay"
    BEGIN = "begin"  # the present step is in force from now on
    PROMOTE = "promote"  # to the next step
    WATCH = "watch"
    COMPLETE = "complete"
    ROLL_BACK = "roll_back"


class Verdict(msgspec.Struct, frozen=True):
    next: Next
    reason: str = ""
    message: str = ""


_STAY: Final = Verdict(Next.STAY)


def is_full(strategy: str, steps: tuple[int, ...], step: int) -> bool:
    """Whether the new revision is to take everything."""
    return strategy == Strategy.ROLLING or step >= max(1, len(steps))


def canary_replicas(replicas: int, percent: int) -> int:
    """Replicas of the new revision for this share of the requests: at least 1, at most all."""
    return min(replicas, max(1, -(-replicas * percent // 100)))


def judge(course: Course, now: float) -> Verdict:
    """What becomes of it now. Who holds a rollout by hand decides alone."""
    if course.status is Status.PAUSED:
        return _STAY
    if course.has_base and course.automatic:
        back = _broken(course) or worse(course.old, course.new, course.margins)
        if back is not None:
            return back
    if course.new_wanted == 0:  # it sleeps: nothing is known about the new revision
        return _STAY
    if course.full:
        return _finishing(course, now)
    if course.strategy is Strategy.SHADOW:
        return _STAY
    return _canary(course, now)


def _broken(course: Course) -> Verdict | None:
    last = course.last_failure
    if last is None:
        return None
    if last.reason in PERMANENT:
        return Verdict(Next.ROLL_BACK, last.reason, last.message)
    if course.failures < CRASH_LOOP_AFTER:
        return None
    return Verdict(Next.ROLL_BACK, "crash_loop", f"It failed {course.failures} times in a row. {last.message}")


def worse(old: Evidence, new: Evidence, margins: Margins) -> Verdict | None:
    """Whether the new revision is worse than the old by more than the margins, on enough requests."""
    if new.requests < margins.requests:
        return None
    allowed = old.failed_percent + margins.failed
    if new.failed >= LEAST_FAILED and new.failed_percent > allowed:
        message = (
            f"{new.failed_percent:.1f} % of {new.requests} requests failed with it, "
            f"with the one before {old.failed_percent:.1f} % of {old.requests}."
        )
        return Verdict(Next.ROLL_BACK, "more_errors", message)
    if old.first_token_ms is None or new.first_token_ms is None:
        return None
    enough = min(old.streams, new.streams) >= margins.requests
    if enough and new.first_token_ms > old.first_token_ms * margins.slower:
        message = (
            f"First tokens took {new.first_token_ms:.0f} ms in the median of {new.streams} streams, "
            f"with the one before {old.first_token_ms:.0f} ms."
        )
        return Verdict(Next.ROLL_BACK, "slower", message)
    return None


def _finishing(course: Course, now: float) -> Verdict:
    if course.status is Status.WATCHING:
        over = course.step_since is not None and now - course.step_since >= course.hold_seconds
        return Verdict(Next.COMPLETE) if over else _STAY
    if course.new_ready < course.new_wanted or course.old_alive:
        return _STAY
    judged = course.strategy is Strategy.CANARY  # at every step before
    watched = course.has_base and course.automatic and not judged and course.hold_seconds > 0
    return Verdict(Next.WATCH) if watched else Verdict(Next.COMPLETE)


def _canary(course: Course, now: float) -> Verdict:
    if course.step_since is None:
        return Verdict(Next.BEGIN) if course.new_ready >= course.new_wanted else _STAY
    if not course.automatic or now - course.step_since < course.hold_seconds:
        return _STAY
    if course.new.requests < course.margins.requests:
        missing = course.margins.requests - course.new.requests
        return Verdict(Next.STAY, "too_few_requests", f"{missing} more requests are needed to judge it by.")
    return Verdict(Next.PROMOTE)
