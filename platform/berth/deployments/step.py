"""The decision of the reconciler: what is wanted and what there is → what to do now, and what to call the situation.

Pure: the same world gives the same decision. Names of replicas are deterministic, so a decision that is carried out twice,
by two workers or after a crash, does what it does once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from berth.deployments.decision import (
    CRASH_LOOP_RETRY,
    DRAIN_SECONDS,
    NEVER,
    SOON,
    SURGE,
    Action,
    Decision,
    Retire,
    Start,
    Stop,
    back_off,
    replica_name,
)
from berth.deployments.fleet import Fleet, sort_fleet
from berth.deployments.naming import Situation, name_it
from berth.deployments.states import State
from berth.deployments.world import STABLE_SECONDS, Failure, Life, Seen, Want, Wanted, World


def step(wanted: Wanted, world: World) -> Decision:
    """What to do now. Everything that follows from it is seen at the next look."""
    stops: list[Action] = [Stop(name, 0) for name in world.merged.orphans]
    stops += [_end(seen) for seen in world.merged.seen if _may_end(seen, world.now)]
    if wanted.desired is not Want.RUNNING:
        return _going_down(wanted, world, stops)
    if _may_sleep(wanted, world):
        return _asleep(world, stops)
    return _running(wanted, world, stops)


def _may_end(seen: Seen, now: float) -> bool:
    return seen.life is Life.LEAVING and (seen.stop_at is None or now >= seen.stop_at)


def _end(seen: Seen) -> Stop:
    return Stop(seen.name, DRAIN_SECONDS if seen.drain else 0)


def _may_sleep(wanted: Wanted, world: World) -> bool:
    if wanted.replicas == 0:
        return True
    due = sleep_due(wanted, world)
    return wanted.sleep_after is not None and (world.sleeping or (due is not None and world.now >= due))


def sleep_due(wanted: Wanted, world: World) -> float | None:
    """When it may sleep if no request comes: the clock starts when all replicas are ready, and anew with each request. None: not as
    long as something is on its way."""
    fleet = sort_fleet(wanted, world.merged.seen)
    if wanted.sleep_after is None or wanted.base is not None or fleet.ready < wanted.replicas or fleet.old:
        return None
    since = max(seen.ready_since or world.now for seen in fleet.current)
    return max(since, world.last_request_at or 0.0, world.woken_at or 0.0) + wanted.sleep_after


def _asleep(world: World, stops: list[Action]) -> Decision:
    """No replica is kept. What runs is finished first, as whenever a replica is retired."""
    check_at = world.now + (SOON if world.merged.seen else NEVER)
    return Decision((*stops, *_retire_all(world)), State.ASLEEP, "", "", check_at, 0)


def _going_down(wanted: Wanted, world: World, stops: list[Action]) -> Decision:
    if world.merged.seen:
        return Decision((*stops, *_retire_all(world)), State.STOPPING, "", "", world.now + SOON, 0)
    if wanted.desired is Want.DELETED:
        return Decision(tuple(stops), State.DELETED, "", "", world.now + NEVER, 0)
    return Decision(tuple(stops), State.PAUSED, "", "", world.now + NEVER, 0)


def _retire_all(world: World) -> list[Action]:
    return [Retire(seen.name) for seen in world.merged.seen if seen.life is not Life.LEAVING]


def _running(full: Wanted, world: World, actions: list[Action]) -> Decision:
    wanted = _as_allowed(full)
    fleet = sort_fleet(wanted, world.merged.seen)
    actions += [Stop(seen.name, 0) for seen in fleet.leaving if seen.stuck]
    actions += [
        Start(seen.name, seen.revision, seen.ordinal, new=False)
        for seen in (*fleet.base, *fleet.current)
        if seen.life is Life.PENDING
    ]
    spare = max(0, fleet.serving - wanted.replicas)
    actions += [Retire(seen.name) for seen in (*fleet.useless, *fleet.spare_ready[:spare])]

    failures = 0 if _stable(fleet, world.now) else world.failures
    retry_at = _retry_at(wanted, world, failures)
    found = _starts(wanted, world, fleet, retry_at)
    actions += found.starts
    if found.short:
        actions += _make_room(wanted, world, fleet)
    situation = Situation(
        wanted=wanted,
        full=full.replicas,
        world=world,
        fleet=fleet,
        actions=tuple(actions),
        starts=len(found.starts),
        failures=failures,
        retry_at=retry_at,
        short=found.short,
        sleep_due=sleep_due(wanted, world),
    )
    return name_it(situation)


def _as_allowed(wanted: Wanted) -> Wanted:
    if wanted.allowed is None or wanted.allowed >= wanted.replicas or wanted.base is not None:
        return wanted
    return msgspec.structs.replace(wanted, replicas=max(0, wanted.allowed))


def _stable(fleet: Fleet, now: float) -> bool:
    return any(seen.ready_since is not None and now - seen.ready_since >= STABLE_SECONDS for seen in fleet.current)


def _retry_at(wanted: Wanted, world: World, failures: int) -> float:
    return _again_at(wanted, world, world.last_failure, failures)


def _again_at(wanted: Wanted, world: World, last: Failure | None, failures: int) -> float:
    if last is None or failures == 0:
        return world.now
    if last.reason in wanted.permanent:
        return last.at + CRASH_LOOP_RETRY
    return last.at + back_off(failures)


class _Starts(msgspec.Struct):
    """New replicas as far as bounds, quota and memory allow, and whether one of the latter two was what stopped it."""

    free: int  # places within the bounds
    room: int  # bytes
    places: int | None
    starts: list[Start]
    short: bool = False

    def add(
        self, deployment: str, revision: int, missing: Sequence[int], attempts: Mapping[int, int], memory: int
    ) -> None:
        for ordinal in missing:
            if self.free <= 0 or self.short:
                return
            if self.room < memory or self.places == 0:
                self.short = True
                return
            self.free, self.room = self.free - 1, self.room - memory
            self.places = None if self.places is None else self.places - 1
            name = replica_name(deployment, revision, ordinal, attempts.get(ordinal, 0) + 1)
            self.starts.append(Start(name, revision, ordinal, True))


def _starts(wanted: Wanted, world: World, fleet: Fleet, retry_at: float) -> _Starts:
    base = wanted.base
    replacing = bool(base or fleet.old or fleet.leaving or fleet.surplus)
    free = wanted.replicas + (SURGE if replacing else 0) - fleet.alive
    found = _Starts(free, world.room, world.places, [])
    if base is not None and world.now >= _again_at(wanted, world, world.base_last_failure, world.base_failures):
        missing = _missing(fleet.base, base.replicas)
        found.add(wanted.deployment_id, base.revision, missing, world.base_attempts, base.memory)
    if world.now >= retry_at:
        missing = _missing(fleet.current, wanted.new)
        found.add(wanted.deployment_id, wanted.revision, missing, world.attempts, wanted.memory)
    return found


def _missing(placed: Sequence[Seen], count: int) -> list[int]:
    there = {seen.ordinal for seen in placed}
    return [ordinal for ordinal in range(count) if ordinal not in there]


def _make_room(wanted: Wanted, world: World, fleet: Fleet) -> list[Action]:
    """Without room for old and new side by side the old goes first, one at a time, and only if that helps. While two revisions are
    compared, nothing that serves is given up for it."""
    ready_old = [
        seen for seen in fleet.old if seen.life is Life.READY and (world.worth is None or seen.name in world.worth)
    ]
    if wanted.base is not None or fleet.leaving or not ready_old:
        return []
    if world.room + ready_old[0].memory < wanted.memory:
        return []
    return [Retire(ready_old[0].name)]
