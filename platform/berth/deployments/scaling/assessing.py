"""Looks at stretches in which the fleet did not change, and corrects the planned capacity by them. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from berth.deployments.scaling.counters import added
from berth.deployments.scaling.deciding import rate_for, residence
from berth.deployments.scaling.measured import ANSWERS, CLEAN, CROWDED, Window, corrected, overfull
from berth.deployments.scaling.observation import Observation
from berth.deployments.scaling.remembering import weight
from berth.deployments.scaling.state import Counters, State, Sums

SLOT: Final = 10.0  # seconds: a peak that is shorter harms few
LONGEST: Final = 300.0  # seconds; then even few answers are left behind
FULL: Final = 20.0  # seconds in which requests must have waited, so that what is done is all that can be done
_DRIFT: Final = 1.002  # of the shortest first token, each stretch, so that it is no record for ever


def assess(observation: Observation, state: State, came: Counters, last: float | None) -> State:
    state = _overfull(observation, state, last)
    sums, now = state.sums, observation.now
    fresh = Sums(now, observation.ready, busy=state.busy)
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
        sums.busy,
    )
    window = _window(observation, sums, state.busy)
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


def _overfull(observation: Observation, state: State, last: float | None) -> State:
    """While requests wait, replicas do all they can: what they finish then is what they can do."""
    planned, now, finished = observation.capacity.concurrency, observation.now, state.done
    inside = (
        observation.flying > CROWDED * planned * observation.ready if planned else (observation.engine_queue or 0.0) > 0
    )
    spread = observation.held > 0 or (inside and state.flooded == observation.ready)
    same = state.sums is None or state.sums.ready == observation.ready
    if not spread or not same or observation.ready == 0 or finished is None or last is None:
        return msgspec.structs.replace(state, full_since=None)
    since = now if state.full_since is None else state.full_since
    state = msgspec.structs.replace(state, full_since=since)
    if now - since < FULL + 2.0 * (residence(state) or 0.0):
        return state
    rate = rate_for(observation, state)
    done = finished * weight(observation, state.mix) / observation.ready
    known = overfull(
        state.corrected,
        done,
        None if rate is None else rate.full,
        bool(planned or observation.capacity.requests_per_second),
    )
    return msgspec.structs.replace(state, corrected=known, full_since=now - FULL / 2.0)


def _window(observation: Observation, sums: Sums, busy: float) -> Window:
    seconds, counts = observation.now - sums.since, sums.counts
    answers = counts.arrivals if counts.answers is None else counts.answers
    planned = observation.capacity.concurrency
    first = None
    if counts.answers and counts.first_token_seconds is not None:
        first = max(0.0, counts.first_token_seconds - (counts.queue_seconds or 0.0)) / answers
    token = None
    if counts.decode_tokens and counts.decode_seconds is not None:
        token = counts.decode_seconds / counts.decode_tokens
    return Window(
        seconds=seconds,
        work=sums.work / seconds / sums.ready if seconds > 0 else 0.0,
        peak=sums.peak,
        left=max(0.0, busy - sums.busy) / max(counts.arrivals, 1.0),
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
