"""Reproduces the planner's coefficients from a file of measurements: `python tests/bench/fit_planner.py TRUTH.csv [--write]`.

Each stage fits the few numbers of one engine's section to the points that depend on them, by a coordinate search in log space. The loss is
the mean of a Huber function of the logarithm of predicted over measured, every source and metric counting the same however many points
it has; each number is held to its starting value by a weak prior, so what the data does not decide stays where physics, the data sheets or
the fit of a kindred engine put it. `fit_holdout.py` refits without each source, device and family of models in turn.
"""

from __future__ import annotations

import argparse
import copy
import math
import statistics
import sys
import tomllib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "platform"))

from fit_stages import STAGES, Stage  # noqa: E402

from berth.planner.answers import Unanswerable, answer  # noqa: E402
from berth.planner.coefficients import build  # noqa: E402
from berth.planner.measurements import Measurement, read_measurements  # noqa: E402

PRIOR = 0.01  # of squared log distance from the start
HUBER = 0.15  # log error beyond which a point counts linearly
START = Path(__file__).with_name("fit_start.toml")
COEFFICIENTS = ROOT / "platform/berth/planner/data/coefficients.toml"

Sections = dict[str, Any]


class Path3(NamedTuple):
    section: str
    name: str
    kind: str = ""

    @classmethod
    def parse(cls, text: str) -> Path3:
        return cls(*text.split(".", 2))

    def get(self, sections: Sections) -> float:
        value = sections[self.section][self.name]
        return float(value[self.kind] if self.kind else value)

    def inherit(self, sections: Sections) -> None:
        """What an engine's section does not say starts from what was fitted for the engine that it extends."""
        own = sections[self.section]
        if self.name not in own or (self.kind and self.kind not in own[self.name]):
            value = build(sections, self.section).value(self.name, self.kind or "default")
            if self.kind:
                own.setdefault(self.name, {})[self.kind] = value
            else:
                own[self.name] = value

    def set(self, sections: Sections, value: float) -> None:
        if self.kind:
            sections[self.section][self.name][self.kind] = value
        else:
            sections[self.section][self.name] = value


def loss(points: Sequence[Measurement], sections: Sections) -> float:
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for point in points:
        error = abs(math.log(answer(point, sections).value / point.value))
        groups[(point.source_key, point.metric)].append(
            error if error < HUBER else HUBER + 0.5 * (1 - math.exp(-2 * (error - HUBER)))
        )
    return statistics.fmean(statistics.fmean(errors) for errors in groups.values()) if groups else 0.0


def fit(stage: Stage, points: Sequence[Measurement], sections: Sections) -> tuple[Sections, float]:
    paths = [Path3.parse(text) for text in stage.parameters]
    for path in paths:
        path.inherit(sections)
    chosen = [point for point in points if stage.takes(point) and _answerable(point, sections)]
    start = {path: path.get(sections) for path in paths}
    best, steps = copy.deepcopy(sections), dict.fromkeys(paths, 0.25)

    def cost(trial: Sections) -> float:
        prior = sum(math.log(max(1e-9, path.get(trial)) / max(1e-9, start[path])) ** 2 for path in paths)
        return loss(chosen, trial) + PRIOR * prior

    now = cost(best)
    for _ in range(stage.rounds):
        for path in paths:
            moved = False
            for sign in (1, -1):
                trial = copy.deepcopy(best)
                path.set(trial, min(stage.most(path.name), path.get(best) * math.exp(sign * steps[path])))
                if (value := cost(trial)) < now - 1e-7:
                    best, now, moved = trial, value, True
                    break
            steps[path] *= 1.3 if moved else 0.5
        if max(steps.values()) < 0.004:
            break
    return best, now


def _answerable(point: Measurement, sections: Sections) -> bool:
    try:
        return point.value > 0 and answer(point, sections).value > 0
    except Unanswerable:
        return False


def fit_all(
    points: Sequence[Measurement], sections: Sections, only: Sequence[str] = (), *, quiet: bool = False
) -> Sections:
    for stage in STAGES:
        if only and stage.name not in only:
            continue
        sections, cost = fit(stage, points, sections)
        if not quiet:
            print(
                f"{stage.name}: {cost:.4f} ",
                {text: round(Path3.parse(text).get(sections), 4) for text in stage.parameters},
            )
    return sections


def render(sections: Sections) -> str:
    lines = [
        "# The planner's fitted numbers. Written by tests/bench/fit_planner.py from tests/data/planner/planner_truth.csv; see",
        "# docs/planner.md for what each means, where it starts from and how far it is off. Efficiencies are shares of",
        "# data-sheet peaks; *_us are microseconds.",
    ]
    for name, section in sections.items():
        lines += ["", f"[{name}]"]
        for key, value in section.items():
            lines.append(f"{key} = {_toml(value)}")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f'"{key}" = {_toml(item)}' for key, item in value.items()) + " }"
    return f'"{value}"' if isinstance(value, str) else f"{float(value):.4g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("truth", type=Path)
    parser.add_argument("--write", action="store_true", help="replace the package's coefficients")
    parser.add_argument("--stage", action="append", default=[])
    given = parser.parse_args()
    with given.truth.open(newline="", encoding="utf-8") as lines:
        points = read_measurements(lines)
    sections = tomllib.loads(START.read_text(encoding="utf-8"))
    sections = fit_all(points, sections, given.stage)
    if given.write:
        COEFFICIENTS.write_text(render(sections), encoding="utf-8")


if __name__ == "__main__":
    main()
