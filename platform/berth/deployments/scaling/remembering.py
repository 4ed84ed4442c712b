"""What each call adds to the memory: before the decision, what it has to know; after it, what is learned for the next ones. Pure."""

from __future__ import annotations

from math import exp
from typing import Final

import msgspec

from berth.deployments.scaling.bursts import Bursts
from berth.deployments.scaling.deciding import calmly_able, little
from berth.deployments.scaling.history import History, noise
from berth.deployments.scaling.holding import level
from berth.deployments.scaling.observation import STABILISATION, Observation
from berth.deployments.scaling.state import Awaited, Coming, Counters, Mix, State

COMPARE: Final = 10.0  # seconds between two forecasts that are compared later
_MIX, _FLIGHT = 300.0, 45.0  # seconds in which what was forgets to 1/e
_HABIT, _MOST_DISPERSION = 0.06, 40.0
_STAY, UNCROWDED = 200.0, 1.1  # seconds; times the planned concurrency
_LEAST_RATE: Final = 0.02  # requests a second below which surprises mean nothing


def noticed(observation: Observation, state: State, came: Counters, elapsed: float | None) -> State:
    """Adds arrivals and gauges."""
    mix = _mixed(state.mix, came, observation.flying, elapsed)
    work = came.arrivals * weight(observation, mix)
    first = state.now is None
    busy = came.arrivals > 0 or observation.flying > 0 or observation.held > 0
    ready_since = state.ready_since if state.ready_since is not None else observation.now
    pattern = state.pattern
    if observation.policy.daily:
        pattern = pattern.with_work(observation.now, work, elapsed or 0.0)
    return msgspec.structs.replace(
        state,
        now=observation.now if state.now is None else max(state.now, observation.now),
        begun=observation.now if first else state.begun,
        initial=observation.ready + observation.starting if first else state.initial,
        desired=observation.ready + observation.starting if first else state.desired,
        history=_history(observation, state, work, elapsed),
        mix=mix,
        pattern=pattern,
        coming=_coming(observation, state),
        ready_since=ready_since if observation.ready > 0 else None,
        active_at=observation.now if busy else state.active_at,
    )


def _history(observation: Observation, state: State, work: float, elapsed: float | None) -> History:
    if elapsed is None and observation.window:
        begun = state.history.with_sample(observation.now - observation.window, 0.0)
        return begun.with_sample(observation.now, work)
    return state.history.with_sample(observation.now, work)


def weight(observation: Observation, mix: Mix) -> float:
    """The work of a request of the recent mix, where 1 is one of those that the capacity was planned for."""
    capacity = observation.capacity
    if mix.ended < 1.0:
        return 1.0
    total = 0.0
    for planned, recent, share in (
        (capacity.prompt_tokens, mix.prompt_tokens, capacity.prompt_share),
        (capacity.completion_tokens, mix.completion_tokens, 1.0 - capacity.prompt_share),
    ):
        total += share * (recent / mix.ended / planned if planned else 1.0)
    # Few requests say little of the mix.
    trust = mix.ended / (mix.ended + 20.0)
    return min(max(1.0 + trust * (total - 1.0), 0.1), 10.0)


def _mixed(mix: Mix, came: Counters, in_flight: float, elapsed: float | None) -> Mix:
    if elapsed is None:
        return msgspec.structs.replace(mix, in_flight=in_flight)
    kept, flying = exp(-elapsed / _MIX), exp(-elapsed / _FLIGHT)
    known = came.ended is not None and came.prompt_tokens is not None and came.completion_tokens is not None
    return Mix(
        ended=kept * mix.ended + (came.ended or 0.0) * known,
        prompt_tokens=kept * mix.prompt_tokens + (came.prompt_tokens or 0.0) * known,
        completion_tokens=kept * mix.completion_tokens + (came.completion_tokens or 0.0) * known,
        in_flight=flying * mix.in_flight + (1.0 - flying) * in_flight,
    )


