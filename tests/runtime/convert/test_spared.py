"""Which matrices stay in 16 bits: a small random model, quantized by the real library, with bounds that cannot be kept and others."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from berth_runtime.convert import converters
from berth_runtime.convert.converters import python_of_converters

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(python_of_converters() is None, reason="the converters are not installed: make converters"),
    pytest.mark.timeout(1200),
]
SCRIPTS = Path(converters.__file__).parent / "scripts"
PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[1])
import torch
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import QuantizationModifier
from safetensors import safe_open
from spared import Bounds, predicted, spare
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(1)
shape = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1, vocab_size=96)
plain = LlamaForCausalLM(LlamaConfig(**shape)).to(torch.bfloat16).eval()
# A few columns that make their groups coarse, and that nothing comes through: this matrix loses most.
plain.model.layers[1].mlp.down_proj.weight.data[:, ::16] *= 60
plain.model.layers[1].mlp.up_proj.weight.data[::16] = 0
plain.save_pretrained(f"{sys.argv[2]}/plain")
windows = [torch.randint(0, 96, (40,)).tolist() for _ in range(3)]
told = {}
for name, divergence in (("strict", 0.0), ("easy", 1e9)):
    model = LlamaForCausalLM.from_pretrained(f"{sys.argv[2]}/plain", dtype="auto").eval()
    exact = predicted(model, windows)
    weights = QuantizationArgs(num_bits=4, symmetric=False, strategy="group", group_size=32)
    recipe = QuantizationModifier(config_groups={"g": QuantizationScheme(targets=["Linear"], weights=weights)}, ignore=["lm_head"])
    oneshot(model=model, recipe=recipe)
    fallbacks = spare(model, lambda: plain, windows, exact, Bounds(divergence, 1e9, 0.0))
    left = float((exact.exp() * (exact - predicted(model, windows))).sum(-1).mean())
    folder = f"{sys.argv[2]}/{name}"
    model.save_pretrained(folder, save_compressed=True)
    config = json.load(open(folder + "/config.json"))["quantization_config"]
    with safe_open(folder + "/model.safetensors", "pt") as file:
        keys = set(file.keys())
        kept = [key for key in keys if key.endswith("_proj.weight")]
        same = all(torch.equal(file.get_tensor(key), plain.get_parameter(key).data) for key in kept)
    told[name] = dict(fallbacks=fallbacks, left=left, ignore=config["ignore"], keys=sorted(keys), kept=sorted(kept), same=same)
json.dump(told, open(f"{sys.argv[2]}/told.json", "w"))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("spared")
    python = python_of_converters()
    assert python is not None
    done = subprocess.run(
        [python, "-B", "-c", PROGRAM, SCRIPTS, folder], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "told.json").read_text())


def test_a_model_within_the_bounds_is_quantized_throughout(told: Any) -> None:
    easy = told["easy"]
    assert easy["fallbacks"] == []
    assert easy["kept"] == []
    assert easy["ignore"] == ["lm_head"]


def test_what_loses_most_stays_as_it_was_and_is_told(told: Any) -> None:
    strict = told["strict"]
    assert strict["left"] < told["easy"]["left"], "sparing did not help"
    assert strict["same"], "a spared matrix is not what it was"
    spared = {key.removesuffix(".weight") for key in strict["kept"]}
    assert set(strict["ignore"]) == {*spared, "lm_head"}, "engines would take it for quantized"
    assert "model.layers.1.mlp.down_proj" in spared
    assert sum(each["tensors"] for each in strict["fallbacks"]) == len(spared)
    packed = [key for key in strict["keys"] if key.endswith("weight_packed")]
    assert packed, "half of the weights at most may stay"
    assert len(packed) + len(spared) == 3 * 7
    assert not any(key.startswith(f"{module}.weight_") for module in spared for key in strict["keys"])


def test_matrices_that_engines_join_stay_together(told: Any) -> None:
    spared = {key.removesuffix(".weight") for key in told["strict"]["kept"]}
    for layer in range(3):
        for joined in (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), ("mlp.gate_proj", "mlp.up_proj")):
            assert len({f"model.layers.{layer}.{name}" in spared for name in joined}) == 1
