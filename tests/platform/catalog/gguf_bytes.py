"""A small writer of GGUF files, which can lie."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

U8, U32, F32, BOOL, STRING, ARRAY, U64 = 0, 4, 6, 7, 8, 9, 10


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def value(kind: int, content: Any) -> bytes:
    forms = {U8: "<B", U32: "<I", F32: "<f", BOOL: "<?", U64: "<Q"}
    return text(content) if kind == STRING else struct.pack(forms[kind], content)


def entry(key: str, kind: int, content: Any) -> bytes:
    return text(key) + struct.pack("<I", kind) + value(kind, content)


def array(key: str, kind: int, contents: list[Any]) -> bytes:
    body = b"".join(value(kind, content) for content in contents)
    return text(key) + struct.pack("<IIQ", ARRAY, kind, len(contents)) + body


@dataclass
class TensorInfo:
    name: str
    shape: tuple[int, ...]
    kind: int = 0  # F32
    offset: int = 0

    def packed(self) -> bytes:
        head = text(self.name) + struct.pack("<I", len(self.shape))
        return head + struct.pack(f"<{len(self.shape)}Q", *self.shape) + struct.pack("<IQ", self.kind, self.offset)


@dataclass
class File:
    """A sound file unless something is overridden: a llama of two layers with one tensor of 64 numbers."""

    metadata: list[bytes] = field(default_factory=lambda: list(LLAMA))
    tensors: list[TensorInfo] = field(default_factory=lambda: [TensorInfo("token_embd.weight", (8, 8))])
    data: bytes = b"\0" * 256
    magic: bytes = b"GGUF"
    version: int = 3
    tensor_count: int | None = None
    metadata_count: int | None = None
    alignment: int = 32

    def packed(self) -> bytes:
        tensors = len(self.tensors) if self.tensor_count is None else self.tensor_count
        entries = len(self.metadata) if self.metadata_count is None else self.metadata_count
        head = self.magic + struct.pack("<IQQ", self.version, tensors, entries)
        head += b"".join(self.metadata) + b"".join(tensor.packed() for tensor in self.tensors)
        return head + b"\0" * (-len(head) % self.alignment) + self.data


LLAMA = (
    entry("general.architecture", STRING, "llama"),
    entry("general.file_type", U32, 0),
    entry("llama.block_count", U32, 2),
    entry("llama.context_length", U32, 512),
    entry("llama.embedding_length", U32, 8),
    entry("llama.feed_forward_length", U32, 16),
    entry("llama.attention.head_count", U32, 2),
    entry("llama.attention.head_count_kv", U32, 1),
    array("tokenizer.ggml.tokens", STRING, list("abcdefgh")),
)
