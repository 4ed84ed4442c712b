"""The simulator against what is known of queues, and its parts: traces, replicas, the fleet, references, the command."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from berth.deployments.scaling.observation import Capacity, Observation, Policy
from berth.deployments.simulate.calibrate import capacity_of
from berth.deployments.simulate.families import FAMILIES, family, shuffled, warped
from berth.deployments.simulate.fleet import Fleet
from berth.deployments.simulate.measure import judge, measure, reversals
from berth.deployments.simulate.references import Always, TargetConcurrency, needed, plan_ahead
from berth.deployments.simulate.replica import Engine, Requests
from berth.deployments.simulate.routing import GatewayRouting
from berth.deployments.simulate.setting import Order, Run, Setting
from berth.deployments.simulate.speed import Speed
from berth.deployments.simulate.trace import Trace, hastened, made_of, multiplied, read_trace
from tests.platform.deployments import worlds

ROOT = Path(__file__).resolve().parents[3]
# A replica that does one thing at a time and nothing but prompts: a queue with one server. 1 ms a prompt token.
SERVER = Speed(
    decode=(0.0, 0.0), cache_second=0.0, prompt_second=1e-3, prompt_square=0.0, prompt_fixed=0.0, prompt_least=0.0,
    first_second=0.0, cache_tokens=1 << 40, most_sequences=1, token_budget=1 << 30,
)  # fmt: skip


def poisson(rate: float, count: int, size: int, output: int = 1, seed: int = 3, exponential: bool = False) -> Trace:
    chance, at, rows = random.Random(seed), 0.0, list[tuple[float, int, int]]()
    for _ in range(count):
        at += chance.expovariate(rate)
        rows.append((at, max(1, int(chance.expovariate(1 / size))) if exponential else size, output))
    return made_of(rows)


def served(speed: Speed, trace: Trace, replicas: int, limit: int | None = None, **setting: object) -> Run:
    world = msgspec.structs.replace(Setting(speed, Policy(most=64), Capacity(), initial=replicas), **setting)
    return Fleet(world, trace.requests(), Always(replicas, limit), GatewayRouting()).run()


def mean_wait(run: Run, trace: Trace) -> float:
    """Seconds before a prompt was begun."""
    requests = run.requests
    waits = [requests.first[n] - requests.arrival[n] - 1e-3 * trace.prompt[n] for n in range(len(requests))]
    return sum(waits) / len(waits)


# --- known results: M/D/1, M/M/1, M/D/c


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_equal_requests_wait_as_in_a_queue_of_one_server(load: float) -> None:
    trace = poisson(load * 10.0, 30_000, 100)
    expected = load * 0.1 / (2.0 * (1.0 - load))  # Pollaczek and Khinchine
    assert mean_wait(served(SERVER, trace, 1), trace) == pytest.approx(expected, rel=0.1)


def test_exponential_requests_wait_twice_as_long() -> None:
    trace = poisson(6.0, 40_000, 100, exponential=True)
    busy = 6.0 * sum(trace.prompt) / len(trace) * 1e-3
    expected = busy * 0.1 / (1.0 - busy)
    assert mean_wait(served(SERVER, trace, 1), trace) == pytest.approx(expected, rel=0.15)


def test_a_shared_queue_waits_less_than_queues_of_their_own() -> None:
    """With one place each, requests wait at the gateway: a queue of four servers, which is Erlang's C."""
    trace = poisson(32.0, 40_000, 100, exponential=True)
    shared = mean_wait(served(SERVER, trace, 4, 1), trace)
    assert shared == pytest.approx(0.5964 / 8.0, rel=0.2)
    assert shared < mean_wait(served(SERVER, trace, 4), trace)


def test_littles_law_holds() -> None:
    run = served(worlds.H100_8B, poisson(8.0, 6_000, 1_000, 150), 1)
    requests = run.requests
    spent = [requests.end[n] - requests.arrival[n] for n in range(len(requests))]
    flying = 0.0
    moments = [100.0 + 0.5 * k for k in range(1_000)]
    for moment in moments:
        flying += sum(
            requests.arrival[n] <= moment < requests.end[n]
            for n in range(int(6 * (moment - 15)), int(10 * (moment + 15)))
            if n < len(requests)
        )
    assert flying / len(moments) == pytest.approx(8.0 * sum(spent) / len(spent), rel=0.1)


# --- a replica


def test_a_request_alone_takes_what_the_speed_says() -> None:
    speed = worlds.H100_8B
    trace = made_of([(0.0, 1_000, 100), (60.0, 20_000, 10)])
    requests = served(speed, trace, 1).requests
    for number in (0, 1):
        assert requests.first[number] - requests.arrival[number] == pytest.approx(speed.unloaded(trace.prompt[number]))
    step = speed.decode[1] + speed.cache_second * 1_050
    assert requests.end[0] - requests.first[0] == pytest.approx(99 * step, rel=0.01)


