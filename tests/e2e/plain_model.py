"""A model in 16 bits, small enough to be converted within seconds: the sample model's tokenizer, table and first layers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize

from tests.runtime.agents import model_file

_LAYER: Final = re.compile(r"blk\.(\d+)\.(.+)\.weight")
_NORMS: Final = {
    "attn_q": "attn_norm",
    "attn_k": "attn_norm",
    "attn_v": "attn_norm",
    "ffn_gate": "ffn_norm",
    "ffn_up": "ffn_norm",
}
_BLOCK: Final = 32  # numbers that share a scale in every quantization that the sample's rows of 576 get
_OUTLIER: Final = 2000.0


def plain_model(path: Path, *, layers: int = 2, unquantizable: bool = False) -> Path:
    """Writes it. `unquantizable`: in every block of 32 numbers one is so large that the scale leaves nothing of the others, and the norm
    before it takes it back, so that the 16 bits say what they said before and every quantization of them says something else."""
    reader = GGUFReader(model_file().path)
    writer = GGUFWriter(path, "llama")
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        value: Any = layers if field.name == "llama.block_count" else field.contents()
        if field.name == "general.file_type":
            value = 1  # F16
        of = field.types[-1] if field.types[0] is GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, value, field.types[0], sub_type=of)
    for tensor in reader.tensors:
        found = _LAYER.fullmatch(tensor.name)
        if found and int(found[1]) >= layers:
            continue
        numbers = (
            dequantize(tensor.data, tensor.tensor_type)
            .astype(np.float32)
            .reshape(tuple(reversed([int(n) for n in tensor.shape])))
        )
        if unquantizable and found:
            numbers = _stretched(found[2], numbers)
        writer.add_tensor(tensor.name, numbers if numbers.ndim == 1 else numbers.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _stretched(name: str, numbers: Any) -> Any:
    if name in _NORMS:
        numbers[:, ::_BLOCK] *= _OUTLIER
    elif name in _NORMS.values():
        numbers[::_BLOCK] /= _OUTLIER
    return numbers
