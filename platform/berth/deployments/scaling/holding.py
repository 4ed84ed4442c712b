"""Slow down: what was needed lately is kept for a while, longer where going down was regretted. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from berth.deployments.scaling.forecast import Outlook
from berth.deployments.scaling.observation import Observation
from berth.deployments.scaling.state import Hold, State

LEARNING: Final = 1.5  # times the stabilisation after the first call, in which nothing is taken away
BRIEF: Final = 0.5  # of the stabilisation, for what has not lasted yet
FEW, LARGE = 4.0, 2.0  # one of many is cheap to keep: a fleet of 8 is kept twice as long as one of 4
PANIC_HOLD: Final = 60.0  # seconds for which a jump is prepared for
LONGEST_PATIENCE: Final = 4.0
YOUNG: Final = 4.5  # times the stabilisation after the first call, in which nobody knows yet how traffic swings
CAUTION: Final = 2.0  # times as long is kept then what was needed
FORGIVEN: Final = 4 * 3_600.0  # seconds after which a regret counts half


def held(observation: Observation, state: State, found: Outlook) -> State:
    """The memory with what is foreseen now. What has lasted for minutes is kept for long, what came only just for a shorter time."""
    now = observation.now
    holds = [each for each in state.holds if each.until > now]
    long = _kept_for(observation, state) * min(LARGE, max(1.0, state.desired / FEW))
    for rate, seconds in ((found.lasting, long), (found.expected, long * BRIEF)):
        if rate > 0:
            holds = _with(holds, Hold(now + seconds, rate))
    jump = state.jump if state.jump is not None and state.jump.until > now else None
    if found.jump and (jump is None or found.jump >= jump.rate):
        jump = Hold(now + PANIC_HOLD, found.jump)
    return msgspec.structs.replace(state, holds=tuple(holds), jump=jump)


def _kept_for(observation: Observation, state: State) -> float:
    stabilisation = observation.policy.stabilisation
    young = state.begun is not None and observation.now - state.begun < YOUNG * stabilisation
    return stabilisation * (max(state.patience, CAUTION) if young else state.patience)


def kept_up(observation: Observation, state: State) -> State:
    """What made it go up is kept for the whole stabilisation: a step up that is taken back soon costs more than it saves."""
    long = _kept_for(observation, state)
    holds = _with(list(state.holds), Hold(observation.now + long, calm_level(state)))
    return msgspec.structs.replace(state, holds=tuple(holds))


def calm_level(state: State) -> float:
    """Work a second that is prepared for, whatever came suddenly."""
    return max((each.rate for each in state.holds), default=0.0)


def level(state: State) -> float:
    """Work a second that is prepared for."""
    return max(calm_level(state), state.jump.rate if state.jump is not None else 0.0)


def _with(holds: list[Hold], new: Hold) -> list[Hold]:
    """Without those that another one outlasts with as much."""
    if any(each.until >= new.until and each.rate >= new.rate for each in holds):
        return holds
    kept = [each for each in holds if each.until > new.until or each.rate > new.rate]
    return [*kept, new]


def regret(observation: Observation, state: State, before: int, after: int) -> State:
    """To need again what was given away a short while ago means that it was given away too early: the next time takes twice as long."""
    now, patience = observation.now, state.patience
    if after < before:
        had = max(before, state.had) if _lately(observation, state, now) else before
        return msgspec.structs.replace(state, went_down_at=now, had=had)
    if after > before and after >= state.had and _lately(observation, state, now):
        patience = min(LONGEST_PATIENCE, 2.0 * patience)
        return msgspec.structs.replace(state, patience=patience, regretted_at=now, went_down_at=None, had=0)
    if patience > 1.0 and now - state.regretted_at > FORGIVEN:
        return msgspec.structs.replace(state, patience=max(1.0, patience / 2.0), regretted_at=now)
    return state


def _lately(observation: Observation, state: State, now: float) -> bool:
    went = state.went_down_at
    return went is not None and now - went < observation.policy.stabilisation
