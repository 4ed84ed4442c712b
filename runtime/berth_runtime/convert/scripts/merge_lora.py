"""A LoRA adapter merged into its base: W + scale * B @ A, tensor by tensor, without loading the model."""

from __future__ import annotations

import argparse
import json
import math
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

_KEPT = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
         "chat_template.jinja", "vocab.json", "merges.txt", "tokenizer.model", "added_tokens.json")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--source", required=True, type=Path, help="the base's folder")
    parser.add_argument("--adapter", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    given = parser.parse_args()
    config = json.loads((given.adapter / "adapter_config.json").read_text())
    if config.get("use_dora") or config.get("bias", "none") != "none" or config.get("modules_to_save"):
        raise SystemExit("only plain LoRA adapters can be merged: no DoRA, biases or whole modules")
    pairs = _pairs(given.adapter)
    given.out.mkdir(parents=True, exist_ok=True)
    merged: set[str] = set()
    for shard in sorted(given.source.glob("*.safetensors")):
        tensors: dict[str, torch.Tensor] = {}
        with safe_open(shard, framework="pt") as opened:
            metadata = opened.metadata()
            for name in opened.keys():  # noqa: SIM118 - no mapping
                tensor = opened.get_tensor(name)
                target = name.removesuffix(".weight")
                if target in pairs:
                    tensor = _merge(tensor, *pairs[target], config)
                    merged.add(target)
                tensors[name] = tensor.contiguous()
        save_file(tensors, given.out / shard.name, metadata=metadata)
    missing = sorted(set(pairs) - merged)
    if missing:
        raise SystemExit(f"the base has no matrix called {missing[0]}: the adapter belongs to another model")
    for name in (*_KEPT, "model.safetensors.index.json"):
        if (given.source / name).exists():
            shutil.copyfile(given.source / name, given.out / name)


def _pairs(adapter: Path) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """(A, B) by the name of the matrix that they change."""
    halves: dict[str, dict[str, torch.Tensor]] = {}
    with safe_open(adapter / "adapter_model.safetensors", framework="pt") as opened:
        for name in opened.keys():  # noqa: SIM118 - no mapping
            for half in ("lora_A", "lora_B"):
                if f".{half}." in name:
                    target = name.split(f".{half}.")[0].removeprefix("base_model.model.")
                    halves.setdefault(target, {})[half] = opened.get_tensor(name)
    return {target: (both["lora_A"], both["lora_B"]) for target, both in halves.items()}


def _merge(weight: torch.Tensor, a: torch.Tensor, b: torch.Tensor, config: dict[str, Any]) -> torch.Tensor:
    rank = a.shape[0]
    scale = config["lora_alpha"] / (math.sqrt(rank) if config.get("use_rslora") else rank)
    change = b.float() @ a.float()
    if config.get("fan_in_fan_out"):
        change = change.T
    return (weight.float() + scale * change).to(weight.dtype)


if __name__ == "__main__":
    main()
