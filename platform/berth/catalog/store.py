"""The content-addressed store: a file is found by its SHA-256 and never changes.

    <root>/sha256/ab/abcdef…      mode 0400, one link, a regular file

A file comes in through `stage`: it is copied (never linked, because whoever has the original could still change it) to a
temporary name while its digest is taken, checked there by whoever staged it, and then renamed into place.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from django.conf import settings

from berth.catalog.errors import Refused
from berth.web.errors import ApiError

_CHUNK: Final = 4 << 20
_FICLONE: Final = 0x40049409  # share the blocks where the file system can; later writes to either side stay apart
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class StoreFull(ApiError):
    status = 507

    def __init__(self) -> None:
        super().__init__(
            "store_full",
            "The disk of the model store is full. Free some space (or ask your operator to), then try again.",
        )


@dataclass(frozen=True)
class Staged:
    """A copy that is not in the store yet."""

    path: Path
    sha256: str
    size: int


class Store:
    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, sha256: str) -> Path:
        """Where a file of this digest is, or would be. ValueError for what is no digest."""
        if not _DIGEST.fullmatch(sha256):
            raise ValueError("A digest is 64 lower-case hexadecimal digits.")
        return self.root / "sha256" / sha256[:2] / sha256

    def holds(self, sha256: str, size: int) -> bool:
        """Whether the file is there with its size; `verify` reads it."""
        try:
            found = self.path(sha256).lstat()
        except FileNotFoundError:
            return False
        return stat.S_ISREG(found.st_mode) and found.st_size == size

    def verify(self, sha256: str) -> bool:
        """Whether the content still has its digest."""
        try:
            with _open(self.path(sha256)) as descriptor:
                return _digest(descriptor)[0] == sha256
        except (Refused, FileNotFoundError):
            return False

    @contextmanager
    def stage(self, source: Path) -> Iterator[Staged]:
        """A private copy of `source`, removed at the end unless it was committed.

        Raises Refused if the source cannot be read or is no regular file (a link is not followed), StoreFull.
        """
        incoming = self.root / "incoming"
        incoming.mkdir(mode=0o700, parents=True, exist_ok=True)
        target, name = tempfile.mkstemp(dir=incoming)
        path = Path(name)
        try:
            with _open(source) as descriptor:
                sha256, size = _copy(descriptor, target)
            os.fchmod(target, 0o400)
            os.fsync(target)
            yield Staged(path, sha256, size)
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                raise StoreFull from None
            raise
        finally:
            os.close(target)
            with suppress(FileNotFoundError):
                path.unlink()

    def commit(self, staged: Staged) -> Path:
        """Moves a staged file to its place, whole or not at all. What is there already with that digest stays."""
        place = self.path(staged.sha256)
        if self.holds(staged.sha256, staged.size) and self.verify(staged.sha256):
            return place
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        staged.path.replace(place)
        folder = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return place


def store() -> Store:
    """The installation's store."""
    return Store(Path(settings.STORE_DIR))


def digest_of(source: Path) -> tuple[str, int]:
    """SHA-256 and size of a regular file. Raises Refused."""
    with _open(source) as descriptor:
        return _digest(descriptor)


@contextmanager
def _open(path: Path) -> Iterator[int]:
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


def _digest(descriptor: int) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    while chunk := os.read(descriptor, _CHUNK):
        digest.update(chunk)
        size += len(chunk)
    return digest.hexdigest(), size


def _copy(source: int, target: int) -> tuple[str, int]:
    """Copies and takes the digest of what the copy holds."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        digest, size = hashlib.sha256(), 0
        while chunk := os.read(source, _CHUNK):
            digest.update(chunk)
            size += len(chunk)
            rest = memoryview(chunk)
            while rest:
                rest = rest[os.write(target, rest) :]
        return digest.hexdigest(), size
    os.lseek(target, 0, os.SEEK_SET)
    return _digest(target)
