"""From load and memory to a number of replicas. Pure."""

from __future__ import annotations

from math import ceil, floor
from typing import Final

import msgspec

from berth.deployments.scaling.backlog import Backlog, foresee
from berth.deployments.scaling.calendar import declared
from berth.deployments.scaling.decision import Decision, Reason
from berth.deployments.scaling.forecast import Outlook, outlook
from berth.deployments.scaling.headroom import best_count
from berth.deployments.scaling.holding import LEARNING, calm_level, held, kept_up, level, regret
from berth.deployments.scaling.measured import Rate, rate_of
from berth.deployments.scaling.observation import Observation
from berth.deployments.scaling.state import Coming, State

BAND: Final = 0.06  # a replica goes only if the others could do so much more than is needed
WIDE: Final = 0.25
EASE: Final = 0.02  # of a replica that may be missing before another one is asked for
# Seconds in which a backlog is to be gone once the replicas for it are ready; less, the later a backlog is noticed.
DRAIN, BACK, HURRY = 10.0, 13.0, 3.0
MOST_SURGE: Final = 4.0  # times what the rate alone needs
JUMP: Final = 1.1  # times what is prepared for: more that comes suddenly does not wait for the forecast
SURPASS: Final = 1.15  # times what is held ready for bursts: only more is a jump
BEYOND: Final = 1.1  # times the highest rate that was seen lately, no head-room is bought
STUCK, STUCK_AFTER = 0.8, 15.0  # of what replicas could do; seconds
BRIEFLY: Final = 1.5  # times what the rate needs, where bursts are over before a replica is ready
RELAX: Final = 1.3  # times what the highest rate takes: what is more was there for a backlog
FEW: Final = 2  # replicas: one more costs little beside a minute without it
WITHIN: Final = 2.0  # times the planned concurrency may be within a replica at once; more waits at the gateway


class Load(msgspec.Struct, frozen=True):
    """What a decision rests on."""

    outlook: Outlook
    rate: Rate | None
    backlog: Backlog
    waiting: float  # requests, at the gateway and behind others within engines
    concurrency: int | None


def decide(observation: Observation, state: State) -> tuple[Decision, State]:
    load, state = _load(observation, state)
    state = held(observation, state, load.outlook)
    need, wanted, keep, reasons = _wanted(observation, state, load)
    current = state.desired
    if load.rate is not None:
        calm = count_for(observation, state, load.rate, calm_level(state))
        most = max(observation.policy.least, observation.policy.most)
        if min(calm, most) > current:  # a step up; what is more than may be had would keep itself up for ever
            state = kept_up(observation, state)
    desired = max(wanted, min(current, keep))
    if desired > wanted:
        reasons.insert(0, _held(desired, wanted))
    desired = _bounded(observation, state, desired, reasons)
    state = regret(observation, state, current, desired)
    coming = state.coming
    if desired > observation.ready + observation.starting:
        more = desired - observation.ready - observation.starting
        coming = (*coming, Coming(observation.now + observation.cold_start, more))
    decision = Decision(
        desired=desired,
        reasons=tuple(reasons),
        concurrency=load.concurrency,
        need=need,
        forecast=level(state),
        rate=load.outlook.rate,
        capacity=None if load.rate is None else load.rate.alone,
        head_room=_room(load.rate, desired, level(state)),
    )
    return decision, msgspec.structs.replace(state, desired=desired, coming=coming, foreseen=load.outlook.expected)


def count_for(observation: Observation, state: State, rate: Rate, expected: float) -> int:
    """Replicas for so much work a second, with the head-room that the owner asks for or that is worth its price."""
    policy = observation.policy
    limit = max(1, policy.least, policy.most)
    if policy.head_room is not None:
        return ceil(rate.replicas(expected * policy.head_room) - EASE)
    # Nothing is bought for what is much more than has ever been seen.
    most = min(policy.most_head_room, BEYOND * max(expected, state.bursts.highest) / expected if expected > 0 else 1.0)
    return best_count(state.surprises, rate, expected, 1.0 - policy.goals.share, max(1.0, most), limit)


def _room(rate: Rate | None, count: int, prepared: float) -> float:
    """What so many can do, times what is prepared for."""
    return rate.work(count) / prepared if rate is not None and prepared > 0 and count > 0 else 1.0


def calmly_able(observation: Observation, state: State) -> tuple[float, float]:
    """Work a second at which many requests begin to be late, with the replicas that the forecast and the owner ask for: with what is
    kept after peaks, and without it. 0: not known."""
    rate, policy = rate_for(observation, state), observation.policy
    if rate is None:
        return 0.0, 0.0
    replicas, announced = declared(policy.peaks, observation.now + observation.cold_start, 0.0)
    most = max(policy.least, policy.most, 1)

    def able(expected: float) -> float:
        count = max(count_for(observation, state, rate, max(expected, announced)), replicas, policy.least, 1)
        return rate.edge(min(count, most))

    return able(calm_level(state)), able(state.foreseen)


