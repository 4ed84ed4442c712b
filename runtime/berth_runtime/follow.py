"""A node that works for another: it fetches, verifies and runs the engine like the first one, and serves nobody itself."""

from __future__ import annotations

import time
from typing import Any

from berth_runtime.failure import LEADER_LOST, Failure
from berth_runtime.leader import Leader
from berth_runtime.spec import Phase
from berth_runtime.stoporder import drain_seconds
from berth_runtime.supervise import Supervisor


class Follower(Supervisor):
    """Whether the replica answers is the first node's to say: this one is ready when its engine runs, and fails when that ends or when
    the first node does, since no engine of a group can go on with another's new life."""

    def __init__(self, *given: Any, leader_port: int) -> None:
        """`leader_port`: the first node's status port."""
        super().__init__(*given)
        self._leader = Leader(self._spec.leader, leader_port)

    def _start(self) -> None:
        self._leader.watch(lambda: self._log.say("the replica's first node answers"), self._wake.up)
        self._launch()
        self._check_start()
        self._board.enter(Phase.READY)
        self._log.say("the engine runs, for the replica's first node")

    def _check(self) -> None:
        super()._check()
        if self._leader.lost:
            raise Failure(LEADER_LOST, self._leader.lost)
        if not self._leader.seen and time.monotonic() > self._deadline:
            raise Failure(
                LEADER_LOST,
                f"The replica's first node was not seen within {self._spec.start_deadline_seconds} seconds.",
            )

    def _check_pulse(self) -> None:
        """It cannot be asked whether it works: the first node is, and hangs if this one does."""

    def _drain(self) -> None:
        """The first node needs it until that has answered what runs: it stays until that has ended, or for the drain time."""
        self._board.enter(Phase.DRAINING)
        until = time.monotonic() + drain_seconds(self._spec)
        while time.monotonic() < until and self._child is not None and self._child.ended() is None:
            if self._leader.lost:
                return
            self._wake.wait(0.1)
