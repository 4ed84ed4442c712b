"""How well the planner explains a file of measurements: `python -m berth.planner.evaluate FILE.csv [--json OUT]`.

For each kind, metric and source: points, how many the planner can answer, the median and 90th percentile of the absolute relative
error, the bias (median of the signed error), and how many measurements lie in the range where the answer is one. What it cannot answer is
listed by reason. The worst ten of each kind are named.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from berth.planner.answers import Answer, Unanswerable, answer
from berth.planner.answers_quality import answer_quality, references
from berth.planner.measurements import BadFile, Measurement, read_measurements
from berth.planner.oddities import oddity
from berth.planner.ranking import Ranked, Value, rank

WORST = 10


class Answered(msgspec.Struct, frozen=True):
    point: Measurement
    answer: Answer

    @property
    def error(self) -> float | None:
        """Predicted over measured, less 1. None where the measurement is 0: see `wrong`."""
        return self.answer.value / self.point.value - 1.0 if self.point.value else None

    @property
    def size(self) -> float:
        """For sorting: a wrong yes-or-no counts as 1."""
        return abs(self.error) if self.error is not None else float(self.answer.value != self.point.value)

    @property
    def inside(self) -> bool | None:
        low, high = self.answer.low, self.answer.high
        return None if low is None or high is None else low <= self.point.value <= high


class Report(msgspec.Struct, frozen=True):
    points: int
    answered: tuple[Answered, ...]
    unanswered: tuple[tuple[Measurement, str], ...]


def evaluate(points: Sequence[Measurement]) -> Report:
    known = references(points)
    answered, unanswered = [], []
    for point in points:
        if not math.isfinite(point.value):
            unanswered.append((point, "the value is not a number"))
            continue
        try:
            found = answer_quality(point, known) if point.kind == "quality" else answer(point)
            answered.append(Answered(point, found))
        except Unanswerable as why:
            unanswered.append((point, str(why)))
    return Report(len(points), tuple(answered), tuple(unanswered))


def summary(items: Sequence[Answered]) -> dict[str, Any]:
    sizes = sorted(item.size for item in items)
    signed = [item.error for item in items if item.error is not None]
    inside = [item.inside for item in items if item.inside is not None]
    return {
        "answered": len(items),
        "median": statistics.median(sizes) if sizes else None,
        "p90": sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))] if sizes else None,
        "bias": statistics.median(signed) if signed else None,
        "in_range": sum(inside) / len(inside) if inside else None,
    }


def as_json(report: Report) -> dict[str, Any]:
    groups: dict[tuple[str, str, str], list[Answered]] = defaultdict(list)
    missing: Counter[tuple[str, str, str]] = Counter()
    for item in report.answered:
        groups[(item.point.kind, item.point.metric, item.point.source)].append(item)
    for point, _ in report.unanswered:
        missing[(point.kind, point.metric, point.source)] += 1
    rows = []
    for kind, metric, source in sorted(set(groups) | set(missing)):
        items = groups[(kind, metric, source)]
        row = {"kind": kind, "metric": metric, "source": source, "points": len(items) + missing[(kind, metric, source)]}
        rows.append(row | summary(items))
    kinds = sorted({item.point.kind for item in report.answered})
    reasons = Counter((point.kind, why) for point, why in report.unanswered)
    return {
        "points": report.points,
        "answered": len(report.answered),
        "groups": rows,
        "by_metric": _by_metric(report),
        "worst": {kind: [_worst(item) for item in _largest(report, kind)] for kind in kinds},
        "unanswered": [
            {"kind": kind, "reason": why, "points": count} for (kind, why), count in sorted(reasons.items())
        ],
        "ranking": {name: _ranked(found) for name, found in rankings(report).items()},
        "predictions": [_prediction(item) for item in report.answered],
    }


def _prediction(item: Answered) -> dict[str, Any]:
    found = item.answer
    return {
        "id": item.point.id,
        "measured": item.point.value,
        "predicted": found.value,
        "low": found.low,
        "high": found.high,
    }


def _by_metric(report: Report) -> list[dict[str, Any]]:
    groups: dict[tuple[str, str], list[Answered]] = defaultdict(list)
    for item in report.answered:
        groups[(item.point.kind, item.point.metric)].append(item)
    return [{"kind": kind, "metric": metric} | summary(items) for (kind, metric), items in sorted(groups.items())]


def _largest(report: Report, kind: str) -> list[Answered]:
    return sorted(
        (item for item in report.answered if item.point.kind == kind), key=lambda item: (-item.size, item.point.id)
    )[:WORST]


def _worst(item: Answered) -> dict[str, Any]:
    return {
        "id": item.point.id, "metric": item.point.metric, "measured": item.point.value, "predicted": item.answer.value,
        "error": item.error, "why": oddity(item.point, item.answer),
    }  # fmt: skip


def rankings(report: Report) -> dict[str, Ranked]:
    """Configurations of one source and metric, and of all sources of a metric."""
    near, far = [], []
    for item in report.answered:
        if item.point.kind not in ("throughput", "latency") or not item.point.value:
            continue
        near.append(Value((item.point.source, item.point.metric), item.point.value, item.answer.value))
        far.append(Value((item.point.metric, item.point.unit), item.point.value, item.answer.value))
    return {
        "over 20 % apart, one source": rank(near, least=0.2),
        "20-50 % apart, one source": rank(near, least=0.2, most=0.5),
        "over 20 % apart, all sources": rank(far, least=0.2),
        "20-50 % apart, all sources": rank(far, least=0.2, most=0.5),
    }


def _ranked(found: Ranked) -> dict[str, Any]:
    return {"pairs": found.pairs, "right": found.right, "share": found.share}


def text(report: Report) -> str:
    data = as_json(report)
    lines = [f"{data['answered']} of {data['points']} points answered", ""]
    lines.append(
        f"{'kind':11} {'metric':34} {'source':46} {'points':>6} {'answ.':>6} {'median':>8} {'p90':>8} {'bias':>8} {'in range':>8}"
    )
    lines += [_line(row, row["source"][:46], row["points"]) for row in data["groups"]]
    lines += ["", "all sources together"]
    lines += [_line(row, "", row["answered"]) for row in data["by_metric"]]
    for kind, worst in data["worst"].items():
        lines += ["", f"worst of {kind}"]
        lines += [_worst_line(one) for one in worst]
    lines += ["", "not answered, by reason"]
    lines += [f"  {row['points']:5d}  {row['kind']:11} {row['reason']}" for row in data["unanswered"]] or ["  none"]
    lines += ["", "pairs of configurations ranked the right way round"]
    lines += [f"  {name:32} {_percent(row['share'])} of {row['pairs']}" for name, row in data["ranking"].items()]
    return "\n".join(lines)


def _worst_line(one: dict[str, Any]) -> str:
    values = f"measured {one['measured']:<12g} predicted {one['predicted']:<12.5g} {_percent(one['error']):>9}"
    return f"  {one['id']:10} {one['metric']:30} {values}  {one['why']}"


def _line(row: dict[str, Any], source: str, points: int) -> str:
    numbers = " ".join(f"{_percent(row[name]):>8}" for name in ("median", "p90", "bias", "in_range"))
    return f"{row['kind']:11} {row['metric']:34} {source:46} {points:6d} {row['answered']:6d} {numbers}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m berth.planner.evaluate", description="How well the planner explains measurements."
    )
    parser.add_argument("file", type=Path)
    parser.add_argument(
        "--json", type=Path, metavar="OUT", help="also write everything, every prediction included, as JSON"
    )
    given = parser.parse_args(arguments)
    try:
        with given.file.open(newline="", encoding="utf-8-sig") as lines:
            report = evaluate(read_measurements(lines))
    except (OSError, BadFile, UnicodeDecodeError) as error:
        sys.stderr.write(f"{given.file}: {error}\n")
        return 2
    if given.json:
        given.json.write_text(json.dumps(as_json(report), indent=1), encoding="utf-8")
    sys.stdout.write(text(report) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
