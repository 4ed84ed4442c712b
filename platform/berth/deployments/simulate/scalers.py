"""The real autoscaler in virtual time."""

from __future__ import annotations

from collections.abc import Callable

from berth.deployments.autoscale import autoscale
from berth.deployments.scaling.decision import Decision
from berth.deployments.scaling.observation import Observation
from berth.deployments.scaling.state import State
from berth.deployments.simulate.setting import Order


class Autoscaler:
    """`heard` gets every decision, with the time."""

    def __init__(self, interval: float = 2.0, heard: Callable[[float, Decision], None] | None = None) -> None:
        self.interval = interval
        self.state = State()
        self._heard = heard

    def decide(self, seen: Observation) -> Order:
        decision, self.state = autoscale(seen, self.state)
        if self._heard is not None:
            self._heard(seen.now, decision)
        return Order(decision.desired, decision.concurrency)
