"""How a replica's life can end early: a failure with a stable code, or an order to stop."""

from __future__ import annotations

HUNG = "engine_hung"
LEADER_LOST = "leader_lost"  # of a node that works for another
# Troubles of a running engine after which another start may help.
RESTARTED = frozenset({HUNG, "engine_exited", "out_of_memory"})


class Failure(Exception):
    """The replica cannot go on. `reason` is a stable code, `message` a sentence for people without text of requests."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class Halt(Exception):
    """The replica was told to end. `reason` says by what, where that is not plain SIGTERM."""

    def __init__(self, reason: str | None = None, message: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
