"""A bounded reader of safetensors headers.

    8 bytes: length of the header, little-endian · the header: JSON {name: {dtype, shape, data_offsets}} · the data

The ranges of all tensors must tile the data exactly: no overlap, no gap, nothing behind. Their sizes are products in Python's
integers, which do not overflow.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from berth.catalog.intake.bounded import parse_json, regular_size
from berth.catalog.intake.refused import Refused

MAX_HEADER_BYTES: Final = 16 << 20
MAX_TENSORS: Final = 50_000
MAX_DIMENSIONS: Final = 8

# name: bits of an element
DTYPES: Final[dict[str, int]] = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32,
    "U32": 32, "F32": 32, "F64": 64, "I64": 64, "U64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
_NAME: Final = re.compile(r"[\w./:\-\[\]]{1,256}")


@dataclass(frozen=True)
class Tensor:
    dtype: str
    shape: tuple[int, ...]
    begin: int  # from the beginning of the data
    end: int

    @property
    def elements(self) -> int:
        product = 1
        for length in self.shape:
            product *= length
        return product

    @property
    def size(self) -> int:
        return self.end - self.begin


def read_safetensors(path: Path, name: str) -> dict[str, Tensor]:
    """The tensors of a file. Raises Refused, naming the fault."""
    size = regular_size(path, name)
    with path.open("rb") as file:
        if size < 10:
            raise Refused("not_safetensors", "it is too short to be a safetensors file. Download it again.", file=name)
        length = int.from_bytes(file.read(8), "little")
        if length > MAX_HEADER_BYTES:
            raise Refused(
                "safetensors_header",
                f"it claims a header of {length} bytes; at most {MAX_HEADER_BYTES} are possible.",
                file=name,
                value=str(length),
                limit=MAX_HEADER_BYTES,
            )
        if length > size - 8:
            raise Refused(
                "safetensors_truncated",
                "its header reaches beyond its end: it is cut short. Download it again.",
                file=name,
            )
        raw = file.read(length)
    if raw[:1] != b"{":
        raise Refused("not_safetensors", "its header does not begin as one. Download it again.", file=name)
    header = parse_json(raw.rstrip(b" "), name, safe=False, objects=MAX_TENSORS + 2)
    header.pop("__metadata__", None)
    tensors = {key: _tensor(key, value, name) for key, value in header.items()}
    if not tensors:
        raise Refused("safetensors_empty", "it has no tensors.", file=name)
    _check_tiling(tensors, size - 8 - length, name)
    return tensors


def _tensor(key: str, value: Any, name: str) -> Tensor:
    if not _NAME.fullmatch(key):
        raise Refused("safetensors_tensor_name", "a tensor has a name that no model would give it.", file=name)
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise Refused("safetensors_header", "an entry of its header is no tensor.", file=name)
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise Refused("safetensors_dtype", "a tensor has a type of numbers that is not known here.", file=name)
    if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS or not all(_whole(each) for each in shape):
        raise Refused("safetensors_shape", "a tensor's shape is not a short list of whole numbers.", file=name)
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_whole(each) for each in offsets):
        raise Refused("safetensors_offsets", "a tensor's place is not two whole numbers.", file=name)
    tensor = Tensor(dtype, tuple(shape), offsets[0], offsets[1])
    if tensor.size * 8 != tensor.elements * DTYPES[dtype]:
        raise Refused("safetensors_size", "a tensor's place is not as long as its shape and type demand.", file=name)
    return tensor


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check_tiling(tensors: dict[str, Tensor], size: int, name: str) -> None:
    at = 0
    for tensor in sorted(tensors.values(), key=lambda each: (each.begin, each.end)):
        if tensor.begin < at:
            raise Refused("safetensors_overlap", "two tensors share bytes of it.", file=name)
        if tensor.begin > at:
            raise Refused("safetensors_gap", "between two tensors there are bytes that belong to none.", file=name)
        at = tensor.end
    if at > size:
        raise Refused(
            "safetensors_truncated", "its tensors reach beyond its end: it is cut short. Download it again.", file=name
        )
    if at < size:
        raise Refused("safetensors_trailing_data", "behind its tensors there are bytes that belong to none.", file=name)
