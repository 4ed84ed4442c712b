"""GGUF to a Hugging Face folder of 16-bit safetensors. Run by the converters' interpreter, with nothing of Berth's imported."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from gguf_tokenizer import tokenizer_of
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--source", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    given = parser.parse_args()
    folder, name = str(given.source.parent), given.source.name
    # Both read the one file and nothing else: no network, no code of the model's.
    tokenizer = tokenizer_of(str(given.source)) or AutoTokenizer.from_pretrained(
        folder, gguf_file=name, local_files_only=True, trust_remote_code=False
    )
    model = AutoModelForCausalLM.from_pretrained(
        folder,
        gguf_file=name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
        local_files_only=True,
        trust_remote_code=False,
    )
    model.save_pretrained(given.out, safe_serialization=True, max_shard_size="4GB")
    tokenizer.save_pretrained(given.out)


if __name__ == "__main__":
    main()
