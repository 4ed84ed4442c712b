"""A configuration with gaps is planned from what it does say, with wider margins, and the plan says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from berth.planner.assess import margins
from berth.planner.demand import Demand
from berth.planner.partial import facts_from_partial
from berth.planner.report import as_plain
from berth.planner.survey import survey

CONFIGS = json.loads(
    (Path(__file__).parents[2] / "data" / "planner" / "model_configs.json").read_text(encoding="utf-8")
)["models"]
FULL = {
    "architecture": "LlamaForCausalLM", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_every_model_of_the_set_gets_a_plan(name: str) -> None:
    model = facts_from_partial(CONFIGS[name], name=name)
    found = survey(model, Demand(users=20))
    assert found.chosen is not None
    assert bool(model.assumed) == (name == "Command-R-08-2024")


def test_the_model_whose_configuration_has_gaps_is_planned_with_wider_margins() -> None:
    model = facts_from_partial(CONFIGS["Command-R-08-2024"], name="Command-R-08-2024")
    assert model.parameters == pytest.approx(32.3e9, rel=0.01)
    assert "leaves out hidden_size, num_hidden_layers, num_attention_heads, vocab_size" in model.assumed[0]
    whole = facts_from_partial(FULL)
    assert margins("vllm", model).speed == 2 * margins("vllm", whole).speed
    assert as_plain(survey(model, Demand(users=20)))["assumed"] == list(model.assumed)


@pytest.mark.parametrize(
    ("config", "parameters", "billions"),
    [
        ({"num_hidden_layers": None, "total_params_stated": 8_000_000_000}, None, 8.0),
        ({"hidden_size": None, "num_hidden_layers": None, "num_attention_heads": None, "intermediate_size": None}, 8_030_261_248, 8.03),
        ({"hidden_size": None, "num_attention_heads": None}, None, 8.0),
        ({"num_hidden_layers": None}, None, 8.0),
        ({"vocab_size": None}, None, 8.0),
    ],
)  # fmt: skip
def test_what_is_left_out_is_completed_from_what_is_there(
    config: dict[str, Any], parameters: int | None, billions: float
) -> None:
    model = facts_from_partial(FULL | config, parameters=parameters)
    assert model.parameters / 1e9 == pytest.approx(billions, rel=0.15)
    assert model.assumed


def test_a_whole_configuration_is_read_as_it_is() -> None:
    assert facts_from_partial(FULL).assumed == ()


def test_what_says_neither_shape_nor_size_is_refused() -> None:
    with pytest.raises(ValueError, match="neither"):
        facts_from_partial({"architectures": ["SomethingNew"]})
