"""The replica's log: JSON lines that hold fixed sentences and numbers, never text of a request.

Two generations of a bounded file: `log.jsonl` and, before it, `log.1.jsonl`. Line numbers rise over restarts, so that a
reader can say what it has seen already.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

MAX_BYTES: Final = 1 << 20


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    n: int
    at: float  # Unix seconds
    source: str  # "agent" | "engine"
    text: str | None = None
    withheld: int | None = None  # bytes that did not pass the filter


class ReplicaLog:
    """Appends records. Safe to call from several threads."""

    def __init__(self, folder: Path, max_bytes: int = MAX_BYTES) -> None:
        self._path = folder / "log.jsonl"
        self._older = folder / "log.1.jsonl"
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._next = 1 + max(_last_number(self._path), _last_number(self._older))
        self._withheld = 0

    def say(self, text: str, source: str = "agent") -> None:
        """Writes a sentence that is made of our own words and numbers."""
        with self._lock:
            self._flush_withheld()
            self._append(source, text=text)

    def withhold(self, size: int) -> None:
        """Counts bytes of the engine's output that are dropped; they are noted at the next `say` or `tick`."""
        with self._lock:
            self._withheld += size

    def tick(self) -> None:
        """Writes down what was withheld since the last time."""
        with self._lock:
            self._flush_withheld()

    def _flush_withheld(self) -> None:
        if self._withheld:
            size, self._withheld = self._withheld, 0
            self._append("engine", withheld=size)

    def _append(self, source: str, text: str | None = None, withheld: int | None = None) -> None:
        with suppress(OSError):  # a full disk costs log lines, not the replica
            self._store(source, text, withheld)

    def _store(self, source: str, text: str | None, withheld: int | None) -> None:
        line = msgspec.json.encode(Record(self._next, time.time(), source, text, withheld)) + b"\n"
        self._next += 1
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.write(fd, line)
            full = os.fstat(fd).st_size >= self._max_bytes
        finally:
            os.close(fd)
        if full:
            self._path.replace(self._older)


def read_log(folder: Path) -> Iterator[Record]:
    """The records that are still there, oldest first. A line that was cut short is passed over."""
    for name in ("log.1.jsonl", "log.jsonl"):
        with suppress(OSError):
            for line in (folder / name).read_bytes().splitlines():
                with suppress(msgspec.DecodeError):
                    yield msgspec.json.decode(line, type=Record)


def _last_number(path: Path) -> int:
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return 0
    for line in reversed(lines):
        try:
            return msgspec.json.decode(line, type=Record).n
        except msgspec.DecodeError:
            continue  # a line that was cut short when the machine stopped
    return 0
