"""Which state may follow which. Everything that is not in the table is a bug in whoever wants it."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class State(StrEnum):
    """The same values as `models.State`; here without Django, for those that only think."""

    QUEUED = "queued"
    STARTING = "starting"
    READY = "ready"
    UPDATING = "updating"
    DEGRADED = "degraded"
    ASLEEP = "asleep"
    STOPPING = "stopping"
    PAUSED = "paused"
    FAILED = "failed"
    DELETED = "deleted"


_S = State
_ALWAYS: Final = frozenset({_S.PAUSED, _S.DELETED})  # nothing runs any more, which can be found at any time
_WAYS_UP: Final = frozenset({_S.QUEUED, _S.STARTING, _S.FAILED})
_SERVING: Final = frozenset({_S.READY, _S.UPDATING, _S.DEGRADED})
_WAYS_DOWN: Final = frozenset({_S.STOPPING, _S.ASLEEP})

MOVES: Final[dict[State, frozenset[State]]] = {
    _S.QUEUED: _WAYS_UP | _SERVING | _WAYS_DOWN | _ALWAYS,
    _S.STARTING: _WAYS_UP | _SERVING | _WAYS_DOWN | _ALWAYS,
    _S.READY: _WAYS_UP | _SERVING | _WAYS_DOWN | _ALWAYS,
    _S.UPDATING: _WAYS_UP | _SERVING | _WAYS_DOWN | _ALWAYS,
    _S.DEGRADED: _WAYS_UP | _SERVING | _WAYS_DOWN | _ALWAYS,
    # What sleeps has let its replicas go, so it has to start before it serves.
    _S.ASLEEP: _WAYS_UP | _WAYS_DOWN | _ALWAYS,
    # What is stopping does not serve again, what has failed or is paused has to start first, or may sleep as nobody needs it.
    _S.STOPPING: _WAYS_UP | _WAYS_DOWN | _ALWAYS,
    _S.PAUSED: _WAYS_UP | {_S.ASLEEP} | _ALWAYS,
    _S.FAILED: _WAYS_UP | _WAYS_DOWN | _ALWAYS,
    _S.DELETED: frozenset({_S.DELETED}),
}


class NotAllowed(Exception):
    def __init__(self, before: str, after: str) -> None:
        super().__init__(f"A deployment does not go from {before} to {after}.")


def check_move(before: str, after: str) -> None:
    """Raises NotAllowed. Staying where one is is no move."""
    if before != after and State(after) not in MOVES[State(before)]:
        raise NotAllowed(before, after)
