"""The autoscaler against its references in the same world: fixed at peak, target concurrency, and somebody who knows the future."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import msgspec

from berth.deployments.scaling.decision import Decision
from berth.deployments.scaling.observation import Capacity
from berth.deployments.simulate.fleet import Fleet
from berth.deployments.simulate.measure import Measured, measure
from berth.deployments.simulate.references import Always, Clairvoyant, TargetConcurrency, needed, work_by_slot
from berth.deployments.simulate.routing import GatewayRouting
from berth.deployments.simulate.scalers import Autoscaler
from berth.deployments.simulate.setting import Run, Scaler, Setting
from berth.deployments.simulate.trace import Trace

SLOT = 5.0  # seconds: how finely the clairvoyant plans
_WINDOWS = (1, 3)  # slots around whose busiest one counts
_FRUGAL = (
    1.06,
    1.02,
    0.98,
    0.94,
    0.9,
    0.85,
    0.8,
    0.7,
)  # of what a replica is taken to do; the first that meets the goal
TARGET = 0.7  # of the planned concurrency, as is usually set


class Step(msgspec.Struct, frozen=True):
    """A scaling action of the autoscaler, with the reason that decided."""

    at: float
    before: int
    after: int
    why: str


class Comparison(msgspec.Struct, frozen=True):
    berth: Measured
    fixed: Measured
    hpa: Measured
    clairvoyant: Measured
    steps: tuple[Step, ...]
    capacity: Capacity  # as the autoscaler was told

    def ratio(self, one: Measured) -> float:
        """Replica-hours, times the clairvoyant's."""
        return one.replica_hours / self.clairvoyant.replica_hours if self.clairvoyant.replica_hours else 1.0


def run(setting: Setting, trace: Trace, scaler: Scaler) -> Run:
    return Fleet(setting, trace.requests(), scaler, GatewayRouting()).run()


def weights(capacity: Capacity) -> tuple[float, float]:
    """The work of a prompt token and of a reply token, where a request of the planned mix is 1."""
    prompt, output = capacity.prompt_tokens or 1.0, capacity.completion_tokens or 1.0
    return capacity.prompt_share / prompt, (1.0 - capacity.prompt_share) / output


def clairvoyant(setting: Setting, trace: Trace, window: int) -> tuple[Measured, int, int]:
    """The cheapest plan with this window that meets the goal: what it is worth, its first and its highest count."""
    work = work_by_slot(trace, SLOT, weights(setting.capacity))
    each = setting.capacity.pooled_requests_per_second or setting.capacity.requests_per_second or 1.0
    limit = _limit(setting)
    found = None
    for frugal in _FRUGAL:
        counts = needed(work, SLOT, each * frugal, window, max(1, setting.policy.least))
        scaler = Clairvoyant(counts, SLOT, setting.cold_start, limit, trace.at[0])
        world = msgspec.structs.replace(setting, initial=scaler.initial)
        made = measure("clairvoyant", run(world, trace, scaler), setting.policy.goals, setting.speed)
        found = (made, scaler.initial, max(counts))
        if made.share >= setting.policy.goals.share:
            break
    assert found is not None  # noqa: S101 (there is at least one)
    return found


def _limit(setting: Setting) -> int | None:
    return int(2.0 * setting.capacity.concurrency) if setting.capacity.concurrency else None


def fixed_at_peak(setting: Setting, trace: Trace, peak: int) -> Measured:
    world = msgspec.structs.replace(setting, initial=peak)
    return measure(
        "fixed at peak", run(world, trace, Always(peak, _limit(setting))), setting.policy.goals, setting.speed
    )


def hpa(setting: Setting, trace: Trace) -> Measured:
    scaler = TargetConcurrency(TARGET * (setting.capacity.concurrency or 1.0), _limit(setting))
    return measure("HPA", run(setting, trace, scaler), setting.policy.goals, setting.speed)


def berth(setting: Setting, trace: Trace, interval: float) -> tuple[Measured, tuple[Step, ...]]:
    steps: list[Step] = []
    last = [setting.initial]

    def heard(at: float, decision: Decision) -> None:
        if decision.desired != last[0]:
            steps.append(Step(at, last[0], decision.desired, decision.reasons[0].text if decision.reasons else ""))
            last[0] = decision.desired

    made = run(setting, trace, Autoscaler(interval, heard))
    return measure("Berth", made, setting.policy.goals, setting.speed), tuple(steps)


def compare(setting: Setting, trace: Trace, *, interval: float, initial: int | None, processes: int) -> Comparison:
    """`initial`: replicas at the beginning; None: as many as the clairvoyant has then, so that nothing is owed to a cold begin."""
    with ProcessPoolExecutor(max(1, processes), mp_context=get_context("spawn")) as pool:
        tried = [pool.submit(clairvoyant, setting, trace, window) for window in _WINDOWS]
        plans = [each.result() for each in tried]
        good = [each for each in plans if each[0].share >= setting.policy.goals.share] or plans
        best, first, peak = min(good, key=lambda each: each[0].replica_hours)
        world = msgspec.structs.replace(setting, initial=first if initial is None else initial)
        ours = pool.submit(berth, world, trace, interval)
        plain = pool.submit(hpa, world, trace)
        fixed = pool.submit(fixed_at_peak, world, trace, peak)
        made, steps = ours.result()
        return Comparison(made, fixed.result(), plain.result(), best, steps, setting.capacity)


def all_of(found: Comparison) -> Iterator[Measured]:
    yield from (found.berth, found.fixed, found.hpa, found.clairvoyant)
