"""Files are what the spec says, byte for byte, before an engine sees them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from berth_runtime.failure import Failure
from berth_runtime.files import write_atomically
from berth_runtime.spec import ModelFile

_CHUNK: Final = 4 << 20


class _Known(msgspec.Struct, frozen=True):
    """A digest that was computed once, with everything that changes when the file does."""

    identity: tuple[int, ...]
    sha256: str


def verify_files(files: tuple[ModelFile, ...], memory: Path, progress: Callable[[int, int], None]) -> None:
    """Checks size and SHA-256 of every file. `progress(done, total)` is called with bytes.

    Digests are remembered in `memory` by device, inode, size and times, so that a restart does not read everything
    again; a file whose bytes were written since has other times. Raises Failure.
    """
    known = _recall(memory)
    total = sum(file.size for file in files)
    done = 0
    for file in files:
        digest, identity = _digest(file, known, lambda part, base=done: progress(base + part, total))  # type: ignore[misc]
        if digest != file.sha256:
            raise Failure(
                "checksum_mismatch",
                f"{_name(file)} is not the file that was checked in: its SHA-256 is different. Upload it again.",
            )
        known[file.path] = _Known(identity, digest)
        done += file.size
        progress(done, total)
    write_atomically(memory, msgspec.json.encode({file.path: known[file.path] for file in files}))


def remember(files: tuple[ModelFile, ...], memory: Path) -> None:
    """Notes the digests of files that were read whole a moment ago. Raises OSError."""
    known = _recall(memory)
    for file in files:
        facts = Path(file.path).stat()
        known[file.path] = _Known(_identity(facts), file.sha256)
    write_atomically(memory, msgspec.json.encode(known))


def _identity(facts: os.stat_result) -> tuple[int, ...]:
    return (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)


def _digest(file: ModelFile, known: dict[str, _Known], progress: Callable[[int], None]) -> tuple[str, tuple[int, ...]]:
    try:
        with Path(file.path).open("rb", buffering=0) as stream:
            facts = os.fstat(stream.fileno())
            if facts.st_size != file.size:
                raise Failure(
                    "checksum_mismatch",
                    f"{_name(file)} has {facts.st_size} bytes instead of {file.size}. Upload it again.",
                )
            identity = _identity(facts)
            before = known.get(file.path)
            if before and before.identity == identity:
                return before.sha256, identity
            digest = hashlib.sha256()
            done = 0
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
                done += len(chunk)
                progress(done)
            return digest.hexdigest(), identity
    except OSError as error:
        raise Failure("file_unreadable", f"{_name(file)} cannot be read: {error.strerror}.") from None


def _recall(memory: Path) -> dict[str, _Known]:
    try:
        return msgspec.json.decode(memory.read_bytes(), type=dict[str, _Known])
    except (OSError, msgspec.DecodeError):
        return {}  # not there yet or cut short: everything is read again


def _name(file: ModelFile) -> str:
    return f"The {file.role} file {Path(file.path).name}"