def test_prompts_slow_down_who_generates() -> None:
    alone = served(worlds.H100_8B, made_of([(0.0, 100, 500)]), 1).requests
    beside = served(
        worlds.H100_8B, made_of([(0.0, 100, 500), *[(0.5 + 0.1 * k, 4_000, 1) for k in range(20)]]), 1
    ).requests
    assert beside.end[0] > alone.end[0] + 20 * worlds.H100_8B.work(4_000) * 0.9


def test_a_full_cache_puts_back_the_newest_and_all_are_served() -> None:
    small = msgspec.structs.replace(worlds.H100_8B, cache_tokens=3_000)
    trace = made_of([(0.01 * k, 400, 400) for k in range(12)])
    requests = served(small, trace, 1).requests
    roomy = served(worlds.H100_8B, trace, 1).requests
    assert all(end > 0 for end in requests.end)
    assert max(requests.end) > 1.5 * max(roomy.end)


def test_every_request_gets_its_tokens_in_order() -> None:
    trace = family("pareto", 5)
    part = made_of([(at, p, o) for at, p, o in zip(trace.at, trace.prompt, trace.output, strict=True) if at < 120])
    requests = served(worlds.H100_8B, part, 2).requests
    assert all(a < s + 1e-9 <= f < e + 1e-9 for a, s, f, e in zip(
        requests.arrival, requests.sent, requests.first, requests.end, strict=True))  # fmt: skip


def test_an_engine_can_be_driven_alone() -> None:
    engine = Engine(SERVER, Requests([0.0], [100], [1]))
    assert engine.add(0, 0.0)
    assert engine.busy_until == pytest.approx(0.1)
    assert (engine.finish().ended, engine.load, engine.busy_until) == ([0], 0, None)


# --- the fleet


class Script:
    """Orders by the clock."""

    interval = 1.0

    def __init__(self, *orders: tuple[float, int]) -> None:
        self.orders = orders

    def decide(self, seen: Observation) -> Order:
        return Order([count for at, count in self.orders if seen.now >= at][-1], 50)


def test_replicas_start_after_the_cold_start_and_drain_before_they_go() -> None:
    trace = poisson(5.0, 1_500, 500, 300)
    world = Setting(worlds.H100_8B, Policy(), Capacity(), initial=1)
    run = Fleet(world, trace.requests(), Script((0, 1), (50, 3), (200, 1)), GatewayRouting()).run()
    assert all(end > 0 for end in run.requests.end)
    assert [change.after for change in run.changes] == [3, 1]
    assert run.most == 3
    # One from the beginning to the end, two from 50 s until 200 s and what they still had to finish.
    assert 2 * 150 <= run.replica_seconds - run.span <= 2 * 162
    assert run.ready_seconds == pytest.approx(run.replica_seconds - 2 * 60, abs=3)


def test_bounded_replicas_leave_the_queue_to_new_ones() -> None:
    """What waits within one engine cannot move on; what waits at the gateway is served by whoever becomes ready."""
    trace = made_of([(0.01 * k, 1_000, 100) for k in range(6_000)])
    world = Setting(worlds.H100_8B, Policy(), Capacity(), initial=1)
    longest = {}
    for limit in (None, 60):
        scaler = Script((0, 1), (5, 6))
        scaler.decide = lambda seen, limit=limit: Order(6 if seen.now >= 5 else 1, limit)  # type: ignore[method-assign,misc]
        run = Fleet(world, trace.requests(), scaler, GatewayRouting()).run()
        longest[limit] = max(f - a for f, a in zip(run.requests.first, run.requests.arrival, strict=True))
    assert longest[60] < 75 < longest[None]


def test_who_fails_loses_only_answers_that_had_begun() -> None:
    trace = poisson(8.0, 4_000, 800, 200)
    run = served(worlds.H100_8B, trace, 3, failures_per_hour=40.0)
    assert run.failures >= 1
    lost = [n for n in range(len(trace)) if run.requests.end[n] < 0]
    assert set(lost) == run.dropped
    assert len(lost) < 0.3 * len(trace)


def test_patience_drops_who_waits_too_long() -> None:
    trace = made_of([(0.001 * k, 1_000, 50) for k in range(500)])
    run = served(worlds.H100_8B, trace, 1, 5, patience=2.0)
    assert 0 < len(run.dropped) < 500
    assert all(run.requests.end[n] > 0 for n in range(500) if n not in run.dropped)


def test_the_same_world_gives_the_same_run() -> None:
    trace = multiplied(worlds.conversations(), 0.3)
    one, other = (served(worlds.H100_8B, trace, 1, seed=4) for _ in range(2))
    assert one.requests.end == other.requests.end


# --- judging


