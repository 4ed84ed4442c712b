"""Small GGUF files with the tensor names of a real model and random weights."""

from __future__ import annotations

import hashlib
from pathlib import Path

import gguf
import numpy as np

from berth_runtime.spec import ModelFile


def write(
    path: Path, *, layers: int = 3, width: int = 576, inner: int = 1536, vocabulary: int = 512, first: int = 0
) -> ModelFile:
    """A file of 16-bit weights and what a job has to say of it. A later shard begins with layer `first`."""
    random = np.random.default_rng(7)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(layers)
    writer.add_embedding_length(width)
    writer.add_head_count(9)
    writer.add_head_count_kv(3)
    writer.add_file_type(1)
    writer.add_token_list(["a", "ü", "\n", "<|x|>"])
    writer.add_string("berth.test", "kept as it is: é")

    def add(name: str, rows: int, columns: int) -> None:
        writer.add_tensor(name, random.standard_normal((rows, columns), dtype=np.float32).astype(np.float16))

    if not first:
        add("token_embd.weight", vocabulary, width)
    for layer in range(first, first + layers):
        writer.add_tensor(f"blk.{layer}.attn_norm.weight", np.ones(width, dtype=np.float32))
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{layer}.{part}.weight", width, width)
        add(f"blk.{layer}.ffn_up.weight", inner, width)
        add(f"blk.{layer}.ffn_down.weight", width, inner)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return ModelFile(str(path), "weights", path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
