"""The planner on a terminal, and what deployments are told about other hardware."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest

from berth.planner.__main__ import main
from berth.planner.anywhere import demand_of, read_demand, station_here, what_it_takes
from berth.planner.catalogue import model_by_name
from berth.planner.needs import BadNeeds, Needs, Quality
from berth.planner.survey import Fixed

TIERS = """
[[tier]]
key = "ours"
gpu = "l40s"
counts = [1, 2]
price = 0.5
source = "our own machines"
"""


def test_a_plan_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["llama-3.1-8b", "--users", "50", "--tiers", "a10g,l4", "--most-per-hour", "3"]) == 0
    out = capsys.readouterr().out
    assert "in flight (Little's law)" in out
    assert "not chosen (" in out


def test_a_folder_with_a_configuration_and_tiers_of_ones_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"], "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256, "tie_word_embeddings": True,
        "max_position_embeddings": 131072,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "tiers.toml").write_text(TIERS, encoding="utf-8")
    assert main([str(tmp_path), "--tier-file", str(tmp_path / "tiers.toml"), "--json", "--ttft-ms", "none"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["choice"]["tier"] == "ours"
    assert Decimal(plain["choice"]["per_hour"]) == Decimal("0.5")
    assert plain["demand"]["ttft_ms"] is None


def test_a_licence_and_a_model_of_which_only_the_size_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["New-9B", "--users", "5", "--licences", "MIT", "--licence", "mit"]) == 0
    assert "only the size is known (9 billion)" in capsys.readouterr().out
    assert main(["New-9B", "--users", "5", "--licences", "MIT"]) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-model"],
        ["llama-3.1-8b", "--users", "0"],
        ["llama-3.1-8b", "--most-per-hour", "much"],
        ["llama-3.1-8b", "--tier-file", "/nowhere"],
    ],
)
def test_what_means_nothing_is_told_and_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err


def test_nothing_that_fits_ends_with_1_and_says_what_would_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["llama-3.1-405b", "--tiers", "t4"]) == 1
    out = capsys.readouterr().out
    assert "What would help" in out
    assert "Allow other tiers" in out


def test_a_deployments_needs_are_a_demand_that_asks_for_nothing_else() -> None:
    demand = demand_of(Needs(concurrency=7, quality=Quality.HIGH, tokens_per_second=12.5))
    assert (demand.streams, demand.ttft_ms, demand.tokens_per_second, demand.loss) == (7, None, 12.5, 0.01)
    assert demand_of(Needs()).loss == 1.0


def test_hardware_of_this_installation_is_marked_as_here() -> None:
    model = model_by_name("llama-3.1-8b")
    assert model is not None
    assert station_here("rack", "an abacus", 1, None) is None
    ours = station_here("rack", "NVIDIA L40S", 2, Decimal("0.1"))
    assert ours is not None
    found = what_it_takes(model, read_demand({"users": 10}), Fixed(), here=[ours])
    assert (found["choice"]["tier"], found["choice"]["here"]) == ("rack", True)
    assert len(found["rejected"]) == 50 < found["considered"]


@pytest.mark.parametrize("price", ["NaN", "-1", "Infinity"])
def test_a_ceiling_is_a_number_of_at_least_0(price: str) -> None:
    with pytest.raises(BadNeeds) as caught:
        read_demand({"most_per_hour": price})
    assert caught.value.field == "demand.most_per_hour"
