"""A LoRA adapter as PEFT saves it, written as the one GGUF file that llama.cpp loads.

The names of tensors become GGUF's, by the table of the base's architecture; where llama.cpp keeps the rows of query and key
matrices in another order, the adapter's follow. Every tensor is held against the base that is really there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import gguf
import msgspec
import numpy as np

from berth_runtime.engines.gguf_head import Head, read_head
from berth_runtime.failure import Failure

CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"
# GGUF's names of the architectures whose tensors are known to differ from PEFT's by name and order of rows alone.
ARCHITECTURES: Final = frozenset({"llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "smollm3", "granite"})
_REORDERED: Final = frozenset({"llama", "smollm3", "granite"})  # rotary halves lie side by side, not interleaved
_DTYPES: Final[dict[str, Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}
_MOST_CONFIG: Final = 1 << 20
_MOST_HEADER: Final = 32 << 20
_KEY: Final = re.compile(r"(?:base_model\.model\.)?(?P<module>[\w.]{1,200})\.lora_(?P<half>[AB])(?:\.default)?\.weight")

_Size = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]


class _Tensor(msgspec.Struct):
    dtype: str
    shape: tuple[_Size, _Size]
    data_offsets: tuple[int, int]


class _Config(msgspec.Struct):
    r: Annotated[int, msgspec.Meta(ge=1, le=1024)]
    lora_alpha: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    use_rslora: bool = False
    use_dora: bool = False
    bias: str = "none"
    rank_pattern: dict[str, int] = {}
    alpha_pattern: dict[str, float] = {}
    modules_to_save: list[str] | None = None


class _Half(msgspec.Struct):
    """One of the two matrices of a module, where it lies and what it becomes."""

    name: str  # "blk.0.attn_q.weight.lora_b"
    shape: tuple[int, int]
    dtype: str
    begin: int
    end: int
    heads: int  # by which rows are to be put in order; 0: they stay
    factor: float


def write_gguf(folder: Path, base: Path, target: Path) -> None:
    """`folder`: adapter_config.json and adapter_model.safetensors; `base`: the GGUF file (of shards the first) that it goes with.
    Raises Failure `adapter_unreadable`."""
    try:
        _write(folder, read_head(base), target)
    except (OSError, ValueError, KeyError, msgspec.MsgspecError) as error:
        raise _unreadable(f"its files cannot be read ({type(error).__name__})") from None


def _write(folder: Path, base: Head, target: Path) -> None:
    config = msgspec.json.decode(_bounded(folder / CONFIG, _MOST_CONFIG), type=_Config)
    if config.use_dora or config.bias != "none" or config.modules_to_save:
        raise _unreadable("it is more than plain LoRA. Merge it into its base instead")
    architecture = str(_value(base, "general.architecture"))
    if architecture not in ARCHITECTURES:
        raise _unreadable(
            f"adapters for {architecture} cannot be converted for llama.cpp. Merge it into its base instead"
        )
    weights = folder / WEIGHTS
    halves = sorted(_halves(weights, config, architecture, base), key=lambda half: half.name)
    writer = gguf.GGUFWriter(target, architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", config.lora_alpha)
    for half in halves:
        writer.add_tensor_info(half.name, half.shape, np.dtype(np.float32), 4 * half.shape[0] * half.shape[1])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    raw = np.memmap(weights, dtype=np.uint8, mode="r")
    for half in halves:
        writer.write_tensor_data(_values(raw, half))
    writer.close()


def _halves(weights: Path, config: _Config, architecture: str, base: Head) -> Iterator[_Half]:
    tensors, start = _header(weights)
    names = gguf.get_tensor_name_map(_architecture(architecture), int(_value(base, f"{architecture}.block_count")))
    for key, tensor in tensors.items():
        match = _KEY.fullmatch(key)
        if match is None:
            raise _unreadable(
                "it changes parts that are no plain matrices (embeddings, say). Merge it into its base instead"
            )
        module, half = match["module"], match["half"]
        name = names.get_name(module, try_suffixes=(".weight",))
        own = base.tensors.get(f"{name}.weight")
        if name is None or own is None:
            raise _unreadable("it changes a part that its base does not have")
        rank, width = tensor.shape if half == "A" else tensor.shape[::-1]
        if len(own) != 2 or width != own[0 if half == "A" else 1]:
            raise _unreadable("it was made for a base of another size")
        heads = _heads(base, architecture, name) if half == "B" and architecture in _REORDERED else 0
        yield _Half(
            name=f"{name}.weight.lora_{half.lower()}",
            shape=tensor.shape,
            dtype=tensor.dtype,
            begin=start + tensor.data_offsets[0],
            end=start + tensor.data_offsets[1],
            heads=heads,
            factor=_factor(config, module, rank) if half == "B" else 1.0,
        )


def _factor(config: _Config, module: str, rank: int) -> float:
    """llama.cpp scales by alpha / rank with one alpha for all; what PEFT does otherwise goes into the matrix."""
    alpha = next((v for k, v in config.alpha_pattern.items() if _names(k, module)), config.lora_alpha)
    told = next((v for k, v in config.rank_pattern.items() if _names(k, module)), config.r)
    wanted = alpha / (math.sqrt(told) if config.use_rslora else told)
    return wanted * rank / config.lora_alpha


def _names(pattern: str, module: str) -> bool:
    """PEFT's patterns are ends of names; what else they may be is taken literally."""
    return module == pattern or module.endswith(f".{pattern}")


