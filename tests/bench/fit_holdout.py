"""What the planner gets right of what it has not seen: `python tests/bench/fit_holdout.py TRUTH.csv [source|device|family ...]`.

Refits without each source, without each device, and without each family of models in turn, and reports the error on what was left out.
Only the stages that have points in what is left out are fitted again; the others keep what all points gave them. The last lines
sum up: by metric, the median over all points of the error that each had while it was left out.
"""

from __future__ import annotations

import argparse
import copy
import re
import statistics
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from fit_planner import START, Path3, Sections, _answerable, fit
from fit_stages import STAGES

from berth.planner.answers import answer
from berth.planner.catalogue import normalised
from berth.planner.hardware import gpu_by_name
from berth.planner.measurements import Measurement, read_measurements


def _device(point: Measurement) -> str:
    found = gpu_by_name(point.gpu)
    return found.key if found else "?"


def _family(point: Measurement) -> str:
    """ "llama-3.1-8b" -> "llama-3"."""
    match = re.match(r"[a-z]+-?\d?", normalised(point.model))
    return match.group(0) if match else "?"


KINDS: dict[str, Callable[[Measurement], str]] = {
    "source": lambda point: point.source_key, "device": _device, "family": _family,
}  # fmt: skip


def without(group: set[str], points: Sequence[Measurement], start: Sections, known: dict[str, list[float]]) -> Sections:
    """`group`: ids of the points that are left out."""
    sections, rest = copy.deepcopy(start), [point for point in points if point.id not in group]
    for stage in STAGES:
        if any(point.id in group and stage.takes(point) for point in points):
            sections, _ = fit(stage, rest, sections)
            continue
        for text, value in zip(stage.parameters, known[stage.name], strict=True):
            path = Path3.parse(text)
            path.inherit(sections)
            path.set(sections, value)
    return sections


def leave_out(points: Sequence[Measurement], start: Sections, kind: str) -> None:
    known: dict[str, list[float]] = {}
    whole = copy.deepcopy(start)
    for stage in STAGES:
        whole, _ = fit(stage, points, whole)
        known[stage.name] = [Path3.parse(text).get(whole) for text in stage.parameters]
    judged = [point for point in points if any(stage.takes(point) for stage in STAGES) and _answerable(point, whole)]
    overall: dict[str, list[float]] = defaultdict(list)
    for name in sorted({KINDS[kind](point) for point in judged}):
        left = [point for point in judged if KINDS[kind](point) == name]
        fitted = without({point.id for point in left}, points, start, known)
        groups: dict[str, list[float]] = defaultdict(list)
        for point in left:
            error = answer(point, fitted).value / point.value - 1
            groups[f"{point.metric} ({point.engine})"].append(error)
            overall[point.metric].append(error)
        for metric, errors in sorted(groups.items()):
            _tell(f"{kind} {name}", metric, errors)
    for metric, errors in sorted(overall.items()):
        _tell(f"every {kind} left out", metric, errors)


def _tell(what: str, metric: str, errors: Sequence[float]) -> None:
    sizes = sorted(map(abs, errors))
    p90 = sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))]
    sys.stdout.write(
        f"{what:34s} {metric:52s} n={len(errors):3d} median={statistics.median(sizes):7.1%} p90={p90:7.1%} "
        f"bias={statistics.median(errors):+7.1%}\n"
    )
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("truth", type=Path)
    parser.add_argument("kinds", nargs="*", metavar="kind", help=f"of {', '.join(KINDS)}; none: all")
    given = parser.parse_args()
    with given.truth.open(newline="", encoding="utf-8") as lines:
        points = read_measurements(lines)
    start = tomllib.loads(START.read_text(encoding="utf-8"))
    for kind in given.kinds or KINDS:
        leave_out(points, start, kind)


if __name__ == "__main__":
    main()
