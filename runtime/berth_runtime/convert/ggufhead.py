"""The head of a GGUF file that is to be written: the source's own metadata byte for byte, other types, other offsets.

Copying the bytes keeps what no library knows (and the exact tokenizer); only what a new mixture changes is replaced.
Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, Final

import gguf
import msgspec

_REPLACED: Final = ("general.file_type", "general.quantization_version")
_DROPPED: Final = ("split.no", "split.count", "split.tensors.count")
_UINT32: Final = 4
_QUANTIZATION_VERSION: Final = 2


class Planned(msgspec.Struct, frozen=True):
    """A tensor of the file to be written."""

    name: str
    dims: tuple[int, ...]  # GGUF's order: the first is the length of a row
    type: int
    size: int  # bytes
    offset: int  # from the beginning of the data


def alignment_of(source: gguf.GGUFReader) -> int:
    """Bytes to whose multiples tensors begin."""
    return int(source.alignment)


def aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def head(source: gguf.GGUFReader, tensors: Iterable[Planned], file_type: int) -> bytes:
    """Everything before the data, padded to the alignment. `source` holds the metadata (of shards: the first)."""
    planned = tuple(tensors)
    fields = [raw for name, field in source.fields.items() if (raw := _field(source, name, field)) is not None]
    fields += [_number(name, value) for name, value in zip(_REPLACED, (file_type, _QUANTIZATION_VERSION), strict=True)]
    whole = b"".join(
        [
            struct.pack("<IIQQ", gguf.GGUF_MAGIC, gguf.GGUF_VERSION, len(planned), len(fields)),
            *fields,
            *map(_info, planned),
        ]
    )
    return whole.ljust(aligned(len(whole), alignment_of(source)), b"\0")


def _field(source: gguf.GGUFReader, name: str, field: Any) -> bytes | None:
    """A field's own bytes: name, type and value stand behind one another in the file."""
    if name.startswith("GGUF.") or name in _REPLACED or name in _DROPPED:
        return None
    length = sum(int(part.nbytes) for part in field.parts)
    return bytes(source.data[field.offset : field.offset + length])


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _number(name: str, value: int) -> bytes:
    return _text(name) + struct.pack("<II", _UINT32, value)


def _info(tensor: Planned) -> bytes:
    dims = struct.pack(f"<I{len(tensor.dims)}Q", len(tensor.dims), *tensor.dims)
    return _text(tensor.name) + dims + struct.pack("<IQ", tensor.type, tensor.offset)
