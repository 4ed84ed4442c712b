"""Files of this machine, read carefully: regular ones only, links never followed, copied before they are believed."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from berth.catalog.errors import Refused, StoreFull

CHUNK: Final = 4 << 20
_DRAFT: Final = "draft-"
_FICLONE: Final = 0x40049409  # share the blocks where the file system can; later writes to either side stay apart


@dataclass(frozen=True)
class Staged:
    """A private copy that is not in the store yet."""

    path: Path
    sha256: str
    size: int


@contextmanager
def disk_trouble_told() -> Iterator[None]:
    """Raises StoreFull for a disk or quota of the system's that is full."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise StoreFull from None
        raise


@contextmanager
def staged_copy(source: Path, incoming: Path) -> Iterator[Staged]:
    """A private copy of `source` in `incoming`, removed at the end unless it was moved away.

    Copied and never linked, because whoever has the original could still change it. Raises Refused if the source cannot be read
    or is no regular file, StoreFull.
    """
    incoming.mkdir(mode=0o700, parents=True, exist_ok=True)
    target, name = tempfile.mkstemp(dir=incoming, prefix=_DRAFT)
    path = Path(name)
    try:
        fcntl.flock(target, fcntl.LOCK_EX)  # until it is closed, so that nobody takes it for left behind
        with disk_trouble_told():
            with open_regular(source) as descriptor:
                sha256, size = _copy(descriptor, target)
            os.fchmod(target, 0o400)
            os.fsync(target)
            yield Staged(path, sha256, size)
    finally:
        os.close(target)
        with suppress(FileNotFoundError):
            path.unlink()


def drop_drafts(incoming: Path, before: datetime) -> int:
    """Removes staged copies that were not written to since and that nobody holds: their processes died. Returns how many."""
    dropped = 0
    for path in incoming.glob(f"{_DRAFT}*") if incoming.is_dir() else ():
        with suppress(FileNotFoundError, BlockingIOError), path.open("rb") as file:
            if os.fstat(file.fileno()).st_mtime < before.timestamp():
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
                dropped += 1
    return dropped


def digest_of(source: Path) -> tuple[str, int]:
    """SHA-256 and size of a regular file. Raises Refused."""
    with open_regular(source) as descriptor:
        return digest(descriptor)


@contextmanager
def open_regular(path: Path) -> Iterator[int]:
    """A descriptor for reading. Raises Refused for what is absent, unreadable, a link, device or folder."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise Refused("file_unreadable", f"it cannot be read ({os.strerror(error.errno or 0)}).") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise Refused("file_not_regular", "it is no regular file. Links, devices and folders are not taken in.")
        yield descriptor
    finally:
        os.close(descriptor)


def digest(descriptor: int) -> tuple[str, int]:
    """SHA-256 and length of what follows."""
    told, size = hashlib.sha256(), 0
    while chunk := os.read(descriptor, CHUNK):
        told.update(chunk)
        size += len(chunk)
    return told.hexdigest(), size


def _copy(source: int, target: int) -> tuple[str, int]:
    """Copies and takes the digest of what the copy holds."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        told, size = hashlib.sha256(), 0
        while chunk := os.read(source, CHUNK):
            told.update(chunk)
            size += len(chunk)
            rest = memoryview(chunk)
            while rest:
                rest = rest[os.write(target, rest) :]
        return told.hexdigest(), size
    os.lseek(target, 0, os.SEEK_SET)
    return digest(target)
