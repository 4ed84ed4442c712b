"""What one replica can do within the goals, found by trying: random arrivals of the trace's own requests at one rate after another."""

from __future__ import annotations

import random

from berth.deployments.scaling.observation import Capacity, Goals, Policy
from berth.deployments.simulate.fleet import Fleet
from berth.deployments.simulate.measure import judge
from berth.deployments.simulate.references import Always
from berth.deployments.simulate.routing import GatewayRouting
from berth.deployments.simulate.setting import Setting
from berth.deployments.simulate.speed import Speed
from berth.deployments.simulate.trace import Trace, made_of

_REQUESTS = 4_000  # of a trial, for one replica
_TRIALS = 9
_MANY = 8  # replicas of a fleet in which bursts even out


def capacity_of(speed: Speed, goals: Goals, mix: Trace, seed: int = 7) -> Capacity:
    """As the planner would tell it for this mix of requests."""
    one, in_flight = _most(speed, goals, mix, 1, seed)
    many, _ = _most(speed, goals, mix, _MANY, seed)
    count = len(mix)
    prompt, output = sum(mix.prompt) / count, sum(mix.output) / count
    # Of a replica's time at that rate: what is not decoding is prompts.
    busy = one * sum(speed.work(float(each)) for each in mix.prompt) / count
    return Capacity(
        requests_per_second=one,
        concurrency=max(1.0, in_flight),
        pooled_requests_per_second=max(one, many),
        prompt_tokens=prompt,
        completion_tokens=output,
        prompt_share=min(0.95, busy),
    )


def _most(speed: Speed, goals: Goals, mix: Trace, replicas: int, seed: int) -> tuple[float, float]:
    """Requests a second of each of so many replicas, and how many each then has in flight."""
    count = len(mix)
    work = sum(speed.work(float(each)) for each in mix.prompt) / count
    low, high = 0.0, 1.0 / max(work, 1e-9)
    in_flight = 1.0
    for _ in range(_TRIALS):
        rate = (low + high) / 2.0
        share, flying = _trial(speed, goals, mix, replicas, rate, seed)
        if share >= goals.share:
            low, in_flight = rate, flying
        else:
            high = rate
    return max(low, high / 2.0**_TRIALS), in_flight


def _trial(speed: Speed, goals: Goals, mix: Trace, replicas: int, rate: float, seed: int) -> tuple[float, float]:
    chance = random.Random(seed)  # noqa: S311
    at, rows = 0.0, []
    for _ in range(_REQUESTS * max(1, replicas // 2)):
        at += chance.expovariate(rate * replicas)
        each = chance.randrange(len(mix))
        rows.append((at, mix.prompt[each], mix.output[each]))
    trial = made_of(rows)
    setting = Setting(speed, Policy(most=replicas, goals=goals), Capacity(), initial=replicas)
    run = Fleet(setting, trial.requests(), Always(replicas, None), GatewayRouting()).run()
    requests, good = run.requests, judge(goals, speed)
    late = [n for n in range(len(requests)) if requests.arrival[n] > 0.1 * trial.span]  # when it has settled
    spent = sum(requests.end[n] - requests.arrival[n] for n in late)
    return sum(good(requests, n) for n in late) / len(late), spent / (0.9 * trial.span) / replicas