def test_a_prompt_that_takes_long_alone_counts_against_twice_that() -> None:
    speed, good = worlds.H100_8B, judge(worlds.goals(0.99), worlds.H100_8B)
    requests = Requests([0.0, 0.0, 0.0], [30_000, 30_000, 100], [1, 1, 1])
    alone = speed.unloaded(30_000)
    assert alone > 1.0
    requests.first = requests.end = [1.9 * alone, 2.1 * alone, 1.1]
    assert [good(requests, n) for n in range(3)] == [True, False, False]


def test_reversals_are_changes_of_direction() -> None:
    trace = made_of([(float(k), 10, 2) for k in range(100)])
    run = Fleet(
        Setting(worlds.H100_8B, Policy(), Capacity()), trace.requests(), Script((0, 2), (20, 3), (40, 2), (60, 1), (80, 4)),
        GatewayRouting(),
    ).run()  # fmt: skip
    assert len(run.changes) == 5
    assert reversals(run) == 2
    found = measure("x", run, worlds.goals(0.99), worlds.H100_8B)
    assert (found.actions, found.requests, found.share) == (5, 100, 1.0)


# --- references


def test_the_clairvoyant_bridges_short_pauses_and_starts_ahead() -> None:
    assert plan_ahead([0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 1], 2) == [0, 1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1]
    assert plan_ahead([1, 2, 1, 1, 1, 2], 2) == [2, 2, 1, 2, 2, 2]
    assert needed([10.0, 35.0, 10.0, 10.0], 1.0, 10.0, 1, 0) == [4, 4, 4, 1]


def test_the_hpa_scales_by_the_ratio_and_goes_down_after_five_minutes() -> None:
    scaler, counts = TargetConcurrency(10.0, None), []
    for index in range(60):
        flying = 95.0 if 5 <= index < 10 else 15.0
        counts.append(scaler.decide(Observation(now=15.0 * index, arrivals=0, ready=2, in_flight=flying)).desired)
    assert max(counts) == 10
    assert counts[10] == counts[28] == 10
    assert counts[-1] == 2


# --- traces


def test_the_trace_is_read_as_it_was_published() -> None:
    trace = worlds.conversations()
    assert len(trace) == 19_366
    assert trace.span == pytest.approx(3_501.7, abs=0.1)
    assert (trace.prompt[:2], trace.output[:2]) == ((374, 396), (44, 109))
    assert len(multiplied(trace, 2.5)) == pytest.approx(2.5 * 19_366, rel=0.02)
    assert hastened(trace, 2.0).span == pytest.approx(trace.span / 2)
    assert sorted(shuffled(trace).prompt) == sorted(warped(trace).prompt) == sorted(trace.prompt)


@pytest.mark.parametrize(
    ("text", "told"),
    [("a,b\n1,2\n", "has no column TIMESTAMP"), ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "no requests"),
     ("TIMESTAMP,ContextTokens,GeneratedTokens\n1,2,x\n", "Line 2")],
)  # fmt: skip
def test_a_file_that_is_no_trace_is_refused_with_a_reason(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ValueError, match=told):
        read_trace(tmp_path / "t.csv")


@pytest.mark.parametrize("name", sorted(set(FAMILIES) - {"diurnal"}))  # that one is long
def test_families_are_made_anew_from_a_seed(name: str) -> None:
    one = family(name, 2)
    assert one == family(name, 2) != family(name, 3)
    assert len(one) > 5_000


def test_capacity_is_found_by_trying() -> None:
    found = capacity_of(worlds.H100_8B, worlds.goals(0.998), worlds.conversations())
    for name in ("requests_per_second", "pooled_requests_per_second", "prompt_tokens", "completion_tokens"):
        assert getattr(found, name) == pytest.approx(getattr(worlds.PLANNED, name), rel=0.05), name


# --- the command


def test_the_command_compares_without_django(tmp_path: Path) -> None:
    trace = worlds.conversations()
    rows = [(at, p, o) for at, p, o in zip(trace.at, trace.prompt, trace.output, strict=True) if at < 240]
    file = tmp_path / "trace.csv"
    file.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(f"{a},{p},{o}" for a, p, o in rows) + "\n")
    code = (
        "import sys; from berth.deployments.simulate.__main__ import main; status = main(sys.argv[1:]); "
        "assert not any(name.partition('.')[0] == 'django' for name in sys.modules); sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(file), "--tier", "h100", "--json", "--processes", "1", "--needs", "ttft_ms=1000,share=0.9"],
        env={"PYTHONPATH": str(ROOT / "platform"), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert set(told["runs"]) == {"Berth", "fixed at peak", "HPA", "clairvoyant"}
    assert told["runs"]["Berth"]["requests"] == len(rows)
    wrong = subprocess.run(
        [sys.executable, "-m", "berth.deployments.simulate", str(file), "--needs", "speed=1"],
        env={"PYTHONPATH": str(ROOT / "platform"), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (wrong.returncode, "--needs has no speed" in wrong.stderr) == (2, True)
