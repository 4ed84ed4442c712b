"""How long a full plan takes: every tier, engine and weight format, for each model of the truth set. `python tests/bench/plan_speed.py`.

Prints the CPU time of the median and the slowest model, each the best of five, in milliseconds. The goal is 100.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "platform"))

from berth.catalog.facts import ModelFacts  # noqa: E402
from berth.planner.demand import Demand  # noqa: E402
from berth.planner.partial import facts_from_partial  # noqa: E402
from berth.planner.survey import survey  # noqa: E402

CONFIGS = ROOT / "tests/data/planner/model_configs.json"
RUNS = 5


def models() -> dict[str, ModelFacts]:
    """Also the one whose configuration has gaps."""
    configs = json.loads(CONFIGS.read_text(encoding="utf-8"))["models"]
    return {name: facts_from_partial(config, name=name) for name, config in configs.items()}


def milliseconds(model: ModelFacts, demand: Demand) -> float:
    best = float("inf")
    for _ in range(RUNS):
        start = time.process_time()
        survey(model, demand)
        best = min(best, time.process_time() - start)
    return 1e3 * best


def main() -> None:
    demand = Demand(users=200)
    taken = {name: milliseconds(model, demand) for name, model in models().items()}
    slowest = max(taken, key=lambda name: taken[name])
    sys.stdout.write(
        f"{len(taken)} models, median {statistics.median(taken.values()):.0f} ms, slowest {slowest} {taken[slowest]:.0f} ms\n"
    )


if __name__ == "__main__":
    main()
