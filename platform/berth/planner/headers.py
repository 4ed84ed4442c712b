"""Exact parameter counts from the headers of safetensors files. Only headers are read: the first 8 bytes say how long they are."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

MOST: Final = 100 << 20  # bytes of a header: the format's own limit
_PACKED: Final = {
    "U8": 2,
    "I8": 1,
}  # weights that several values share a byte of are counted by the caller's format, not here

ReadRange = Callable[[int, int], bytes]  # (offset, length) -> bytes; a file or a range request


def header(read: ReadRange) -> dict[str, Any]:
    """The header of one file. Raises ValueError when it is none."""
    length = int.from_bytes(read(0, 8), "little")
    if not 2 <= length <= MOST:
        raise ValueError("It is not a safetensors file: its header has no sensible length.")
    found = json.loads(read(8, length))
    if not isinstance(found, dict):
        raise ValueError("It is not a safetensors file: its header is no object.")
    found.pop("__metadata__", None)
    return found


def elements(found: dict[str, Any]) -> int:
    """Elements of all tensors that hold numbers of the model: scales and zero points of quantization left out."""
    total = 0
    for name, tensor in found.items():
        if not name.endswith((".scales", ".qzeros", ".g_idx", "_scale", "_scale_inv", ".weight_zero_point")):
            total += math.prod(tensor["shape"])
    return total


def parameters_in(folder: Path) -> int | None:
    """Of all safetensors files of a folder. None: there are none, or their weights are packed and cannot be counted."""
    files = sorted(folder.glob("*.safetensors"))
    total = 0
    for path in files:
        with path.open("rb") as stream:

            def read(offset: int, length: int) -> bytes:
                stream.seek(offset)
                return stream.read(length)

            found = header(read)
        if any(name.endswith(".qweight") or tensor.get("dtype") in _PACKED for name, tensor in found.items()):
            return None
        total += elements(found)
    return total or None
