"""FP8 weights written out in 16 bits, for processors: hardly any has instructions for FP8, and without them PyTorch multiplies number by
number (3 million a second and core; vLLM pads a step to 17 rows besides), which takes minutes a token even of the smallest model.

Every weight is its FP8 number times its scale, rounded to BF16; activations stay in 16 bits. So the model predicts what its FP8 weights
say, and takes the memory and time of 16 bits.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

import msgspec
import numpy as np

from berth_runtime.failure import Failure

_FP8: Final = "F8_E4M3"
_SCALES: Final = ("weight_scale", "weight_scale_inv")
_DROPPED: Final = (*_SCALES, "input_scale", "activation_scale", "k_scale", "v_scale", "q_scale")
_DTYPES: Final[dict[str, Any]] = {"F32": np.dtype("<f4"), "BF16": np.dtype("<u2"), "F16": np.dtype("<f2")}
_MOST_HEADER: Final = 128 << 20
_MOST_CONFIG: Final = 16 << 20
_CHUNK: Final = 1 << 23  # weights worked on at once, or bytes copied

_Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]


class _Tensor(msgspec.Struct):
    dtype: str
    shape: tuple[_Size, ...]
    data_offsets: tuple[_Size, _Size]


class _Placed(msgspec.Struct):
    """A tensor and where it lies."""

    file: Path
    begin: int
    tensor: _Tensor


def widen(folder: Path) -> bool:
    """Replaces what `folder` (config.json and safetensors) has in FP8 by BF16, also links by files of their own, never what they lead
    to. False: nothing in it is FP8, or something is quantized otherwise, which stays as it is. Raises Failure."""
    if not (folder / "config.json").is_file():
        return False
    try:
        config = json.loads(_bounded(folder / "config.json"))
        block = _block(config.get("quantization_config"))
        files = sorted(folder.glob("*.safetensors"))
        placed = {name: each for file in files for name, each in _tensors(file)}
        if block is None or not _all_known(placed):
            return False
        drafts = [_draft(file, placed, block) for file in files]
        for draft, file in zip(drafts, files, strict=True):  # not before: a weight's scale may be in another file
            draft.replace(file)
        _tell(folder, config)
    except (ValueError, KeyError, TypeError, AttributeError, msgspec.MsgspecError) as error:
        raise Failure(
            "model_unreadable", f"The FP8 weights of this model cannot be read ({type(error).__name__})."
        ) from None
    except OSError as error:
        reason = "disk_full" if error.errno == errno.ENOSPC else "file_unreadable"
        raise Failure(reason, f"The FP8 weights cannot be written out in 16 bits: {error.strerror}.") from None
    return True


def _block(told: Any) -> tuple[int, int] | None:
    """Rows and columns that share a scale, where it is neither one for a row nor one for all ((0, 0)); None: not FP8 throughout."""
    if not isinstance(told, dict):
        return None
    if told.get("quant_method") == "fp8":
        rows, columns = told.get("weight_block_size") or (0, 0)
        return int(rows), int(columns)
    if told.get("quant_method") != "compressed-tensors":
        return None
    weights = [group["weights"] for group in told.get("config_groups", {}).values()]
    if not weights or any((each["type"], each["num_bits"]) != ("float", 8) for each in weights):
        return None
    rows, columns = weights[0].get("block_structure") or (0, 0)
    return int(rows), int(columns)


def _all_known(placed: Mapping[str, _Placed]) -> bool:
    quantized = {name: each.tensor for name, each in placed.items() if each.tensor.dtype.startswith("F8")}
    return bool(quantized) and all(
        tensor.dtype == _FP8 and len(tensor.shape) == 2 and _scale_of(name, placed) is not None
        for name, tensor in quantized.items()
    )


def _scale_of(name: str, placed: Mapping[str, _Placed]) -> _Placed | None:
    module = name.removesuffix("weight")
    return next((placed[module + scale] for scale in _SCALES if module + scale in placed), None)


def _tensors(file: Path) -> Iterator[tuple[str, _Placed]]:
    """What the file says of its tensors, all within it."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > min(_MOST_HEADER, size - 8):
            raise ValueError("header")
        plain: dict[str, msgspec.Raw] = msgspec.json.decode(stream.read(length), type=dict[str, msgspec.Raw])
    plain.pop("__metadata__", None)
    for name, raw in plain.items():
        tensor = msgspec.json.decode(raw, type=_Tensor)
        begin, end = tensor.data_offsets
        if not begin <= end <= size - 8 - length or (tensor.dtype == _FP8 and end - begin != np.prod(tensor.shape)):
            raise ValueError("offsets")
        yield name, _Placed(file, 8 + length + begin, tensor)