def rate_for(observation: Observation, state: State) -> Rate | None:
    return rate_of(observation.capacity, state.corrected.factor, residence(state), state.corrected.seen)


def residence(state: State) -> float | None:
    """Seconds that a request spends in a replica, by Little's law: as learned, else over the last minute."""
    return state.stay if state.stay is not None else little(state)


def little(state: State) -> float | None:
    rate = state.history.rate(60.0)
    if rate <= 0 or state.mix.in_flight <= 0:
        return None
    return state.mix.in_flight / rate


def _load(observation: Observation, state: State) -> tuple[Load, State]:
    policy = observation.policy
    growth = state.pattern.growth(observation.now, observation.cold_start) if policy.daily else 1.0
    found = outlook(
        state.history, observation.cold_start, growth, state.dispersion, calm_level(state) * JUMP, state.desired <= FEW
    )
    rate = rate_for(observation, state)
    limit = _concurrency(observation, rate, state)
    backlog = Backlog(0.0, 0.0)
    inside, state = _inside(observation, state, rate, limit)
    waiting = observation.held + inside
    if rate is not None:
        starts = [(each.at - observation.now, each.count) for each in state.coming]
        backlog = foresee(waiting, found.lately, observation.ready, rate.full, starts, observation.cold_start)
    return Load(found, rate, backlog, waiting, limit), state


def _inside(observation: Observation, state: State, rate: Rate | None, limit: int | None) -> tuple[float, State]:
    """Requests that wait within engines and that other replicas could take. Where more replicas are ready
    than when it began, and could do more than they do, those are stuck in some of them, and more replicas are no help."""
    inside = observation.engine_queue or 0.0
    if limit:
        inside = max(0.0, observation.flying - observation.ready * limit)
    flooded = (
        None if inside <= 0 else observation.ready if state.flooded is None else min(state.flooded, observation.ready)
    )
    state = msgspec.structs.replace(state, flooded=flooded)
    could = rate.full * observation.ready if rate is not None else 0.0
    new = flooded is not None and observation.ready > flooded
    if not new or observation.held > 0 or state.done is None or state.done >= STUCK * could:
        return inside, msgspec.structs.replace(state, stuck_since=None)
    since = observation.now if state.stuck_since is None else state.stuck_since
    state = msgspec.structs.replace(state, stuck_since=since)
    return (inside if observation.now - since < STUCK_AFTER else 0.0), state


def _concurrency(observation: Observation, rate: Rate | None, state: State) -> int | None:
    """Requests within a replica at once: enough that it is never idle, few enough that the last one does not wait too long."""
    planned = observation.capacity.concurrency
    if planned is None:
        return None
    limit = WITHIN * planned
    if rate is not None:
        slack = observation.policy.goals.most_wait_seconds - observation.cold_start
        limit = min(limit, max(planned, rate.full * max(slack, 10.0)))
    return max(1, ceil(limit))


def _wanted(observation: Observation, state: State, load: Load) -> tuple[float, int, int, list[Reason]]:
    """What the rate needs, how many are asked for, and how many are kept whatever was before."""
    found, rate = load.outlook, load.rate
    if rate is None:
        return _without_capacity(observation, state)
    bursts, prepared = state.held_ready, calm_level(state)
    jump = level(state) if level(state) > max(prepared, bursts * SURPASS) else 0.0
    need = rate.replicas(max(found.expected, found.jump))
    count = max(count_for(observation, state, rate, prepared), ceil(rate.replicas(jump) - EASE))
    # Few replicas are kept by rounding; many by a band, so that small waves do not move them.
    keep = max(
        count_for(observation, state, rate, prepared * (1.0 + BAND)),
        floor(rate.replicas(prepared * (1.0 + WIDE))),
    )
    if state.begun is not None and observation.now - state.begun < LEARNING * observation.policy.stabilisation:
        # Nothing is known yet that would say otherwise, but that a backlog is gone. Gone it is only when it is answered: what waited at
        # the first call was counted by nobody as it came, and is in no rate when replicas have taken it in.
        known = max(state.initial, ceil(rate.replicas(RELAX * state.bursts.highest)), _taken(observation))
        keep = max(keep, min(state.desired, known))
    reasons = [_by_rate(max(prepared, jump), need, count)]
    if found.jump and jump >= found.jump:
        reasons.insert(0, _by_jump(found.jump, count))
    drained_in = min(DRAIN, max(HURRY, BACK - state.history.gap))
    now_rate = max(found.lately, found.rate)
    if load.backlog.peak > rate.full:
        surge = BRIEFLY if state.bursts.brief(observation.cold_start) else MOST_SURGE
        most = surge * max(1.0, rate.replicas(max(prepared, jump, now_rate)))
        drain = min(most, (load.backlog.left / drained_in + now_rate) / rate.full)
        keep = max(keep, ceil(min(most, (load.backlog.peak / drained_in + now_rate) / rate.full) - EASE))
        if load.waiting > rate.full:
            keep = max(keep, state.desired)  # until what waits is worked off
        if load.backlog.left > rate.full and ceil(drain - EASE) > count:
            count = ceil(drain - EASE)
            reasons.insert(0, _by_backlog(load.backlog.left, count))
    held_ready = ceil(rate.replicas(bursts) - EASE)
    keep = max(keep, held_ready)
    if held_ready > count:
        count = held_ready
        reasons.insert(0, _by_bursts(bursts, count))
    return _with_floors(observation, rate, need, count, keep, reasons)


