"""A Hugging Face folder of 16-bit safetensors to compressed-tensors: INT4 weights by GPTQ, INT8 or FP8 weights and activations."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme, QuantizationStrategy, QuantizationType
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import GPTQModifier, QuantizationModifier
from transformers import AutoModelForCausalLM, AutoTokenizer

_SAMPLES = 64
_LENGTH = 256  # tokens
_ROUNDED = {"FP8": "FP8_DYNAMIC", "INT8 W8A8": "W8A8"}
_GROUPS = (128, 64, 32)  # what vLLM's kernels take, largest first


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--source", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--scheme", required=True, choices=["INT4 W4A16", "INT8 W8A8", "FP8"])
    parser.add_argument("--text", required=True, type=Path, help="neutral text to calibrate with")
    given = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(given.source, local_files_only=True, trust_remote_code=False)
    model = AutoModelForCausalLM.from_pretrained(
        given.source, dtype="auto", local_files_only=True, trust_remote_code=False
    )
    notes: dict[str, Any] = {}
    if given.scheme in _ROUNDED:
        # Activations are scaled as they come, so nothing has to be calibrated: the weights are rounded to the nearest.
        oneshot(
            model=model,
            recipe=QuantizationModifier(targets="Linear", scheme=_ROUNDED[given.scheme], ignore=["lm_head"]),
        )
    else:
        oneshot(
            model=model,
            dataset=_samples(tokenizer, given.text.read_text(encoding="utf-8")),
            recipe=_gptq(model, notes),
            max_seq_length=_LENGTH,
            num_calibration_samples=_SAMPLES,
        )
    model.save_pretrained(given.out, save_compressed=True)
    tokenizer.save_pretrained(given.out)
    (given.out / "notes.json").write_text(json.dumps(notes))


def _gptq(model: Any, notes: dict[str, Any]) -> Any:
    """The largest group that divides every row; else one scale for a whole row."""
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
        symmetric=True,
        strategy=QuantizationStrategy.GROUP if size else QuantizationStrategy.CHANNEL,
        group_size=size,
    )
    return GPTQModifier(
        config_groups={"group_0": QuantizationScheme(targets=["Linear"], weights=weights)}, ignore=["lm_head"]
    )


def _samples(tokenizer: Any, text: str) -> Any:
    """Overlapping windows of the neutral text: no dataset is fetched, and no customer's text is used."""
    tokens = tokenizer(text)["input_ids"]
    step = max(1, (len(tokens) - _LENGTH) // _SAMPLES)
    windows = [tokens[start : start + _LENGTH] for start in range(0, max(1, len(tokens) - _LENGTH), step)][:_SAMPLES]
    return Dataset.from_dict({"input_ids": windows, "attention_mask": [[1] * len(each) for each in windows]})


if __name__ == "__main__":
    main()
