"""What a running deployment's situation is called: the state that people see, with its reason. Pure."""

from __future__ import annotations

import msgspec

from berth.deployments.decision import (
    CRASH_LOOP_AFTER,
    IDLE,
    JUDGE,
    NO_ROOM,
    REST,
    SOON,
    WAKING,
    Action,
    Decision,
    Retire,
)
from berth.deployments.fleet import Fleet
from berth.deployments.states import State
from berth.deployments.world import Failure, Wanted, World


class Situation(msgspec.Struct, frozen=True):
    wanted: Wanted  # with the replicas that are allowed
    full: int  # replicas that the owner wants
    world: World
    fleet: Fleet
    actions: tuple[Action, ...]
    starts: int  # new ones
    failures: int
    retry_at: float
    short: bool  # of room, or of what a quota allows
    sleep_due: float | None

    @property
    def starting(self) -> bool:
        return self.starts > 0 or self.fleet.on_the_way

    @property
    def makes_place(self) -> bool:
        """Whether an old one goes so that a new one can come."""
        return bool(self.fleet.leaving) or any(isinstance(action, Retire) for action in self.actions)

    def decided(self, state: State, reason: str, message: str, check_in: float, *, waiting: bool = False) -> Decision:
        check_at = self.world.now + (min(SOON, check_in) if self.makes_place or self.starting else check_in)
        return Decision(self.actions, state, reason, message[:400], check_at, self.failures, waiting)


def name_it(it: Situation) -> Decision:
    wanted, fleet, world = it.wanted, it.fleet, it.world
    if wanted.replicas < it.full:
        return _preempted(it)
    if fleet.ready >= wanted.new and (wanted.base is None or fleet.serving >= wanted.replicas):
        return _all_there(it)
    missing = len(fleet.current) + it.starts < wanted.new
    if missing and it.retry_at > world.now and world.last_failure is not None:
        return _after_failure(it, world.last_failure)
    if it.short:
        return _without_room(it)
    if fleet.spare_ready or (wanted.base is not None and fleet.serving):
        return it.decided(State.UPDATING, wanted.comparing, "", SOON)
    if fleet.ready:
        message = f"{fleet.ready} of {wanted.replicas} replicas answer; the others are starting."
        return it.decided(State.DEGRADED, "replicas_starting", message, SOON)
    if it.starting:
        waking = world.state == State.ASLEEP or world.reason == WAKING
        return it.decided(State.STARTING, WAKING if waking else "", "", SOON)
    return it.decided(State.STARTING, "waiting_for_end", "The replicas before it are still ending.", SOON)


def _all_there(it: Situation) -> Decision:
    if it.wanted.base is not None:
        return it.decided(State.UPDATING, it.wanted.comparing, "", JUDGE)
    if it.fleet.old or any(seen.drain for seen in it.fleet.leaving):
        return it.decided(State.READY, "", "", SOON)
    due = it.sleep_due
    return it.decided(State.READY, "", "", REST if due is None else min(due - it.world.now, REST))


def _preempted(it: Situation) -> Decision:
    message = (
        f"Deployments of higher priority need the room, so {it.wanted.replicas} of {it.full} replicas may run. "
        "The others start by themselves when there is room again."
    )
    state = State.DEGRADED if it.fleet.ready or it.fleet.spare_ready else State.QUEUED
    return it.decided(state, "preempted", message, NO_ROOM)


def _after_failure(it: Situation, last: Failure) -> Decision:
    wanted, fleet, world = it.wanted, it.fleet, it.world
    given_up = it.failures >= CRASH_LOOP_AFTER or last.reason in wanted.permanent
    check_in = min(it.retry_at - world.now, IDLE)
    if fleet.serving:
        if given_up and not fleet.ready:
            message = f"The new revision does not start, so the one before it goes on serving. {last.message}"
            return it.decided(State.DEGRADED, "update_failed", message, check_in)
        return it.decided(State.DEGRADED, last.reason or "replica_failed", last.message, check_in)
    if given_up and not fleet.on_the_way:
        reason = last.reason if last.reason in wanted.permanent else "crash_loop"
        message = f"It failed {it.failures} times in a row, so it is left alone for a while. {last.message}"
        return it.decided(State.FAILED, reason, last.message if reason == last.reason else message, check_in)
    return it.decided(State.STARTING, "backing_off", f"It failed and is tried again shortly. {last.message}", check_in)


def _without_room(it: Situation) -> Decision:
    wanted, fleet, world = it.wanted, it.fleet, it.world
    needed, room = wanted.memory >> 20, max(0, world.room) >> 20
    if fleet.spare_ready and it.makes_place and world.places == 0:
        message = "A quota or the number of devices leaves no place for old and new side by side: the old stops first."
        return it.decided(State.UPDATING, "no_room_side_by_side", message, SOON)
    if fleet.spare_ready and it.makes_place:
        message = f"There is no room to run old and new side by side ({needed} MiB needed, {room} MiB free): the old stops first."
        return it.decided(State.UPDATING, "no_room_side_by_side", message, SOON)
    if wanted.base is not None and fleet.serving:
        message = f"There is no room for the new revision beside the old one ({needed} MiB needed, {room} MiB free)."
        return it.decided(State.UPDATING, "no_room_side_by_side", message, NO_ROOM, waiting=True)
    reason = "no_capacity"
    if world.places == 0 and world.places_reason == "over_quota":
        reason = "over_quota"
        message = (
            "The organisation's quota is used up. It starts by itself when another deployment gives something back."
        )
    elif world.places == 0 and world.places_reason == "region_not_allowed":
        reason = "region_not_allowed"
        message = (
            "Its hardware is in no region that the organisation allows any more. Deploy it anew, or allow the region."
        )
    elif world.places == 0:
        message = "All devices of this tier are in use. It starts by itself when another deployment gives one back."
    else:
        message = f"A replica needs {needed} MiB and {room} MiB are free. It starts by itself when another deployment makes room."
    state = State.DEGRADED if fleet.serving else State.QUEUED
    if fleet.spare_ready:  # nothing of the old is given up for it, because that would not bring the place
        state, message = State.UPDATING, f"The revision before it goes on serving. {message}"
    return it.decided(state, reason, f"{message}{_place(world)}", NO_ROOM, waiting=True)


def _place(world: World) -> str:
    queue = world.queue
    if queue is None:
        return ""
    usual = "" if queue.usual_seconds is None else f"; waiting usually took {_minutes(queue.usual_seconds)}"
    return f" It is number {queue.position} of {queue.length} in the queue{usual}."


def _minutes(seconds: float) -> str:
    return f"{round(seconds)} s" if seconds < 90 else f"{round(seconds / 60)} min"
