"""`python -m berth.planner MODEL [wishes]`: what would run a model for these wishes, and why. Nothing is deployed.

MODEL is the name of a public model (`llama-3.1-8b`), a folder with a `config.json`, or a path to one.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import msgspec

from berth.catalog.facts import ModelFacts
from berth.planner.catalogue import model_by_name, model_by_size, size_in_name
from berth.planner.demand import Demand
from berth.planner.headers import parameters_in
from berth.planner.market import read_stations, stations
from berth.planner.partial import facts_from_partial
from berth.planner.report import as_plain, lines
from berth.planner.survey import Fixed, survey
from berth.planner.tables import parse

LISTS = ("engines", "tiers", "regions", "features", "licences")


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    try:
        model = _model(given.model)
        demand = msgspec.convert(_wishes(given, Demand), Demand)
        fixed = msgspec.convert(
            {
                name.removeprefix("pin_"): value
                for name, value in vars(given).items()
                if name.startswith("pin_") and value
            },
            Fixed,
        )
        market = (
            read_stations(parse(given.tier_file.read_text(encoding="utf-8"))["tier"]) if given.tier_file else stations()
        )
    except (OSError, ValueError, KeyError, msgspec.ValidationError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    found = survey(model, demand, fixed=fixed, market=market, licence=given.licence)
    output = json.dumps(as_plain(found), indent=1) if given.json else "\n".join(lines(found))
    sys.stdout.write(output + "\n")
    return 0 if found.chosen else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m berth.planner", description="What would run a model, and why.")
    parser.add_argument("model", help="a public model's name, or a folder or file with its config.json")
    for name in Demand.__struct_fields__:
        if name in LISTS:
            parser.add_argument(f"--{name}", default=None, help="comma-separated")
        else:
            parser.add_argument(f"--{name.replace('_', '-')}", default=None)
    for name in Fixed.__struct_fields__:
        kind = int if name in ("devices", "kv_bits") else str
        parser.add_argument(f"--pin-{name.replace('_', '-')}", type=kind, default=None)
    parser.add_argument("--tier-file", type=Path, help="tiers and prices of your own, in the form of data/tiers.toml")
    parser.add_argument(
        "--licence", default="", help="the model's own, as an SPDX name, where --licences allows some only"
    )
    parser.add_argument("--json", action="store_true")
    return parser


def _wishes(given: argparse.Namespace, kind: type[Demand]) -> dict[str, Any]:
    wishes: dict[str, Any] = {}
    for name in kind.__struct_fields__:
        value = getattr(given, name)
        if value is None:
            continue
        if name in LISTS:
            wishes[name] = tuple(part.strip() for part in value.split(",") if part.strip())
        elif name == "quality":
            wishes[name] = value
        elif name.startswith("most_per"):
            wishes[name] = _decimal(name, value)
        elif value.lower() == "none":
            wishes[name] = None
        else:
            wishes[name] = int(value) if value.isdigit() else float(value)
    return wishes


def _decimal(name: str, value: str) -> Decimal:
    try:
        return Decimal(value)
    except InvalidOperation:
        raise ValueError(f"--{name.replace('_', '-')} is not an amount: {value}") from None


def _model(name: str) -> ModelFacts:
    path = Path(name)
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        return facts_from_partial(json.loads(path.read_text(encoding="utf-8")), parameters=parameters_in(path.parent))
    found, size = model_by_name(name), size_in_name(name)
    if found is None and size is not None:
        return model_by_size(*size)
    if found is None:
        raise ValueError(f"{name} is neither a public model that is known here nor a folder with a config.json.")
    return found


if __name__ == "__main__":
    raise SystemExit(main())