def _taken(observation: Observation) -> int:
    """Replicas that what is in flight fills as planned. 0: not known."""
    planned = observation.capacity.concurrency
    return ceil(observation.flying / planned) if planned else 0


def _with_floors(
    observation: Observation,
    rate: Rate | None,
    need: float,
    count: int,
    keep: int,
    reasons: list[Reason],
) -> tuple[float, int, int, list[Reason]]:
    replicas, announced = declared(observation.policy.peaks, observation.now, 1.1 * observation.cold_start + 10.0)
    floor = max(replicas, ceil(rate.replicas(announced) - EASE) if rate is not None else 0)
    if floor > count:
        count = floor
        reasons.insert(0, Reason("peak", f"A declared peak asks for {floor}.", {"replicas": floor}))
    return need, count, keep, reasons


def _without_capacity(observation: Observation, state: State) -> tuple[float, int, int, list[Reason]]:
    """Nobody knows yet what a replica can do: more only while requests wait, fewer never."""
    waiting = observation.held + (observation.engine_queue or 0.0)
    planned = observation.capacity.concurrency
    busy = observation.flying + observation.held
    count = ceil(busy / planned) if planned else state.desired + (1 if waiting > 0 and not observation.starting else 0)
    count = max(count, 1 if busy else 0)
    text = "What a replica can do is not known yet."
    reasons = [Reason("unknown_capacity", text, {"waiting": waiting})]
    return _with_floors(observation, None, float(count), count, state.desired, reasons)


def _bounded(observation: Observation, state: State, desired: int, reasons: list[Reason]) -> int:
    policy = observation.policy
    least, most = max(0, policy.least), max(0, policy.least, policy.most)
    if least == 0:
        declared_now = bool(reasons) and reasons[0].code == "peak"
        if _may_sleep(observation, state) and not declared_now:
            desired = 0
        elif desired == 0:
            desired = 1
    if least == 0 and desired == 0:
        reasons.insert(0, Reason("asleep", "Nobody asks for it.", {}))
    if desired < least:
        reasons.insert(0, Reason("least", f"At least {least} are kept.", {"replicas": least}))
    if desired > most:
        reasons.insert(
            0, Reason("most", f"{desired} are needed, {most} are allowed.", {"needed": desired, "replicas": most})
        )
    return min(max(desired, least), most)


def _asked(observation: Observation, state: State) -> bool:
    return observation.flying > 0 or observation.held > 0 or state.active_at == observation.now


def _may_sleep(observation: Observation, state: State) -> bool:
    """Nobody has asked since it was ready, for long enough."""
    policy = observation.policy
    if _asked(observation, state):
        return False
    if state.desired == 0:
        return True
    if policy.sleep_after is None or state.ready_since is None or observation.starting:
        return False
    since = max(state.ready_since, state.active_at or state.ready_since)
    return observation.now - since >= policy.sleep_after


def _held(desired: int, wanted: int) -> Reason:
    return Reason(
        "held", f"{wanted} would do now; {desired} are kept until that has held for a while.", {"wanted": wanted}
    )


def _by_rate(prepared: float, need: float, count: int) -> Reason:
    text = f"{prepared:.2f} requests a second are to be prepared for: that takes {count}."
    return Reason("forecast", text, {"prepared": prepared, "need": need})


def _by_jump(jump: float, count: int) -> Reason:
    return Reason("jump", f"Suddenly there are {jump:.2f} requests a second: that takes {count}.", {"rate": jump})


def _by_bursts(held_ready: float, count: int) -> Reason:
    text = f"Bursts of {held_ready:.2f} requests a second came lately: {count} are held ready for the next one."
    return Reason("bursts", text, {"rate": held_ready})


def _by_backlog(left: float, count: int) -> Reason:
    return Reason("backlog", f"About {left:.0f} requests will wait: {count} work them off quickly.", {"waiting": left})
