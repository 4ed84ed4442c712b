"""A bounded reader of GGUF headers. It is the only reader that ever sees a file before the file was found harmless.

Everything a header claims is checked against what the file can hold before a byte is kept: counts, lengths, nesting,
dimensions, products (Python's integers do not overflow), offsets, alignment, overlap and types. Of the metadata only what
the planner needs is kept: numbers, short strings, the chat template, and short arrays of numbers. So a hostile file costs
neither memory nor time.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from berth.catalog.intake.refused import Refused

MAX_METADATA: Final = 65_536
MAX_TENSORS: Final = 65_536
MAX_KEY_BYTES: Final = 256
MAX_TENSOR_NAME_BYTES: Final = 127
MAX_STRING_BYTES: Final = 4 << 20
MAX_KEPT_STRING_BYTES: Final = 256
MAX_TEMPLATE_BYTES: Final = 64 << 10
MAX_ARRAY_STRINGS: Final = (
    2_000_000  # over all arrays of a file: the largest vocabularies with their merges have a third
)
MAX_KEPT_ARRAY: Final = 4_096
MAX_DIMENSIONS: Final = 4
MAX_ALIGNMENT: Final = 1 << 16
DEFAULT_ALIGNMENT: Final = 32
TEMPLATE_KEY: Final = "tokenizer.chat_template"

_SCALARS: Final[dict[int, str]] = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_STRING: Final = 8
_ARRAY: Final = 9

# number in the file: (name, elements of a block, bytes of a block)
TENSOR_TYPES: Final[dict[int, tuple[str, int, int]]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292), 16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
}  # fmt: skip

Scalar = int | float | bool | str


@dataclass(frozen=True)
class Tensor:
    name: str
    type: str
    shape: tuple[int, ...]
    elements: int
    offset: int  # from the beginning of the data
    size: int  # bytes


@dataclass
class Header:
    """What was kept. `lengths` has the number of elements of every array, kept or not."""

    version: int
    alignment: int = DEFAULT_ALIGNMENT
    values: dict[str, Scalar] = field(default_factory=dict)
    arrays: dict[str, tuple[int | float | bool, ...]] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)
    template: str | None = None
    tensors: list[Tensor] = field(default_factory=list)


def read_header(path: Path) -> Header:
    """The checked header of a GGUF file. Raises Refused, naming the fault."""
    size = path.stat().st_size
    if size < 24:
        raise Refused("not_gguf", "It is too short to be a GGUF file. If it should be one, download it again.")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        return _Reader(view, size).header()


class _Reader:
    """A position in a file that never leaves it."""

    def __init__(self, view: mmap.mmap, size: int) -> None:
        self.view, self.size, self.at = view, size, 0
        self.array_strings = 0

    def header(self) -> Header:
        if self.view[:4] != b"GGUF":
            raise Refused(
                "not_gguf", "It does not begin with GGUF's mark. Only GGUF files are taken in, whatever their name."
            )
        self.at = 4
        version = self.number("<I")
        if version not in (2, 3):
            raise Refused(
                "gguf_version", "Its GGUF version is not 2 or 3 (little-endian). Convert it with a current llama.cpp."
            )
        header = Header(version)
        tensors, metadata = self.number("<Q"), self.number("<Q")
        self.limit("gguf_tensor_count", tensors, min(MAX_TENSORS, self.left // 24), "tensors")
        self.limit("gguf_metadata_count", metadata, min(MAX_METADATA, self.left // 13), "metadata entries")
        for _ in range(metadata):
            self.entry(header)
        self.set_alignment(header)
        header.tensors = self.tensor_table(tensors, header.alignment)
        self.check_data(header)
        return header

    # Bytes

    @property
    def left(self) -> int:
        return self.size - self.at

    def take(self, count: int) -> int:
        """Moves on by `count` bytes and returns where they began."""
        if count > self.left:
            raise Refused(
                "gguf_truncated",
                "Its header ends in the middle of a value: the file is cut short or damaged. Download it again.",
            )
        begin, self.at = self.at, self.at + count
        return begin

    def number(self, form: str) -> int:
        return int(struct.unpack_from(form, self.view, self.take(struct.calcsize(form)))[0])

    def string(self, most: int, code: str, what: str) -> bytes:
        length = self.number("<Q")
        self.limit(code, length, most, f"bytes in {what}")
        begin = self.take(length)
        return self.view[begin : begin + length]

    @staticmethod
    def limit(code: str, value: int, most: int, what: str) -> None:
        if value > most:
            raise Refused(
                code, f"It claims {value} {what}; here at most {most} are possible.", value=str(value), limit=most
            )

    # Metadata

    def entry(self, header: Header) -> None:
        key = _text(self.string(MAX_KEY_BYTES, "gguf_key_length", "a metadata key"), "gguf_key")
        if (
            not key
            or key in header.values
            or key in header.lengths
            or (key == TEMPLATE_KEY and header.template is not None)
        ):
            raise Refused("gguf_key", "A metadata key is empty or stands there twice.")
        kind = self.number("<I")
        if kind == _ARRAY:
            self.array(header, key)
        elif kind == _STRING:
            self.text(header, key)
        else:
            header.values[key] = self.scalar(kind)

    def scalar(self, kind: int) -> int | float | bool:
        form = _SCALARS.get(kind)
        if form is None:
            raise Refused("gguf_value_type", f"A metadata value has the unknown type {kind}.", value=kind)
        value: int | float | bool = struct.unpack_from(form, self.view, self.take(struct.calcsize(form)))[0]
        return value

    def text(self, header: Header, key: str) -> None:
        if key == TEMPLATE_KEY:
            raw = self.string(MAX_TEMPLATE_BYTES, "chat_template_too_large", "the chat template")
            header.template = _text(raw, "chat_template_encoding")
            return
        length = self.number("<Q")
        self.limit("gguf_string_length", length, MAX_STRING_BYTES, "bytes in a metadata value")
        begin = self.take(length)
        kept = self.view[begin : begin + min(length, MAX_KEPT_STRING_BYTES)]
        header.values[key] = kept.decode("utf-8", "replace")

    def array(self, header: Header, key: str) -> None:
        kind, count = self.number("<I"), self.number("<Q")
        header.lengths[key] = count
        if kind == _ARRAY:
            raise Refused("gguf_nesting", "It has an array of arrays, which no known model needs.")
        if kind == _STRING:
            self.strings(count)
            return
        form = _SCALARS.get(kind)
        if form is None:
            raise Refused("gguf_value_type", f"An array has elements of the unknown type {kind}.", value=kind)
        width = struct.calcsize(form)
        self.limit("gguf_array_length", count, self.left // width, "array elements")
        begin = self.take(count * width)
        if 0 < count <= MAX_KEPT_ARRAY:
            header.arrays[key] = struct.unpack_from(f"<{count}{form[1]}", self.view, begin)

    def strings(self, count: int) -> None:
        """Steps over an array of strings, of which only the number is of interest."""
        self.limit("gguf_array_length", count, min(self.left // 8, MAX_ARRAY_STRINGS - self.array_strings), "strings")
        self.array_strings += count
        unpack, view, at, size = struct.Struct("<Q").unpack_from, self.view, self.at, self.size
        for _ in range(count):
            if at + 8 > size:
                raise Refused(
                    "gguf_truncated",
                    "Its header ends in the middle of an array: the file is cut short or damaged. Download it again.",
                )
            length = unpack(view, at)[0]
            if length > MAX_STRING_BYTES:
                raise Refused("gguf_string_length", f"An array has a string of {length} bytes.", value=str(length))
            at += 8 + length
        if at > size:
            raise Refused(
                "gguf_truncated",
                "Its header ends in the middle of an array: the file is cut short or damaged. Download it again.",
            )
        self.at = at

    @staticmethod
    def set_alignment(header: Header) -> None:
        value = header.values.get("general.alignment", DEFAULT_ALIGNMENT)
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or not 8 <= value <= MAX_ALIGNMENT
            or value & (value - 1)
        ):
            raise Refused("gguf_alignment", f"Its alignment is not a power of two between 8 and {MAX_ALIGNMENT}.")
        header.alignment = value

    # Tensors

    def tensor_table(self, count: int, alignment: int) -> list[Tensor]:
        seen: set[str] = set()
        table = []
        for _ in range(count):
            tensor = self.tensor(alignment)
            if tensor.name in seen:
                raise Refused("gguf_tensor_name", "Two tensors have the same name.")
            seen.add(tensor.name)
            table.append(tensor)
        return table

    def tensor(self, alignment: int) -> Tensor:
        name = _text(self.string(MAX_TENSOR_NAME_BYTES, "gguf_tensor_name", "a tensor's name"), "gguf_tensor_name")
        dimensions = self.number("<I")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise Refused("gguf_dimensions", f"A tensor has {dimensions} dimensions instead of 1 to {MAX_DIMENSIONS}.")
        shape = tuple(self.number("<Q") for _ in range(dimensions))
        kind, offset = self.number("<I"), self.number("<Q")
        if kind not in TENSOR_TYPES:
            raise Refused("gguf_tensor_type", f"A tensor has the type {kind}, which is not known here.", value=kind)
        type_name, block, block_bytes = TENSOR_TYPES[kind]
        elements = 1
        for length in shape:
            elements *= length
        if not elements or shape[0] % block:
            raise Refused("gguf_shape", "A tensor has no elements, or rows that are no whole number of blocks.")
        if offset % alignment:
            raise Refused("gguf_alignment", "A tensor does not begin at a multiple of the alignment.")
        size = elements // block * block_bytes
        self.limit("gguf_tensor_size", offset + size, self.size, "bytes up to the end of a tensor")
        return Tensor(name, type_name, shape, elements, offset, size)

    def check_data(self, header: Header) -> None:
        """Tensors tile the data as llama.cpp demands it: no overlap, no gap but padding, nothing behind."""
        begin = _up(self.at, header.alignment)
        expected = end = 0
        for tensor in sorted(header.tensors, key=lambda tensor: tensor.offset):
            if tensor.offset < expected:
                raise Refused("gguf_overlap", "Two tensors share bytes of the file.")
            if tensor.offset > expected:
                raise Refused("gguf_gap", "Between two tensors there are bytes that belong to none.")
            end = tensor.offset + tensor.size
            expected = _up(end, header.alignment)
        if begin + end > self.size:
            raise Refused(
                "gguf_truncated", "Its tensors reach beyond its end: the file is cut short. Download it again."
            )
        if self.size > begin + expected:
            raise Refused("gguf_trailing_data", "Behind its tensors there are bytes that do not belong to the model.")


def _up(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


def _text(raw: bytes, code: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise Refused(code, "A name or template in its header is not UTF-8.") from None