def _heads(base: Head, architecture: str, name: str) -> int:
    if name.endswith(".attn_q"):
        return int(_value(base, f"{architecture}.attention.head_count"))
    if name.endswith(".attn_k"):
        return int(_value(base, f"{architecture}.attention.head_count_kv"))
    return 0


def reordered(matrix: Any, heads: int) -> Any:
    """Rows of each head: both halves of its rotary pairs, from one after the other to by turns."""
    rows = matrix.shape[0] // heads // 2
    return matrix.reshape(heads, 2, rows, matrix.shape[1]).swapaxes(1, 2).reshape(matrix.shape)


def _values(raw: Any, half: _Half) -> Any:
    matrix = raw[half.begin : half.end].view(_DTYPES[half.dtype])
    if half.dtype == "BF16":
        matrix = (matrix.astype(np.uint32) << 16).view(np.float32)
    matrix = matrix.reshape(half.shape).astype(np.float32)
    if half.factor != 1.0:
        matrix = matrix * np.float32(half.factor)
    return np.ascontiguousarray(reordered(matrix, half.heads) if half.heads else matrix)


def _header(weights: Path) -> tuple[Mapping[str, _Tensor], int]:
    """What the file says of its tensors, all within it, and where their data begins."""
    size = weights.stat().st_size
    with weights.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > min(_MOST_HEADER, size - 8):
            raise ValueError("header")
        plain: dict[str, msgspec.Raw] = msgspec.json.decode(stream.read(length), type=dict[str, msgspec.Raw])
    plain.pop("__metadata__", None)
    found = {key: msgspec.json.decode(value, type=_Tensor) for key, value in plain.items()}
    start = 8 + length
    for tensor in found.values():
        begin, end = tensor.data_offsets
        wanted = tensor.shape[0] * tensor.shape[1] * _DTYPES[tensor.dtype].itemsize
        if not 0 <= begin <= end <= size - start or end - begin != wanted:
            raise ValueError("offsets")
    if not found:
        raise ValueError("empty")
    return found, start


def _bounded(path: Path, most: int) -> bytes:
    with path.open("rb") as stream:
        raw = stream.read(most + 1)
    if len(raw) > most:
        raise ValueError("size")
    return raw


def _value(base: Head, name: str) -> int | float | str:
    found = base.values.get(name)
    if found is None:
        raise KeyError(name)
    return found


def _architecture(name: str) -> gguf.MODEL_ARCH:
    return next(kind for kind, told in gguf.MODEL_ARCH_NAMES.items() if told == name)


def _unreadable(why: str) -> Failure:
    return Failure("adapter_unreadable", f"A LoRA adapter cannot be loaded beside its base: {why}.")
