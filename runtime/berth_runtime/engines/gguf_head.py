"""What the head of a GGUF file says: plain values and the sizes of its tensors. Lists, such as vocabularies, are passed over.

The library's reader takes seconds for a large vocabulary; an engine that starts has no use for it.
Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Final

import msgspec

# By GGUF's number of the type: the form of a value.
_PLAIN: Final = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_TEXT: Final = 8
_LIST: Final = 9


class Head(msgspec.Struct, frozen=True):
    values: dict[str, int | float | bool | str]
    tensors: dict[str, tuple[int, ...]]  # GGUF's order: the first is the length of a row


def read_head(path: Path) -> Head:
    """Raises OSError, ValueError for what is no GGUF file."""
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as raw:
        try:
            return _Reader(raw).head()
        except (struct.error, IndexError, KeyError, RecursionError):
            raise ValueError("no GGUF file") from None


class _Reader:
    def __init__(self, raw: mmap.mmap) -> None:
        self._raw, self._at = raw, 0

    def head(self) -> Head:
        if self._raw[:4] != b"GGUF":
            raise ValueError("no GGUF file")
        self._at = 8
        tensors, fields = self._take("<Q"), self._take("<Q")
        values = {}
        for _ in range(int(fields)):
            name, kind = self._text(), int(self._take("<I"))
            value = self._value(kind)
            if value is not None:
                values[name] = value
        return Head(values, dict(self._tensor() for _ in range(int(tensors))))

    def _tensor(self) -> tuple[str, tuple[int, ...]]:
        name = self._text()
        dimensions = tuple(int(self._take("<Q")) for _ in range(min(int(self._take("<I")), 8)))
        self._at += 4 + 8  # its type and offset
        return name, dimensions

    def _value(self, kind: int) -> int | float | bool | str | None:
        if kind == _TEXT:
            return self._text()
        if kind == _LIST:
            self._skip_list()
            return None
        return self._take(_PLAIN[kind])

    def _skip_list(self) -> None:
        kind, count = int(self._take("<I")), int(self._take("<Q"))
        if kind in _PLAIN:
            self._at += count * struct.calcsize(_PLAIN[kind])
            return
        for _ in range(count):
            if kind == _TEXT:
                self._at += 8 + struct.unpack_from("<Q", self._raw, self._at)[0]
            else:
                self._skip_list()

    def _text(self) -> str:
        length = int(self._take("<Q"))
        begin, self._at = self._at, self._at + length
        return self._raw[begin : self._at].decode("utf-8", "replace")

    def _take(self, form: str) -> int | float | bool:
        value: int | float | bool = struct.unpack_from(form, self._raw, self._at)[0]
        self._at += struct.calcsize(form)
        return value
