"""Looks at stretches in which the fleet did not change, and corrects the planned capacity by them. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from berth.deployments.scaling.counters import added
from berth.deployments.scaling.deciding import rate_for
from berth.deployments.scaling.measured import ANSWERS, CLEAN, Window, corrected
from berth.deployments.scaling.observation import Observation
from berth.deployments.scaling.remembering import weight
from berth.deployments.scaling.state import Counters, State, Sums

SLOT: Final = 10.0  # seconds: a peak that is shorter harms few
LONGEST: Final = 300.0  # seconds; then even few answers are left behind
_DRIFT: Final = 1.002  # of the shortest first token, each stretch, so that it is no record for ever


def assess(observation: Observation, state: State, came: Counters, last: float | None) -> State:
    sums, now = state.sums, observation.now
    fresh = Sums(now, observation.ready)
    if (
        sums is None
        or last is None
        or sums.ready != observation.ready
        or observation.ready == 0
        or observation.held > 0
    ):
        return msgspec.structs.replace(state, sums=fresh)
    sums = Sums(
        sums.since,
        sums.ready,
        sums.work + came.arrivals * weight(observation, state.mix),
        added(sums.counts, came),
        max(sums.peak, state.history.rate(min(SLOT, max(now - sums.since, 1.0))) / sums.ready),
    )
    window = _window(observation, sums)
    if window.seconds < CLEAN or (window.answers < ANSWERS and window.seconds < LONGEST):
        return msgspec.structs.replace(state, sums=sums)
    unloaded = observation.unloaded_first_token or _shortest(state.unloaded, window)
    rate = rate_for(observation, state)
    # A stretch that ends a start or a step down still shows what was before.
    believed = rate.pooled if rate is not None else 0.0
    if observation.ready == 1 and rate is not None:
        believed = rate.alone
    known = corrected(state.corrected, window, observation.policy.goals, believed or window.work, unloaded)
    return msgspec.structs.replace(state, corrected=known, sums=fresh, unloaded=unloaded)


def _window(observation: Observation, sums: Sums) -> Window:
    seconds, counts = observation.now - sums.since, sums.counts
    answers = counts.answers or 0.0
    planned = observation.capacity.concurrency
    first = None
    if answers and counts.first_token_seconds is not None:
        first = max(0.0, counts.first_token_seconds - (counts.queue_seconds or 0.0)) / answers
    token = None
    if counts.decode_tokens and counts.decode_seconds is not None:
        token = counts.decode_seconds / counts.decode_tokens
    return Window(
        seconds=seconds,
        work=sums.work / seconds / sums.ready if seconds > 0 else 0.0,
        peak=sums.peak,
        crowd=observation.flying / sums.ready / planned if planned else None,
        answers=answers,
        first=first,
        late=counts.late / answers if counts.late is not None and answers else None,
        token=token,
        cache_use=observation.cache_use,
    )


def _shortest(known: float | None, window: Window) -> float | None:
    if window.first is None:
        return known
    return window.first if known is None else min(known * _DRIFT, window.first)