def _coming(observation: Observation, state: State) -> tuple[Coming, ...]:
    """When what starts should be ready. The oldest are taken for ready when fewer start than were asked for."""
    left, kept = observation.starting, list[Coming]()
    for each in reversed(state.coming):
        if left <= 0:
            break
        count = min(left, each.count)
        kept.append(Coming(max(each.at, observation.now + 1.0), count))
        left -= count
    if left > 0:
        kept.append(Coming(observation.now + observation.cold_start, left))
    return tuple(reversed(kept))


def learned(observation: Observation, state: State, counters: Counters) -> State:
    """Compares forecasts that are due, and notes the new one."""
    state, policy = msgspec.structs.replace(state, counters=counters), observation.policy
    elapsed = observation.now - state.compared_at
    if 0.0 <= elapsed < COMPARE:
        return state
    awaited, surprises, able, barely = list[Awaited](), state.surprises, 0.0, 0.0
    for each in state.awaited:
        age = observation.now - each.due
        if age < COMPARE / 2.0:
            awaited.append(each)
        elif age < 10.0 * COMPARE:
            able, barely = max(able, each.able), max(barely, each.barely)
            came = state.history.rate_between(age + COMPARE, max(0.0, age - COMPARE))
            sure = max(0.0, came - noise(came, 2.0 * COMPARE, state.dispersion))
            if came > _LEAST_RATE and each.rate > 0:
                surprises = surprises.with_ratio(sure / each.rate, came, min(elapsed, COMPARE * 2.0))
            elif came > _LEAST_RATE:
                surprises = surprises.with_ratio(1e3, came, COMPARE)
    state = _stayed(observation, state, elapsed)
    bursts = _burst(observation, state, elapsed, able, barely)
    state = _dispersed(state, elapsed)
    if state.history.span >= 60.0:
        due = observation.now + observation.cold_start
        awaited.append(Awaited(due, level(state), *calmly_able(observation, state)))
    return msgspec.structs.replace(
        state,
        awaited=tuple(awaited[-64:]),
        surprises=surprises,
        compared_at=observation.now,
        bursts=bursts,
        held_ready=bursts.floor(observation.now, 1.0 - policy.goals.share, policy.stabilisation / STABILISATION),
    )


def _burst(observation: Observation, state: State, elapsed: float, able: float, barely: float) -> Bursts:
    """`able`, `barely`: work a second that forecasts for now would have made possible, with and without what is kept after peaks."""
    span = min(elapsed, 3.0 * COMPARE)
    rate = state.history.rate_between(span, 0.0)
    bursts = state.bursts.with_stretch(rate, span)
    sure = rate - noise(rate, span)
    if 0 < able < sure:
        return bursts.with_overrun(observation.now, rate, rate * span)
    if 0 < barely < sure and bursts.overruns:
        return bursts.with_return(observation.now, rate)
    return bursts


def _stayed(observation: Observation, state: State, elapsed: float) -> State:
    """How long requests stay, learned slowly and only where they do not crowd: else few replicas would seem to need ever more."""
    planned, seconds = observation.capacity.concurrency, little(state)
    if seconds is None or not planned or state.history.span < 30.0 or observation.held > 0:
        return state
    if state.mix.in_flight > UNCROWDED * planned * observation.ready:
        return state
    if state.stay is None:
        return msgspec.structs.replace(state, stay=seconds)
    return msgspec.structs.replace(state, stay=state.stay + (1.0 - exp(-elapsed / _STAY)) * (seconds - state.stay))


def _dispersed(state: State, elapsed: float) -> State:
    """How much two neighbouring stretches of ten seconds or more differ, against what chance alone would do. One jump is not a habit."""
    span = max(COMPARE, elapsed)
    rate, last = state.history.rate(span), state.last_rate
    dispersion = state.dispersion
    if last is not None and elapsed < 4.0 * COMPARE and rate + last > 0.2:
        ratio = (rate - last) ** 2 * span / (rate + last)
        dispersion += _HABIT * (min(ratio, _MOST_DISPERSION) - dispersion)
    return msgspec.structs.replace(state, dispersion=max(1.0, dispersion), last_rate=rate)
