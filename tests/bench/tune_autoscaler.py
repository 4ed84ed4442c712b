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

from berth.deployments.simulate.compare import berth, clairvoyant
from berth.deployments.simulate.families import FAMILIES, family, shuffled, warped
from berth.deployments.simulate.trace import Trace, hastened, multiplied
from tests.platform.deployments import worlds

TRAFFIC: dict[str, tuple[float, Callable[[], Trace]]] = {
    **{f"trace x{times}": (0.998 if times < 10 else 0.995, partial(multiplied, worlds.conversations(), times)) for times in (2, 5, 10, 20)},
    "trace x5, twice as fast": (0.99, lambda: hastened(multiplied(worlds.conversations(), 5), 2.0)),
    "trace x5, warped": (0.99, lambda: warped(multiplied(worlds.conversations(), 5))),
    "trace x5, shuffled": (0.99, lambda: shuffled(multiplied(worlds.conversations(), 5))),
    **{name: (0.99, partial(family, name, 3)) for name in FAMILIES},
}  # fmt: skip


def row(name: str) -> str:
    share, made = TRAFFIC[name]
    trace = made()
    setting = worlds.world(share)
    best, first, _ = clairvoyant(setting, trace, 1)
    found, _ = berth(msgspec.structs.replace(setting, initial=first), trace, 2.0)
    ratio = found.replica_hours / best.replica_hours
    return (
        f"| {name} | {100 * found.share:.2f} % ({100 * best.share:.2f} %) | {ratio:.2f} | {found.ttft[2]:.2f} s "
        f"| {found.longest_wait:.0f} s | {found.reversals_per_hour:.1f} | {found.most_replicas} |"
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
