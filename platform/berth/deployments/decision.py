"""What a look of the reconciler can come to: actions, a state, and when to look again. Plain values."""

from __future__ import annotations

from typing import Final

import msgspec

from berth.deployments.states import State

BACK_OFF: Final = (0.0, 2.0, 5.0, 15.0)  # seconds before the next try, by failures in a row
CRASH_LOOP_AFTER: Final = len(BACK_OFF) + 1  # failures in a row; then nobody waits for it any more
CRASH_LOOP_RETRY: Final = 600.0  # seconds: one more try now and then, until somebody acts
DRAIN_SECONDS: Final = 30
WAKING: Final = "waking"  # the reason of a start that follows a sleep
SURGE: Final = 1  # replicas above the wanted number while one revision replaces another

SOON, NO_ROOM, IDLE, NEVER = 0.5, 3.0, 10.0, 3600.0  # seconds until the next look
REST: Final = 3600.0  # of one that has what it wants: the sweep sees within seconds when that changes
JUDGE: Final = 5.0  # seconds between two looks at a rollout in which nothing moves


class Start(msgspec.Struct, frozen=True):
    """Makes a replica, or repeats a start that may not have happened."""

    name: str
    revision: int
    ordinal: int
    new: bool  # False: its place is recorded already


class Retire(msgspec.Struct, frozen=True):
    """No new requests from now on; it is asked to end when gateways have heard of it."""

    name: str


class Stop(msgspec.Struct, frozen=True):
    name: str
    drain_seconds: int


Action = Start | Retire | Stop


class Decision(msgspec.Struct, frozen=True):
    actions: tuple[Action, ...]
    state: State
    reason: str  # stable code; empty when there is nothing to explain
    message: str
    check_at: float  # Unix seconds
    failures: int
    waiting: bool = False  # for room: it stands in the queue


def replica_name(deployment_id: str, revision: int, ordinal: int, attempt: int) -> str:
    return f"{deployment_id}-{revision}-{ordinal}-{attempt}"


def back_off(failures: int) -> float:
    """Seconds from the last failure to the next try."""
    if failures <= 0:
        return 0.0
    return BACK_OFF[failures - 1] if failures < CRASH_LOOP_AFTER else CRASH_LOOP_RETRY
