"""The decision of the reconciler: what is wanted and what there is → what to do now, and what to call the situation.

Pure: the same world gives the same decision. Names of replicas are deterministic, so a decision that is carried out twice,
by two workers or after a crash, does what it does once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from berth.deployments.states import State
from berth.deployments.world import STABLE_SECONDS, Failure, Life, Seen, Want, Wanted, World

BACK_OFF: Final = (0.0, 2.0, 5.0, 15.0)  # seconds before the next try, by failures in a row
CRASH_LOOP_AFTER: Final = len(BACK_OFF) + 1  # failures in a row; then nobody waits for it any more
CRASH_LOOP_RETRY: Final = 600.0  # seconds: one more try now and then, until somebody acts
DRAIN_SECONDS: Final = 30
WAKING: Final = "waking"  # the reason of a start that follows a sleep
SURGE: Final = 1  # replicas above the wanted number while one revision replaces another

_SOON, _NO_ROOM, _IDLE, _NEVER = 0.5, 3.0, 10.0, 3600.0  # seconds until the next look


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


_Decided = Callable[[State, str, str, float], Decision]


def replica_name(deployment_id: str, revision: int, ordinal: int, attempt: int) -> str:
    return f"{deployment_id}-{revision}-{ordinal}-{attempt}"


def back_off(failures: int) -> float:
    """Seconds from the last failure to the next try."""
    if failures <= 0:
        return 0.0
    return BACK_OFF[failures - 1] if failures < CRASH_LOOP_AFTER else CRASH_LOOP_RETRY


def step(wanted: Wanted, world: World) -> Decision:
    """What to do now. Everything that follows from it is seen at the next look."""
    stops: list[Action] = [Stop(name, 0) for name in world.merged.orphans]
    stops += [_end(seen) for seen in world.merged.seen if _may_end(seen, world.now)]
    if wanted.desired is Want.RUNNING:
        if _may_sleep(wanted, world):
            return _asleep(world, stops)
        return _running(wanted, world, stops)
    return _going_down(wanted, world, stops)


def _may_end(seen: Seen, now: float) -> bool:
    return seen.life is Life.LEAVING and (seen.stop_at is None or now >= seen.stop_at)


def _end(seen: Seen) -> Stop:
    return Stop(seen.name, DRAIN_SECONDS if seen.drain else 0)


def _may_sleep(wanted: Wanted, world: World) -> bool:
    due = _sleep_due(wanted, world)
    return wanted.sleep_after is not None and (world.sleeping or (due is not None and world.now >= due))


def _sleep_due(wanted: Wanted, world: World) -> float | None:
    """When it may sleep if no request comes: the clock starts when all replicas are ready, and anew with each request. None: not as
    long as something is on its way."""
    fleet = _sorted(wanted, world.merged.seen)
    if wanted.sleep_after is None or fleet.ready < wanted.replicas or fleet.old:
        return None
    since = max(seen.ready_since or world.now for seen in fleet.current)
    return max(since, world.last_request_at or 0.0, world.woken_at or 0.0) + wanted.sleep_after


def _asleep(world: World, stops: list[Action]) -> Decision:
    """No replica is kept. What runs is finished first, as whenever a replica is retired."""
    retire: list[Action] = [Retire(seen.name) for seen in world.merged.seen if seen.life is not Life.LEAVING]
    check_at = world.now + (_SOON if world.merged.seen else _NEVER)
    return Decision((*stops, *retire), State.ASLEEP, "", "", check_at, 0)


def _going_down(wanted: Wanted, world: World, stops: list[Action]) -> Decision:
    retire: list[Action] = [Retire(seen.name) for seen in world.merged.seen if seen.life is not Life.LEAVING]
    if world.merged.seen:
        return Decision((*stops, *retire), State.STOPPING, "", "", world.now + _SOON, 0)
    if wanted.desired is Want.DELETED:
        return Decision(tuple(stops), State.DELETED, "", "", world.now + _NEVER, 0)
    return Decision(tuple(stops), State.PAUSED, "", "", world.now + _NEVER, 0)


class _Fleet(msgspec.Struct, frozen=True):
    """The replicas of a running deployment, sorted by what they are good for."""

    current: tuple[Seen, ...]  # of the wanted configuration, one for each wanted ordinal
    surplus: tuple[Seen, ...]  # of the wanted configuration, beyond what is wanted
    old: tuple[Seen, ...]
    leaving: tuple[Seen, ...]

    @property
    def ready(self) -> int:
        return sum(seen.life is Life.READY for seen in self.current)

    @property
    def spare_ready(self) -> tuple[Seen, ...]:
        return tuple(seen for seen in (*self.old, *self.surplus) if seen.life is Life.READY)

    @property
    def alive(self) -> int:
        return len(self.current) + len(self.surplus) + len(self.old) + len(self.leaving)


def _sorted(wanted: Wanted, everything: Sequence[Seen]) -> _Fleet:
    current: dict[int, Seen] = {}
    surplus, old, leaving = [], [], []
    # The one that is ready keeps its place before one that still starts, then the newer revision, then the name.
    ranked = sorted(everything, key=lambda seen: (seen.life is not Life.READY, -seen.revision, seen.name))
    for seen in ranked:
        if seen.life is Life.LEAVING or seen.stuck:
            leaving.append(seen)
        elif seen.revision not in wanted.same:
            old.append(seen)
        elif seen.ordinal < wanted.replicas and seen.ordinal not in current:
            current[seen.ordinal] = seen
        else:
            surplus.append(seen)
    return _Fleet(tuple(current.values()), tuple(surplus), tuple(old), tuple(leaving))


def _running(wanted: Wanted, world: World, actions: list[Action]) -> Decision:
    fleet = _sorted(wanted, world.merged.seen)
    actions += [Stop(seen.name, 0) for seen in fleet.leaving if seen.stuck]
    actions += [
        Start(seen.name, seen.revision, seen.ordinal, new=False) for seen in fleet.current if seen.life is Life.PENDING
    ]
    useless = [seen for seen in (*fleet.old, *fleet.surplus) if seen.life is not Life.READY]
    spare = max(0, fleet.ready + len(fleet.spare_ready) - wanted.replicas)
    actions += [Retire(seen.name) for seen in (*useless, *fleet.spare_ready[:spare])]

    failures = 0 if _stable(fleet, world.now) else world.failures
    retry_at = _retry_at(wanted, world, failures)
    missing = [ordinal for ordinal in range(wanted.replicas) if ordinal not in {seen.ordinal for seen in fleet.current}]
    starts: list[Start] = []
    short_of_room = False
    if missing and world.now >= retry_at:
        starts, short_of_room = _starts(wanted, world, fleet, missing)
        actions += starts
    if short_of_room:
        actions += _make_room(wanted, world, fleet)
    return _named(wanted, world, fleet, actions, starts, failures, retry_at, short_of_room)


def _stable(fleet: _Fleet, now: float) -> bool:
    return any(seen.ready_since is not None and now - seen.ready_since >= STABLE_SECONDS for seen in fleet.current)


def _retry_at(wanted: Wanted, world: World, failures: int) -> float:
    last = world.last_failure
    if last is None or failures == 0:
        return world.now
    if last.reason in wanted.permanent:
        return last.at + CRASH_LOOP_RETRY
    return last.at + back_off(failures)


def _starts(wanted: Wanted, world: World, fleet: _Fleet, missing: Sequence[int]) -> tuple[list[Start], bool]:
    """New replicas as far as bounds and memory allow, and whether memory was what stopped it."""
    replacing = bool(fleet.old or fleet.leaving or fleet.surplus)
    free_places = wanted.replicas + (SURGE if replacing else 0) - fleet.alive
    room = world.room
    starts: list[Start] = []
    for ordinal in missing[: max(0, free_places)]:
        if room < wanted.memory:
            return starts, True
        room -= wanted.memory
        attempt = world.attempts.get(ordinal, 0) + 1
        starts.append(
            Start(replica_name(wanted.deployment_id, wanted.revision, ordinal, attempt), wanted.revision, ordinal, True)
        )
    return starts, False


def _make_room(wanted: Wanted, world: World, fleet: _Fleet) -> list[Action]:
    """Without room for old and new side by side the old goes first, one at a time, and only if that helps."""
    ready_old = [seen for seen in fleet.old if seen.life is Life.READY]
    if fleet.leaving or not ready_old or world.room + ready_old[0].memory < wanted.memory:
        return []
    return [Retire(ready_old[0].name)]


def _named(
    wanted: Wanted,
    world: World,
    fleet: _Fleet,
    actions: Sequence[Action],
    starts: Sequence[Start],
    failures: int,
    retry_at: float,
    short_of_room: bool,
) -> Decision:
    """The state that people see, with its reason."""
    on_the_way = bool(starts) or any(seen.life in (Life.PENDING, Life.STARTING) for seen in fleet.current)
    serving_old = bool(fleet.spare_ready)
    waiting = len(fleet.current) + len(starts) < wanted.replicas and retry_at > world.now
    soon = world.now + _SOON

    def decided(state: State, reason: str, message: str, check_at: float) -> Decision:
        busy = bool(fleet.leaving) or any(isinstance(action, Retire) for action in actions)
        return Decision(
            tuple(actions), state, reason, message[:400], soon if busy or on_the_way else check_at, failures
        )

    if fleet.ready >= wanted.replicas:
        if fleet.old or any(seen.drain for seen in fleet.leaving):
            return decided(State.READY, "", "", soon)
        due = _sleep_due(wanted, world)
        return decided(State.READY, "", "", world.now + _IDLE if due is None else min(due, world.now + _IDLE))
    if waiting and world.last_failure is not None:
        return _after_failure(wanted, world, fleet, decided, failures, retry_at)
    if short_of_room:
        return _without_room(wanted, world, fleet, decided)
    if serving_old:
        return decided(State.UPDATING, "", "", soon)
    if fleet.ready:
        message = f"{fleet.ready} of {wanted.replicas} replicas answer; the others are starting."
        return decided(State.DEGRADED, "replicas_starting", message, soon)
    if on_the_way:
        waking = world.state == State.ASLEEP or world.reason == WAKING
        return decided(State.STARTING, WAKING if waking else "", "", soon)
    return decided(State.STARTING, "waiting_for_end", "The replicas before it are still ending.", soon)


def _after_failure(
    wanted: Wanted, world: World, fleet: _Fleet, decided: _Decided, failures: int, retry_at: float
) -> Decision:
    last = world.last_failure or Failure(world.now, "", "")
    given_up = failures >= CRASH_LOOP_AFTER or last.reason in wanted.permanent
    starting = any(seen.life in (Life.PENDING, Life.STARTING) for seen in fleet.current)
    check_at = min(retry_at, world.now + _IDLE)
    if fleet.ready or fleet.spare_ready:
        if given_up and not fleet.ready:
            message = f"The new revision does not start, so the one before it goes on serving. {last.message}"
            return decided(State.DEGRADED, "update_failed", message, check_at)
        return decided(State.DEGRADED, last.reason or "replica_failed", last.message, check_at)
    if given_up and not starting:
        reason = last.reason if last.reason in wanted.permanent else "crash_loop"
        message = f"It failed {failures} times in a row, so it is left alone for a while. {last.message}"
        return decided(State.FAILED, reason, last.message if reason == last.reason else message, check_at)
    return decided(State.STARTING, "backing_off", f"It failed and is tried again shortly. {last.message}", check_at)


def _without_room(wanted: Wanted, world: World, fleet: _Fleet, decided: _Decided) -> Decision:
    needed, room = wanted.memory >> 20, max(0, world.room) >> 20
    if fleet.spare_ready:
        message = f"There is no room to run old and new side by side ({needed} MiB needed, {room} MiB free): the old stops first."
        return decided(State.UPDATING, "no_room_side_by_side", message, world.now + _SOON)
    message = (
        f"A replica needs {needed} MiB and {room} MiB are free. It starts by itself when another deployment makes room."
    )
    if fleet.ready:
        return decided(State.DEGRADED, "no_capacity", message, world.now + _NO_ROOM)
    return decided(State.QUEUED, "no_capacity", message, world.now + _NO_ROOM)
