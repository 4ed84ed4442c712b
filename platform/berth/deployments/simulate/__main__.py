"""`python -m berth.deployments.simulate TRACE.csv --model llama-3.1-8b --tier h100 --needs ttft_ms=1000`: what scaling would have done.

TRACE is a CSV file with the columns TIMESTAMP, ContextTokens and GeneratedTokens (also gzipped), or the name of a family of
made-up traffic. The real autoscaler and the gateway's real choice of replicas run against replicas as fast as the planner
says, in virtual time, beside three references.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from berth.deployments.scaling.observation import Goals, Policy
from berth.deployments.simulate.calibrate import capacity_of
from berth.deployments.simulate.compare import compare
from berth.deployments.simulate.families import FAMILIES, family
from berth.deployments.simulate.report import as_plain, lines, step_lines
from berth.deployments.simulate.setting import Setting
from berth.deployments.simulate.speed import NoPlan, plan_speed
from berth.deployments.simulate.trace import Trace, hastened, multiplied, read_trace
from berth.planner.catalogue import model_by_name
from berth.planner.demand import Demand
from berth.planner.survey import Fixed


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    try:
        label, setting, trace = _world(given)
    except (OSError, ValueError, NoPlan, msgspec.ValidationError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    found = compare(setting, trace, interval=given.interval, initial=given.initial, processes=given.processes)
    if given.json:
        sys.stdout.write(json.dumps(as_plain(found), indent=1) + "\n")
        return 0
    told = lines(found, label)
    if given.steps:
        told += ["", *step_lines(found)]
    sys.stdout.write("\n".join(told) + "\n")
    return 0


def _world(given: argparse.Namespace) -> tuple[str, Setting, Trace]:
    trace = family(given.trace, given.seed) if given.trace in FAMILIES else read_trace(Path(given.trace))
    trace = hastened(multiplied(trace, given.rate, given.seed), given.faster)
    count = len(trace)
    needs = _needs(given.needs)
    share = float(needs.pop("share", 0.998))
    demand = msgspec.convert(
        {"prompt_tokens": sum(trace.prompt) // count, "reply_tokens": sum(trace.output) // count, **needs}, Demand
    )
    model = model_by_name(given.model)
    if model is None:
        raise ValueError(f"{given.model} is no public model that is known here.")
    plan = plan_speed(model, demand, Fixed(tier=given.tier, engine=given.engine, scheme=given.scheme))
    goals = Goals(
        first_token_seconds=None if demand.ttft_ms is None else demand.ttft_ms / 1e3,
        token_seconds=None if demand.tokens_per_second is None else 1.0 / demand.tokens_per_second,
        share=share,
    )
    setting = Setting(
        speed=plan.speed,
        policy=Policy(least=given.least, most=given.most, sleep_after=given.sleep_after, goals=goals),
        capacity=capacity_of(plan.speed, goals, trace),
        cold_start=given.cold_start,
        cold_start_spread=given.cold_start_spread,
        patience=given.patience,
        failures_per_hour=given.failures_per_hour,
        seed=given.seed,
    )
    return (
        f"{count:,} requests in {trace.span / 60:.0f} min; {plan.label}, ready after {given.cold_start:g} s",
        setting,
        trace,
    )


def _needs(text: str) -> dict[str, Any]:
    """ "ttft_ms=1000,tokens_per_second=20": the fields of the planner's demand, and `share`. Raises ValueError."""
    found: dict[str, Any] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals or (name != "share" and name not in Demand.__struct_fields__):
            raise ValueError(
                f"--needs has no {name}. Write name=value, with the names of the planner's wishes, or share."
            )
        found[name] = None if value == "none" else int(value) if value.isdigit() else float(value)
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m berth.deployments.simulate", description="What scaling would have done."
    )
    parser.add_argument("trace", help=f"a CSV file, or one of {', '.join(FAMILIES)}")
    parser.add_argument("--model", default="llama-3.1-8b", help="a public model")
    parser.add_argument("--tier", default="h100")
    parser.add_argument("--engine", default=None)
    parser.add_argument("--scheme", default=None, help="weight format, such as BF16 or FP8")
    parser.add_argument(
        "--needs", default="ttft_ms=1000,tokens_per_second=20", help="name=value,…; share=0.998 is the goal"
    )
    parser.add_argument("--rate", type=float, default=1.0, help="so many times as many requests in the same time")
    parser.add_argument("--faster", type=float, default=1.0, help="the same requests in so much less time")
    parser.add_argument("--cold-start", type=float, default=60.0, help="seconds until a replica is ready")
    parser.add_argument("--cold-start-spread", type=float, default=0.0, help="share by which starts differ")
    parser.add_argument("--interval", type=float, default=2.0, help="seconds between two decisions")
    parser.add_argument("--least", type=int, default=1)
    parser.add_argument("--most", type=int, default=64)
    parser.add_argument("--initial", type=int, default=None, help="replicas at the beginning; else what is right then")
    parser.add_argument("--sleep-after", type=float, default=None, help="seconds; with --least 0")
    parser.add_argument("--patience", type=float, default=None, help="seconds after which a waiting request is dropped")
    parser.add_argument("--failures-per-hour", type=float, default=0.0, help="of each replica")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=min(4, os.cpu_count() or 1))
    parser.add_argument("--steps", action="store_true", help="each scaling action with its reason")
    parser.add_argument("--json", action="store_true")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
