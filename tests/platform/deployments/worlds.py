"""The world that the goals of scaling are told for: an H100-class replica of an 8B model. Its numbers are kept here, so that a better
performance model of the planner does not move the goals."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from berth.deployments.scaling.observation import Capacity, Goals, Policy
from berth.deployments.simulate.setting import Setting
from berth.deployments.simulate.speed import Speed
from berth.deployments.simulate.trace import Trace, read_trace

TRACES = Path(__file__).resolve().parents[2] / "data" / "traces"

# Milliseconds of a decode step with 0, 32, 64 … 512 sequences, their caches left out; between them it is nearly straight.
_DECODE = (
    6.6042, 6.7806, 6.973, 7.2018, 7.5043, 7.9151, 8.4488, 9.0944, 9.8272, 10.6218, 11.4581, 12.3223, 13.2052, 14.1008, 15.0052,
    15.9158, 16.8309,
)  # fmt: skip


def _step(n: int) -> float:
    left, part = divmod(n, 32)
    right = min(left + 1, len(_DECODE) - 1)
    return 1e-3 * (_DECODE[left] + part / 32 * (_DECODE[right] - _DECODE[left]))


H100_8B = Speed(
    decode=tuple(_step(n) for n in range(513)),
    cache_second=4.6155e-08,
    prompt_second=2.5363e-05,
    prompt_square=1.2482e-09,
    prompt_fixed=2.234e-03,
    prompt_least=4.697e-03,
    first_second=5e-3,
    cache_tokens=430_448,
    most_sequences=512,
    token_budget=8_192,
)


@cache
def conversations() -> Trace:
    return read_trace(TRACES / "azure_llm_2023_conv.csv.gz")


# What `capacity_of` finds for this replica and these requests; test_simulator.py holds it to that.
PLANNED = Capacity(
    requests_per_second=15.8,
    concurrency=78.0,
    pooled_requests_per_second=17.6,
    prompt_tokens=1_154.7,
    completion_tokens=211.1,
    prompt_share=0.45,
)


def goals(share: float) -> Goals:
    return Goals(first_token_seconds=1.0, token_seconds=0.05, share=share)


def world(share: float = 0.998, initial: int = 1, **policy: object) -> Setting:
    rules = msgspec.convert({"most": 200, **policy}, Policy)
    rules = msgspec.structs.replace(rules, goals=goals(share))
    return Setting(speed=H100_8B, policy=rules, capacity=PLANNED, initial=initial)
