"""How many replicas a deployment needs: a pure function of what is observed and what was remembered. See docs/autoscaling.md.

    decision, state = autoscale(observation, state)

No clock, no I/O, no chance: the same observation and state give the same answer. Begin with `State()`, keep what comes back, call
it again after 1 to 15 seconds.
"""

from __future__ import annotations

from berth.deployments.scaling.assessing import assess
from berth.deployments.scaling.counters import since, told
from berth.deployments.scaling.deciding import decide, rate_for
from berth.deployments.scaling.decision import Decision, Reason
from berth.deployments.scaling.filling import filled, flown
from berth.deployments.scaling.observation import Capacity, Goals, Observation, Peak, Policy
from berth.deployments.scaling.remembering import learned, noticed
from berth.deployments.scaling.state import State

__all__ = ["Capacity", "Decision", "Goals", "Observation", "Peak", "Policy", "Reason", "State", "autoscale"]


def autoscale(observation: Observation, state: State) -> tuple[Decision, State]:
    """The decision, and what is to be handed in with the next observation. Never raises; counts are within the policy's bounds."""
    elapsed = None if state.now is None else max(0.0, observation.now - state.now)
    rate = rate_for(observation, state)
    full = None if rate is None else rate.full
    observation, state = filled(observation, state, elapsed, full)
    came = since(observation, state.counters, elapsed)
    observation, state = flown(observation, state, came.arrivals, elapsed or 0.0, full)
    before = noticed(observation, state, came, elapsed)
    decision, after = decide(observation, before)
    after = assess(observation, after, came, state.now)
    return decision, learned(observation, after, told(observation))
