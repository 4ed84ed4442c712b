"""The data files say what was read and what was only entered, and what they say of it is so."""

from __future__ import annotations

import csv
import json
import re
from decimal import Decimal
from pathlib import Path

from berth.planner.hardware import gpu_by_name
from berth.planner.tables import document, rows

DATA = Path(__file__).parents[2] / "data" / "planner"
CONFIGS = json.loads((DATA / "model_configs.json").read_text(encoding="utf-8"))["models"].values()
FIELDS = {
    "hidden_size": "hidden", "num_hidden_layers": "layers", "num_attention_heads": "heads", "num_key_value_heads": "kv",
    "intermediate_size": "ffn", "vocab_size": "vocab",
}  # fmt: skip


def truth() -> list[dict[str, str]]:
    with (DATA / "planner_truth.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def same(row: dict[str, str], config: dict[str, object]) -> bool:
    told = {name: config[field] for field, name in FIELDS.items() if config[field] is not None}
    return len(told) >= 4 and all(int(row[name]) == value for name, value in told.items())


def test_models_that_were_read_are_as_their_configs_say() -> None:
    marks = {row["key"]: row["provenance"] for row in rows("models.csv", delimiter=";")}
    assert set(marks.values()) == {"read", "entered"}
    read = [row for row in rows("models.csv", delimiter=";") if row["provenance"] == "read"]
    assert len(read) >= 30
    assert [row["key"] for row in read if not any(same(row, config) for config in CONFIGS)] == []


def test_hardware_that_was_measured_is_in_the_measurements() -> None:
    measured = {
        gpu.key
        for row in truth()
        if row["kind"] in ("throughput", "latency") and row["gpu"] and (gpu := gpu_by_name(row["gpu"]))
    }
    marks = {row["key"]: row["provenance"] for row in rows("hardware.csv")}
    assert set(marks.values()) == {"entered", "entered+measured"}
    assert {key for key, mark in marks.items() if mark == "entered+measured"} == measured


def test_prices_that_name_a_measurement_are_its() -> None:
    prices = {row["id"]: Decimal(row["value"]) for row in truth() if row["kind"] == "price"}
    named = {}
    for tier in document("tiers.toml")["tier"]:
        if found := re.search(r"\((PRC-\d+)\)", tier["source"]):
            named[found.group(1)] = Decimal(str(tier["price"]))
    assert len(named) >= 7
    assert named == {name: prices[name] for name in named}
