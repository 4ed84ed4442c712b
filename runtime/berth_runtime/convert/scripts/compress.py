"""A Hugging Face folder of 16-bit safetensors to compressed-tensors: INT4 weights by GPTQ or AWQ, INT8 or FP8 weights and activations.

What is calibrated is held against the 16 bits on a part of the text that nothing was calibrated with. While it is further away than
`--divergence` (or agrees less, or is more surprised), the matrices that lose most stay in 16 bits (`spared.py`).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme, QuantizationStrategy, QuantizationType
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import GPTQModifier, QuantizationModifier
from llmcompressor.modifiers.transform.awq import AWQModifier
from llmcompressor.pipelines.cache import IntermediatesCache
from spared import Bounds, predicted, spare
from transformers import AutoModelForCausalLM, AutoTokenizer

_LENGTH = 256  # tokens of a window
_HELD_OUT = 4  # every so many windows one is kept apart to measure with
_AWQ_WINDOWS = 4  # AWQ asks each block `_AWQ_STEPS` times four about all of them
_AWQ_STEPS = 10
_ROUNDED = {"FP8": "FP8_DYNAMIC", "INT8 W8A8": "W8A8"}
# What vLLM's kernels take. Rows that 128 does not divide are those of small models, which lose most: they get the finest.
_GROUPS = (128, 32)


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--source", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--scheme", required=True, choices=["INT4 W4A16", "AWQ-INT4", "INT8 W8A8", "FP8"])
    parser.add_argument("--text", required=True, type=Path, help="neutral text to calibrate with, and to measure with")
    parser.add_argument("--divergence", required=True, type=float, help="nats a token, at most")
    parser.add_argument("--perplexity", required=True, type=float, help="0.15: 15 %% worse at most")
    parser.add_argument("--agreement", required=True, type=float, help="share of the same likeliest tokens, at least")
    given = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(given.source, local_files_only=True, trust_remote_code=False)
    model = _loaded(given.source)
    notes: dict[str, Any] = {}
    if given.scheme in _ROUNDED:
        # Activations are scaled as they come, so nothing has to be calibrated: the weights are rounded to the nearest.
        oneshot(
            model=model,
            recipe=QuantizationModifier(targets="Linear", scheme=_ROUNDED[given.scheme], ignore=["lm_head"]),
        )
    else:
        windows = _windows(tokenizer, given.text.read_text(encoding="utf-8"))
        bounds = Bounds(given.divergence, given.perplexity, given.agreement)
        _calibrated(model, given.scheme, windows, notes, bounds, given.source)
    model.save_pretrained(given.out, save_compressed=True)
    tokenizer.save_pretrained(given.out)
    (given.out / "notes.json").write_text(json.dumps(notes))


def _loaded(source: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(source, dtype="auto", local_files_only=True, trust_remote_code=False)


def _calibrated(
    model: Any, scheme: str, windows: list[list[int]], notes: dict[str, Any], bounds: Bounds, source: Path
) -> None:
    """Quantizes the model in place, and spares what would lose too much."""
    held = windows[_HELD_OUT - 1 :: _HELD_OUT] or windows
    seen = [window for number, window in enumerate(windows) if number % _HELD_OUT != _HELD_OUT - 1]
    awq = scheme == "AWQ-INT4"
    if awq:
        seen = seen[:: max(1, len(seen) // _AWQ_WINDOWS)][:_AWQ_WINDOWS]
    exact = predicted(model, held)
    oneshot(
        model=model,
        dataset=Dataset.from_dict({"input_ids": seen, "attention_mask": [[1] * len(each) for each in seen]}),
        recipe=_awq(model, notes) if awq else _gptq(model, notes),
        max_seq_length=_LENGTH,
        num_calibration_samples=len(seen),
        batch_size=len(seen),
    )
    # GPTQ rounds the weights in place, so that the plain ones are read anew; AWQ only moves factors, which are to stay.
    notes["fallbacks"] = spare(model, None if awq else lambda: _loaded(source), held, exact, bounds)


def _gptq(model: Any, notes: dict[str, Any]) -> Any:
    """In the order of what comes in (`static`, the library's default), which costs nothing when it is served."""
    return GPTQModifier(config_groups=_four_bits(model, notes), ignore=["lm_head"])


def _awq(model: Any, notes: dict[str, Any]) -> Any:
    """Columns that matter are made larger, and the layer before them smaller; then weights are rounded. Which layer is before which is
    known of the library's list of architectures; of others it takes Llama's names, and fails if they are not there."""
    if not torch.accelerator.is_available():
        # The library pins what it keeps for a faster way to a GPU, which PyTorch refuses where there is none.
        IntermediatesCache.pin_memory = lambda *_given, **_named: None
    return [
        AWQModifier(duo_scaling=True, n_grid=_AWQ_STEPS),
        QuantizationModifier(config_groups=_four_bits(model, notes), ignore=["lm_head"]),
    ]


def _four_bits(model: Any, notes: dict[str, Any]) -> Any:
    """Groups that divide every row, else a whole row. Each has a zero of its own and the span that loses least: of sixteen steps a
    symmetric scale around nought wastes several, which nearly doubles the divergence."""
    rows = {
        module.in_features
        for name, module in model.named_modules()
        if type(module).__name__ == "Linear" and "lm_head" not in name
    }
    size = next((group for group in _GROUPS if all(row % group == 0 for row in rows)), None)
    notes["group_size"] = size
    weights = QuantizationArgs(
        num_bits=4,
        type=QuantizationType.INT,
        symmetric=False,
        strategy=QuantizationStrategy.GROUP if size else QuantizationStrategy.CHANNEL,
        group_size=size,
        observer="memoryless_mse",
    )
    return {"group_0": QuantizationScheme(targets=["Linear"], weights=weights)}


def _windows(tokenizer: Any, text: str) -> list[list[int]]:
    """Of the neutral text, beside one another: no dataset is fetched, and no customer's text is used."""
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    whole = [tokens[start : start + _LENGTH] for start in range(0, len(tokens) - _LENGTH + 1, _LENGTH)]
    return whole or [tokens]


if __name__ == "__main__":
    main()
