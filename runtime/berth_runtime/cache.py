"""A folder of files by digest that agents share. Whoever uses a file holds a shared lock on it, so none in use is removed."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from berth_runtime.failure import Failure

_SPARE: Final = 0.1  # of the disk, where no limit is given
_NO_SPACE: Final = "disk_full"


class Part:
    """A file that is being fetched: its bytes and which ranges of it are there."""

    def __init__(self, path: Path, marks: Path, size: int, ranges: int) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._marks = os.open(marks, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        if os.fstat(self._fd).st_size != size or os.fstat(self._marks).st_size != ranges:
            os.ftruncate(self._fd, 0)
            os.ftruncate(self._fd, size)
            os.ftruncate(self._marks, 0)
            os.ftruncate(self._marks, ranges)
        self._ranges = ranges

    def missing(self) -> list[int]:
        marks = os.pread(self._marks, self._ranges, 0)
        return [number for number in range(self._ranges) if marks[number : number + 1] != b"1"]

    def write(self, offset: int, data: bytes) -> None:
        while data:
            written = os.pwrite(self._fd, data, offset)
            offset, data = offset + written, data[written:]

    def mark(self, number: int) -> None:
        """The range is there. Its bytes are on disk before the mark is, so that a power cut costs ranges, not correctness."""
        os.fdatasync(self._fd)
        os.pwrite(self._marks, b"1", number)

    def __enter__(self) -> Part:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
        os.close(self._marks)


class Cache:
    """Files stay until room is needed; then the least recently used go first."""

    def __init__(self, root: Path, limit: int | None) -> None:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._root = root
        self._limit = limit
        self._held: dict[str, int] = {}
        self._lock = threading.Lock()

    def lock_of(self, digest: str) -> Path:
        return self._root / f"{digest}.lock"

    def part_of(self, digest: str) -> Path:
        return self._root / f"{digest}.part"

    def find(self, digest: str, size: int) -> Path | None:
        """The file, held from now on until this process ends; None if it is not there."""
        path = self._root / digest
        with suppress(FileNotFoundError):
            if path.stat().st_size == size and self._hold(path):
                return path
        return None

    def open_part(self, digest: str, size: int, ranges: int) -> Part:
        return Part(self.part_of(digest), self._root / f"{digest}.done", size, ranges)

    def drop_part(self, digest: str) -> None:
        for suffix in ("part", "done"):
            (self._root / f"{digest}.{suffix}").unlink(missing_ok=True)

    def keep(self, digest: str) -> Path:
        """Gives a fetched and checked file its name, and holds it."""
        path = self._root / digest
        self.part_of(digest).replace(path)
        (self._root / f"{digest}.done").unlink(missing_ok=True)
        self._hold(path)
        return path

    def make_room(self, size: int) -> None:
        """Removes what has not been used for longest until `size` more bytes fit. Raises Failure if they never will."""
        entries = sorted(self._entries(), key=lambda entry: entry[0])
        used = sum(entry[1] for entry in entries)
        for _, length, path in entries:
            if self._fits(used, size):
                return
            if self._remove(path):
                used -= length
        if not self._fits(used, size):
            raise Failure(
                _NO_SPACE,
                f"The model needs {size >> 20} MiB more disk in the cache of model files, and everything else there is in use. "
                "Give it more room or stop another deployment.",
            )

    def _fits(self, used: int, size: int) -> bool:
        disk = shutil.disk_usage(self._root)
        if self._limit is None:
            return size <= disk.free - int(disk.total * _SPARE) or (not used and size <= disk.free)
        return used + size <= self._limit and size <= disk.free

    def _entries(self) -> list[tuple[float, int, Path]]:
        """Last use, size and place of each whole or unfinished file."""
        found = []
        for path in self._root.iterdir():
            if path.suffix in ("", ".part"):
                with suppress(FileNotFoundError):
                    facts = path.stat()
                    # A hole in an unfinished file takes no room.
                    found.append((facts.st_mtime, min(facts.st_size, facts.st_blocks * 512), path))
        return found

    def _hold(self, path: Path) -> bool:
        """Marks the file as used, now and until this process ends; False if it is just being removed."""
        with self._lock:
            if path.name in self._held:
                return True
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                still = os.stat(path).st_ino == os.fstat(fd).st_ino  # noqa: PTH116
            except (BlockingIOError, FileNotFoundError):
                still = False
            if not still:
                os.close(fd)
                return False
            os.utime(path)
            self._held[path.name] = fd
            return True

    def _remove(self, path: Path) -> bool:
        """Removes a file that nobody uses or fetches."""
        guard = path if path.suffix == "" else path.with_suffix(".lock")
        try:
            fd = os.open(guard, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            fd = None
        try:
            if fd is not None:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
            if path.suffix:
                path.with_suffix(".done").unlink(missing_ok=True)
        except BlockingIOError:
            return False
        finally:
            if fd is not None:
                os.close(fd)
        return True
