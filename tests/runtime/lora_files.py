"""A LoRA adapter for the sample model, made of noise: it changes what the model says, and says nothing of use."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np

from berth_runtime.spec import Adapter, ModelFile
from tests.runtime.agents import file_of

HIDDEN = 576
RANK = 8


def gguf_adapter(path: Path, seed: int = 1, strength: float = 2.0) -> Path:
    """Writes an adapter for the query matrices of the first layers."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(RANK))
    random = np.random.default_rng(seed)
    for layer in range(8):
        for name in ("attn_q", "attn_output"):
            lora_a = random.normal(0, strength / HIDDEN**0.5, (RANK, HIDDEN)).astype(np.float32)
            lora_b = random.normal(0, strength / RANK**0.5, (HIDDEN, RANK)).astype(np.float32)
            writer.add_tensor(f"blk.{layer}.{name}.weight.lora_a", lora_a)
            writer.add_tensor(f"blk.{layer}.{name}.weight.lora_b", lora_b)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def peft_adapter(folder: Path, seed: int = 1, strength: float = 2.0) -> Path:
    """The same as PEFT writes it: adapter_config.json and adapter_model.safetensors."""
    folder.mkdir()
    random = np.random.default_rng(seed)
    tensors = {}
    for layer in range(8):
        for name in ("q_proj", "o_proj"):
            key = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{key}.lora_A.weight"] = random.normal(0, strength / HIDDEN**0.5, (RANK, HIDDEN)).astype(
                np.float32
            )
            tensors[f"{key}.lora_B.weight"] = random.normal(0, strength / RANK**0.5, (HIDDEN, RANK)).astype(np.float32)
    header, offset = {}, 0
    for key, value in tensors.items():
        header[key] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [offset, offset + value.nbytes]}
        offset += value.nbytes
    head = json.dumps(header).encode()
    data = len(head).to_bytes(8, "little") + head + b"".join(value.tobytes() for value in tensors.values())
    (folder / "adapter_model.safetensors").write_bytes(data)
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": RANK, "bias": "none"}
    config |= {"target_modules": ["q_proj", "o_proj"], "lora_dropout": 0.0, "base_model_name_or_path": "base"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def as_adapter(name: str, path: Path) -> Adapter:
    file = file_of(path)
    named = ModelFile(file.path, "weights", file.size, file.sha256, name="adapter.gguf")
    return Adapter(name, (named,), RANK)
