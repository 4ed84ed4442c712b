"""What a caller does not tell is worked out from what it does: arrivals from a rate or from what is in flight, what waits from arrivals
and capacity. Pure."""

from __future__ import annotations

from math import exp
from typing import Final

import msgspec

from berth.deployments.scaling.observation import Observation
from berth.deployments.scaling.state import State

RESIDENCE: Final = (
    10.0  # seconds that a request is taken to spend in a replica when nothing tells it; cancels out with `concurrency`
)
LATELY: Final = 8.0  # seconds after which what was finished counts 1/e


def filled(
    observation: Observation, state: State, elapsed: float | None, full: float | None
) -> tuple[Observation, State]:
    """The observation with a number of arrivals, of requests in flight and of waiting ones. `full`: work a second that a replica does
    when it is full, as believed."""
    passed = elapsed or 0.0
    if observation.arrivals is None:
        came, state = _came(observation, state, passed, full)
        # As a counter of its own, so that what follows sees only counters.
        total = state.counters.arrivals + came
        window = observation.window
        if window is not None:
            total = came * window / passed if passed > 0 else 0.0
        observation = msgspec.structs.replace(observation, arrivals=total)
    return observation, state


def _came(observation: Observation, state: State, passed: float, full: float | None) -> tuple[float, State]:
    """Requests that came since the last call: by the rate, or what is there now, less what was there, and what was done meanwhile."""
    if observation.arrival_rate is not None:
        return max(0.0, observation.arrival_rate) * passed, state
    if (observation.in_flight is None and observation.queued is None) or passed <= 0:
        return 0.0, state
    capacity, flying = observation.capacity, observation.flying
    seconds = RESIDENCE
    if capacity.concurrency and capacity.requests_per_second:
        seconds = capacity.concurrency / capacity.requests_per_second
    rate = flying / seconds
    if full is not None and observation.ready:
        rate = min(rate, full * observation.ready)
    came = flying + observation.held - state.busy + rate * passed + state.owed
    # What fell by more than could be done is taken off the next ones.
    return max(0.0, came), msgspec.structs.replace(state, owed=min(0.0, came))


def flown(
    observation: Observation, state: State, came: float, passed: float, full: float | None
) -> tuple[Observation, State]:
    """With what was finished. Of a caller that does not tell what is in flight: what must wait if replicas do what is believed."""
    if observation.in_flight is not None or observation.queued is not None:
        return observation, _finished(observation, state, came, passed)
    if full is None:
        return observation, state
    left = max(0.0, state.busy + came - observation.ready * full * passed)
    return (
        msgspec.structs.replace(observation, queued=left if left > full else 0.0),
        msgspec.structs.replace(state, busy=left),
    )


def _finished(observation: Observation, state: State, came: float, passed: float) -> State:
    busy = observation.flying + observation.held
    if passed <= 0:
        return msgspec.structs.replace(state, busy=busy)
    rate = max(0.0, state.busy + came - busy) / passed
    kept = exp(-passed / LATELY)
    done = rate if state.done is None else kept * state.done + (1.0 - kept) * rate
    return msgspec.structs.replace(state, busy=busy, done=done)
