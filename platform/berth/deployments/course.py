"""Carrying a rollout on within a look of the reconciler: evidence, verdict, and what it changes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from berth.deployments.decision import SURGE
from berth.deployments.evidence import BEFORE, evidence
from berth.deployments.fleet import sort_fleet
from berth.deployments.history import record
from berth.deployments.models import Deployment, Replica, Rollout
from berth.deployments.models import Status as Row
from berth.deployments.rollout import (
    Course,
    Evidence,
    Margins,
    Next,
    Status,
    Strategy,
    Verdict,
    canary_replicas,
    is_full,
    judge,
)
from berth.deployments.rollouts import end, go_back, numbers_alike
from berth.deployments.world import Wanted, World


class Beside(msgspec.Struct, frozen=True):
    """How many replicas of the base and of the new revision run side by side, and why."""

    base: int
    new: int
    shadow: bool
    why: str


class Compared(msgspec.Struct, frozen=True):
    old: Evidence
    new: Evidence


def beside_base(rollout: Rollout | None, replicas: int) -> Beside | None:
    """None: the new revision takes over whole. Never more than one replica above the wanted number in all."""
    if rollout is None or rollout.base is None or replicas == 0 or rollout.status == Row.WATCHING:
        return None
    full = is_full(rollout.strategy, tuple(rollout.steps), rollout.step)
    if not full and rollout.strategy == Strategy.SHADOW:
        return Beside(replicas, SURGE, True, "shadow")
    if not full:
        new = canary_replicas(replicas, rollout.steps[rollout.step])
        held = rollout.status == Row.PAUSED
        return Beside(min(replicas, replicas + SURGE - new), new, False, "rollout_paused" if held else "canary")
    if rollout.status == Row.PAUSED:
        new = min(replicas, rollout.paused_at_new)
        return Beside(min(replicas, replicas + SURGE - new), new, False, "rollout_paused")
    return None


def compare(deployment: Deployment, rollout: Rollout | None) -> Compared | None:
    """What old and new revision were measured to do. Read before the look's transaction."""
    if rollout is None or rollout.base is None:
        return None
    since = rollout.created_at
    fresh = rollout.step_since if rollout.strategy == Strategy.CANARY and rollout.step_since else since
    return Compared(
        old=evidence(deployment, numbers_alike(deployment, rollout.base), since - BEFORE),
        new=evidence(deployment, numbers_alike(deployment, rollout.revision), fresh),
    )


def move(
    row: Deployment, rollout: Rollout, wanted: Wanted, world: World, compared: Compared | None, now: datetime
) -> bool:
    """Judges the rollout and writes down what follows. Whether what is wanted has changed by it."""
    found = compared or Compared(Evidence(), Evidence())
    _write_measured(rollout, compared)
    verdict = judge(_course(rollout, wanted, world, found), now.timestamp())
    if verdict.next is Next.ROLL_BACK and rollout.base is not None:
        go_back(row, rollout, rollout.base, None, verdict.reason, verdict.message, now)
        told: dict[str, Any] = {"number": rollout.base.number, "from": rollout.revision.number}
        record(row, "rolled_back", now, **told, reason=verdict.reason, message=verdict.message)
        return True
    return _go_on(row, rollout, verdict, now)


def _go_on(row: Deployment, rollout: Rollout, verdict: Verdict, now: datetime) -> bool:
    match verdict.next:
        case Next.BEGIN:
            rollout.step_since = now
        case Next.PROMOTE:
            rollout.step, rollout.step_since = rollout.step + 1, None
            told: dict[str, Any] = {"number": rollout.revision.number, "step": rollout.step}
            record(row, "rollout_promoted", now, **told)
        case Next.WATCH:
            rollout.status, rollout.step_since = Row.WATCHING, now
        case Next.COMPLETE:
            return _complete(row, rollout, now)
        case _:
            if (rollout.reason, rollout.message) == (verdict.reason, verdict.message):
                return False
    rollout.reason, rollout.message = verdict.reason, verdict.message
    rollout.save(update_fields=["step", "step_since", "status", "reason", "message"])
    return verdict.next is Next.PROMOTE


def _complete(row: Deployment, rollout: Rollout, now: datetime) -> bool:
    end(rollout, Row.COMPLETED, "", "", now)
    row.stable = rollout.revision
    row.save(update_fields=["stable"])
    record(row, "rollout_completed", now, number=rollout.revision.number)
    return False


def traffic_of(row: Deployment, rollout: Rollout | None, wanted: Wanted, living: Sequence[Replica]) -> dict[str, Any]:
    """How requests are to be split now (traffic.py)."""
    if rollout is not None and wanted.base is not None:
        new = sorted(wanted.same)
        if wanted.shadow:
            return {"new": new, "shadow": rollout.shadow_percent}
        if not is_full(rollout.strategy, tuple(rollout.steps), rollout.step):
            return {"new": new, "weight": rollout.steps[rollout.step]}
        return {}
    left: dict[str, Any] = row.traffic if row.traffic.get("weight") == 0 else {}
    # What was rolled back gets nothing for as long as it is there.
    return left if any(each.revision.number in left.get("new", ()) for each in living) else {}


def _course(rollout: Rollout, wanted: Wanted, world: World, compared: Compared) -> Course:
    fleet = sort_fleet(wanted, world.merged.seen)
    return Course(
        strategy=Strategy(rollout.strategy),
        status=Status(rollout.status),
        has_base=rollout.base is not None,
        automatic=rollout.automatic,
        steps=tuple(rollout.steps),
        step=rollout.step,
        step_since=rollout.step_since.timestamp() if rollout.step_since else None,
        hold_seconds=rollout.hold_seconds,
        margins=msgspec.convert(rollout.margins, Margins),
        new_ready=fleet.ready,
        new_wanted=wanted.new,
        old_alive=len(fleet.old) + len(fleet.base),
        failures=world.failures,
        last_failure=world.last_failure,
        old=compared.old,
        new=compared.new,
    )


def _write_measured(rollout: Rollout, compared: Compared | None) -> None:
    measured: dict[str, Any] = {} if compared is None else msgspec.to_builtins(compared)
    if rollout.measured != measured:
        rollout.measured = measured
        rollout.save(update_fields=["measured"])
