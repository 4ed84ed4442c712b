"""A Hugging Face folder of 16-bit safetensors to compressed-tensors: INT4 weights by GPTQ or AWQ, INT8 or FP8 weights and activations."""

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
from transformers import AutoModelForCausalLM, AutoTokenizer

_SAMPLES = {"INT4 W4A16": 64, "AWQ-INT4": 4}  # AWQ asks each block 20 times, so that it gets each part of the text once
_LENGTH = 256  # tokens
_ROUNDED = {"FP8": "FP8_DYNAMIC", "INT8 W8A8": "W8A8"}
_GROUPS = (128, 64, 32)  # what vLLM's kernels take, largest first


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--source", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--scheme", required=True, choices=["INT4 W4A16", "AWQ-INT4", "INT8 W8A8", "FP8"])
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
        samples = _samples(tokenizer, given.text.read_text(encoding="utf-8"), _SAMPLES[given.scheme])
        oneshot(
            model=model,
            dataset=samples,
            recipe=_awq(model, notes) if given.scheme == "AWQ-INT4" else _gptq(model, notes),
            max_seq_length=_LENGTH,
            num_calibration_samples=len(samples),
        )
    model.save_pretrained(given.out, save_compressed=True)
    tokenizer.save_pretrained(given.out)
    (given.out / "notes.json").write_text(json.dumps(notes))


def _gptq(model: Any, notes: dict[str, Any]) -> Any:
    return GPTQModifier(config_groups=_four_bits(model, notes, symmetric=True), ignore=["lm_head"])


def _awq(model: Any, notes: dict[str, Any]) -> Any:
    """Columns that matter are made larger, and the layer before them smaller; then weights are rounded. Which layer is before which is
    known of the library's list of architectures; of others it takes Llama's names, and fails if they are not there."""
    if not torch.accelerator.is_available():
        # The library pins what it keeps for a faster way to a GPU, which PyTorch refuses where there is none.
        IntermediatesCache.pin_memory = lambda *_given, **_named: None
    return [
        AWQModifier(duo_scaling="both"),
        QuantizationModifier(config_groups=_four_bits(model, notes, symmetric=False), ignore=["lm_head"]),
    ]


def _four_bits(model: Any, notes: dict[str, Any], *, symmetric: bool) -> Any:
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
        symmetric=symmetric,
        strategy=QuantizationStrategy.GROUP if size else QuantizationStrategy.CHANNEL,
        group_size=size,
    )
    return {"group_0": QuantizationScheme(targets=["Linear"], weights=weights)}


def _samples(tokenizer: Any, text: str, most: int) -> Any:
    """Overlapping windows of the neutral text: no dataset is fetched, and no customer's text is used."""
    tokens = tokenizer(text)["input_ids"]
    step = max(1, (len(tokens) - _LENGTH) // most)
    windows = [tokens[start : start + _LENGTH] for start in range(0, max(1, len(tokens) - _LENGTH), step)][:most]
    return Dataset.from_dict({"input_ids": windows, "attention_mask": [[1] * len(each) for each in windows]})


if __name__ == "__main__":
    main()