def _draft(file: Path, placed: Mapping[str, _Placed], block: tuple[int, int]) -> Path:
    """The file anew, under a name of its own."""
    kept = {
        name: each for name, each in placed.items() if each.file == file and name.rsplit(".", 1)[-1] not in _DROPPED
    }
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, each in kept.items():
        begin, end = each.tensor.data_offsets
        wide = each.tensor.dtype == _FP8
        size = (end - begin) * (2 if wide else 1)
        dtype = "BF16" if wide else each.tensor.dtype
        header[name] = {"dtype": dtype, "shape": each.tensor.shape, "data_offsets": (offset, offset + size)}
        offset += size
    head = json.dumps(header).encode()
    head = head.ljust(-(-len(head) // 8) * 8)
    draft = file.with_name(f"{file.name}.wide")
    with draft.open("wb") as target, file.open("rb") as source:
        target.write(len(head).to_bytes(8, "little") + head)
        for name, each in kept.items():
            if each.tensor.dtype == _FP8:
                _write_wide(target, each, _scale_of(name, placed), block)
            else:
                _copy(target, source, each)
    return draft


def _copy(target: BinaryIO, source: BinaryIO, each: _Placed) -> None:
    begin, end = each.tensor.data_offsets
    source.seek(each.begin)
    left = end - begin
    while left:
        part = source.read(min(left, _CHUNK))
        if not part:
            raise ValueError("short")
        target.write(part)
        left -= len(part)


def _write_wide(target: BinaryIO, each: _Placed, scale: _Placed | None, block: tuple[int, int]) -> None:
    if scale is None:
        raise KeyError("scale")
    rows, columns = each.tensor.shape
    if not rows * columns:
        return
    codes = np.memmap(each.file, dtype=np.uint8, mode="r", offset=each.begin, shape=(rows, columns))
    scales = _scales(scale)
    step = max(1, _CHUNK // columns)
    for first in range(0, rows, step):
        last = min(first + step, rows)
        wide = _E4M3[codes[first:last]] * _spread(scales, (first, last), (rows, columns), block)
        target.write(_bf16(wide).tobytes())


def _scales(scale: _Placed) -> Any:
    """In 32 bits: a matrix, one row for all that share it."""
    dtype = _DTYPES[scale.tensor.dtype]
    count = int(np.prod(scale.tensor.shape, dtype=np.int64))
    with scale.file.open("rb") as stream:
        stream.seek(scale.begin)
        values = np.frombuffer(stream.read(count * dtype.itemsize), dtype=dtype)
    if scale.tensor.dtype == "BF16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    shape = scale.tensor.shape if len(scale.tensor.shape) == 2 else (count, 1)
    return values.astype(np.float32).reshape(shape)


def _spread(scales: Any, part: tuple[int, int], shape: tuple[int, int], block: tuple[int, int]) -> Any:
    """The scales of these rows, to be multiplied with them."""
    chosen = scales
    if scales.shape[0] not in (1, shape[0]):
        if -(-shape[0] // block[0]) != scales.shape[0]:
            raise ValueError("scales")
        chosen = scales[np.arange(*part) // block[0]]
    elif scales.shape[0] == shape[0]:
        chosen = scales[slice(*part)]
    if scales.shape[1] not in (1, shape[1]):
        if -(-shape[1] // block[1]) != scales.shape[1]:
            raise ValueError("scales")
        chosen = np.repeat(chosen, block[1], axis=1)[:, : shape[1]]
    return chosen


def _bf16(values: Any) -> Any:
    """To the nearest, ties to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def _e4m3(code: int) -> float:
    sign, exponent, fraction = -1.0 if code & 0x80 else 1.0, code >> 3 & 0xF, code & 7
    if exponent == 0xF and fraction == 7:
        return float("nan")
    return sign * (fraction / 8 * 2.0**-6 if exponent == 0 else (1 + fraction / 8) * 2.0 ** (exponent - 7))


_E4M3: Final = np.array([_e4m3(code) for code in range(256)], dtype=np.float32)


def _tell(folder: Path, config: dict[str, Any]) -> None:
    """The configuration without its quantization, and the index without what is gone."""
    del config["quantization_config"]
    _write(folder / "config.json", config)
    for file in folder.glob("*.safetensors.index.json"):
        index = json.loads(_bounded(file))
        index["weight_map"] = {
            name: place for name, place in index["weight_map"].items() if name.rsplit(".", 1)[-1] not in _DROPPED
        }
        _write(file, index)


def _write(file: Path, content: dict[str, Any]) -> None:
    draft = file.with_name(f"{file.name}.wide")
    draft.write_text(json.dumps(content, indent=1))
    draft.replace(file)


def _bounded(path: Path) -> bytes:
    with path.open("rb") as stream:
        raw = stream.read(_MOST_CONFIG + 1)
    if len(raw) > _MOST_CONFIG:
        raise ValueError("size")
    return raw
