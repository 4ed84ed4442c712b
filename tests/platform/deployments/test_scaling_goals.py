"""What scaling has to reach, on the production trace and on made-up traffic, in the simulator. `make test-slow` runs all of it."""

from __future__ import annotations

import random
import re
from pathlib import Path

import msgspec
import pytest

from berth.deployments.simulate.compare import berth, clairvoyant, run
from berth.deployments.simulate.families import FAMILIES, arrivals, chat_sizes, family, shuffled, warped
from berth.deployments.simulate.measure import Measured, judge, measure
from berth.deployments.simulate.scalers import Autoscaler
from berth.deployments.simulate.setting import Change, Run, Setting
from berth.deployments.simulate.trace import Trace, multiplied
from tests.platform.deployments import worlds

DOCS = Path(__file__).resolve().parents[3] / "docs" / "autoscaling.md"


def compared(setting: Setting, trace: Trace, most: int) -> tuple[Measured, float]:
    """What scaling reached, and its replica-hours over the clairvoyant's. `most`: replicas at the beginning."""
    plans = [clairvoyant(setting, trace, window) for window in (1, 3)]
    best, first, _ = min(plans, key=lambda each: each[0].replica_hours)
    assert best.share >= setting.policy.goals.share - 0.001
    found, _ = berth(msgspec.structs.replace(setting, initial=min(first, most)), trace, 2.0)
    return found, found.replica_hours / best.replica_hours


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_five_times_the_trace() -> None:
    found, ratio = compared(worlds.world(0.998), multiplied(worlds.conversations(), 5), 2)
    assert found.share >= 0.998
    assert ratio <= 1.10
    assert found.reversals <= 1


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_twenty_times_the_trace() -> None:
    found, ratio = compared(worlds.world(0.995), multiplied(worlds.conversations(), 20), 9)
    assert found.share >= 0.995
    assert ratio <= 1.25
    assert found.reversals < 2


# Of the requests after a quarter of an hour, when the traffic has shown what it is like; replica-hours over those of as many replicas
# as the busiest moment needs, all the time. What `code` reaches is what its clairvoyant reaches.
KINDS = {
    "mmpp": (0.99, 1.25), "spikes": (0.99, 1.3), "flash": (0.99, 1.1), "on_off": (0.99, 1.4), "diurnal": (0.99, 0.9), "pareto": (0.99, 1.3),
    "code": (0.90, 0.9), "warped": (0.99, 1.1), "shuffled": (0.99, 1.1),
}  # fmt: skip


def made_up(name: str) -> Trace:
    if name in FAMILIES:
        return family(name, 3)
    trace = multiplied(worlds.conversations(), 5)
    return warped(trace) if name == "warped" else shuffled(trace)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("name", KINDS)
def test_traffic_that_is_known_is_within_the_goal(name: str) -> None:
    trace, setting, (share, most) = made_up(name), worlds.world(0.99, initial=2), KINDS[name]
    done = run(setting, trace, Autoscaler(2.0))
    found = measure(name, done, setting.policy.goals, setting.speed, begin=trace.at[0] + 900.0)
    plans = [clairvoyant(setting, trace, window) for window in (1, 3)]
    good = [each for each in plans if each[0].share >= setting.policy.goals.share] or plans
    best, _, peak = min(good, key=lambda each: each[0].replica_hours)
    assert found.share >= share
    assert found.replica_hours <= most * peak * trace.span / 3_600.0
    assert best.share >= share - 0.001
    assert found.longest_wait < 75.0


# --- quick


def back_after(done: Run, setting: Setting, step: float) -> float:
    """Seconds from the step until 99 % of those who arrive within five seconds are within the goals, and so on from then on."""
    good, requests = judge(setting.policy.goals, setting.speed), done.requests
    came: dict[int, list[bool]] = {}
    for number, at in enumerate(requests.arrival):
        came.setdefault(int((at - step) // 5), []).append(good(requests, number))
    bad = [slot for slot, some in came.items() if 0 <= slot < 60 and sum(some) < 0.99 * len(some)]
    return 5.0 * (max(bad, default=-1) + 1)


def stepped(base: float, high: float, step: float, end: float) -> Trace:
    return arrivals(lambda at: high if at >= step else base, end, chat_sizes, random.Random(1), high)


def test_ten_times_as_much_from_one_moment_to_the_next() -> None:
    setting, trace = worlds.world(0.99), stepped(4.0, 40.0, 400.0, 700.0)
    done = run(setting, trace, Autoscaler(2.0))
    assert back_after(done, setting, 400.0) <= setting.cold_start + 20.0
    assert max(f - a for f, a in zip(done.requests.first, done.requests.arrival, strict=True)) < 75.0
    assert not done.dropped


def test_after_silence_it_wakes_with_what_the_load_needs() -> None:
    trace = arrivals(lambda at: 0.0 if 200 <= at < 1_400 else 40.0, 1_600, chat_sizes, random.Random(2), 40.0)
    setting = worlds.world(0.99, initial=3, least=0, sleep_after=300.0)
    done = run(setting, trace, Autoscaler(2.0))
    asleep = next(change for change in done.changes if change.after == 0)
    assert 500 <= asleep.at - trace.at[0] < 1_400
    woken: list[Change] = [change for change in done.changes if asleep.at < change.at <= 1_412.0]
    assert woken[-1].after >= 3, "not one"
    requests = done.requests
    assert max(f - a for f, a in zip(requests.first, requests.arrival, strict=True)) < 75.0


def test_steady_traffic_is_left_alone() -> None:
    trace = arrivals(lambda _: 28.0, 900.0, chat_sizes, random.Random(3), 28.0)
    found, steps = berth(worlds.world(0.99, initial=2), trace, 2.0)
    assert found.share >= 0.99
    assert len(steps) <= 1


def test_the_example_of_the_docs_runs(capsys: pytest.CaptureFixture[str]) -> None:
    code = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert len(code) == 1
    exec(compile(code[0], str(DOCS), "exec"), {})
    desired, text = capsys.readouterr().out.strip().split(" ", 1)
    assert 4 <= int(desired) <= 5
    assert text.endswith(".")
