"""A node that works for another: it fetches, verifies and runs the engine like the first one, and serves nobody itself."""

from __future__ import annotations

import time

from berth_runtime.spec import Phase
from berth_runtime.supervise import Supervisor


class Follower(Supervisor):
    """Whether the replica answers is the first node's to say: this one is ready when its engine runs, and fails when that ends."""

    def _start(self) -> None:
        self._launch()
        self._check_start()
        self._board.enter(Phase.READY)
        self._log.say("the engine runs, for the replica's first node")

    def _check_pulse(self) -> None:
        """It cannot be asked whether it works: the first node is, and hangs if this one does."""

    def _drain(self) -> None:
        """The first node needs it until that has answered what runs, and nobody tells it when that is: it stays for the drain time."""
        self._board.enter(Phase.DRAINING)
        until = time.monotonic() + self._drain_seconds()
        while time.monotonic() < until and self._child is not None and self._child.ended() is None:
            self._wake.wait(0.1)
