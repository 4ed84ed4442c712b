"""`PYTHONPATH=platform:. python tests/bench/tune_autoscaler.py [NAME…]`: the autoscaler on many kinds of traffic, as rows
of the table in docs/autoscaling.md.

With constants to try: `--set headroom.PRICE=1.2 deciding.BAND=0.1` (modules of berth.deployments.scaling).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import partial

import msgspec

from berth.deployments.simulate.compare import clairvoyant, fixed_at_peak, hpa, run
from berth.deployments.simulate.families import FAMILIES, family, shuffled, warped
from berth.deployments.simulate.measure import measure
from berth.deployments.simulate.scalers import Autoscaler
from berth.deployments.simulate.trace import Trace, hastened, multiplied
from tests.platform.deployments import worlds

TRAFFIC: dict[str, tuple[float, Callable[[], Trace]]] = {
    **{f"trace x{times}": (0.998 if times < 10 else 0.995, partial(multiplied, worlds.conversations(), times)) for times in (2, 5, 10, 20)},
    "trace x5, twice as fast": (0.99, lambda: hastened(multiplied(worlds.conversations(), 5), 2.0)),
    "trace x5, warped": (0.99, lambda: warped(multiplied(worlds.conversations(), 5))),
    "trace x5, shuffled": (0.99, lambda: shuffled(multiplied(worlds.conversations(), 5))),
    **{name: (0.99, partial(family, name, 3)) for name in FAMILIES},
}  # fmt: skip


LEARNED = 900.0  # seconds


def row(name: str) -> str:
    share, made = TRAFFIC[name]
    trace = made()
    setting = worlds.world(share)
    plans = [clairvoyant(setting, trace, window) for window in (1, 3)]
    good = [each for each in plans if each[0].share >= share] or plans
    best, first, peak = min(good, key=lambda each: each[0].replica_hours)
    setting = msgspec.structs.replace(setting, initial=first)
    done = run(setting, trace, Autoscaler(2.0))
    judged = partial(measure, name, done, setting.policy.goals, setting.speed)
    found, known = judged(), judged(begin=trace.at[0] + LEARNED)
    others = [fixed_at_peak(setting, trace, peak), hpa(setting, trace), best]
    return (
        f"| {name} | {100 * found.share:.2f} % | {100 * known.share:.2f} % | {found.replica_hours / best.replica_hours:.2f} "
        f"| {found.longest_wait:.0f} s | {found.reversals} | "
        + " | ".join(f"{100 * each.share:.2f} % / {each.replica_hours / best.replica_hours:.2f}" for each in others)
        + " |"
    )


def main(arguments: list[str]) -> None:
    names = [each for each in arguments if each in TRAFFIC] or list(TRAFFIC)
    for each in arguments[arguments.index("--set") + 1 :] if "--set" in arguments else ():
        where, _, value = each.partition("=")
        module, _, constant = where.partition(".")
        setattr(importlib.import_module(f"berth.deployments.scaling.{module}"), constant, float(value))
    for name in names:
        sys.stdout.write(row(name) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
