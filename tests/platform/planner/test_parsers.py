"""Tool and reasoning parsers by family: known to the engine, and none where nobody knows better."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from berth.planner.parsers import Parsers, parsers_for
from berth.planner.tables import document

ARGUMENTS = Path(__file__).parents[2] / "data" / "vllm-arguments.json"


@pytest.mark.parametrize(
    ("architecture", "name", "expected"),
    [
        ("Qwen2ForCausalLM", "qwen2.5-7b-instruct", Parsers("hermes")),
        ("Qwen3ForCausalLM", "Qwen3 8B", Parsers("hermes", "qwen3")),
        ("Qwen3MoeForCausalLM", "qwen3-coder-30b-a3b", Parsers("qwen3_coder")),
        ("LlamaForCausalLM", "Llama-3.1 8B Instruct", Parsers("llama3_json")),
        ("LlamaForCausalLM", "smollm2-135m-instruct", Parsers()),  # nobody says how it writes them
        ("LlamaForCausalLM", "DeepSeek-R1-Distill-Llama-8B", Parsers("hermes", "deepseek_r1")),
        ("GptOssForCausalLM", "gpt-oss-20b", Parsers("openai", "openai_gptoss")),
        ("MistralForCausalLM", "mistral-small", Parsers("mistral")),
        ("BertModel", "bge", Parsers()),
    ],
)
def test_by_family(architecture: str, name: str, expected: Parsers) -> None:
    assert parsers_for("vllm", architecture, name, takes_tools=True) == expected
    assert parsers_for("vllm", architecture, name, takes_tools=False) == Parsers(None, expected.reasoning)
    assert parsers_for("llamacpp", architecture, name, takes_tools=True) == Parsers()


def test_the_engine_knows_all_of_them() -> None:
    options = json.loads(ARGUMENTS.read_text())["options"]
    for key, option in (("tools", "--tool-call-parser"), ("reasoning", "--reasoning-parser")):
        named = {family[key] for family in document("parsers.toml")["family"] if key in family}
        assert named and named <= set(options[option]["choices"])
