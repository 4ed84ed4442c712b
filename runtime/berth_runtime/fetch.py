"""Files that are not on this machine are fetched in parallel ranges, resumed after any end, and kept in a cache by digest.

A file that is being fetched is `<digest>.part` (its full size from the start) beside `<digest>.done` (one byte per range,
`1` when that range is on disk). It gets its name only when its SHA-256 is right. Agents that share the cache take turns
at a file by a lock on `<digest>.lock`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from berth_runtime.cache import Cache
from berth_runtime.failure import Failure
from berth_runtime.ranges import Refused, Source, Unreachable
from berth_runtime.spec import LaunchSpec, ModelFile

RANGE: Final = 16 << 20  # bytes
_CONNECTIONS: Final = 6
_ATTEMPTS: Final = 6
_BACKOFF_SECONDS: Final = 0.5
_CHUNK: Final = 4 << 20


class Fetcher:
    """Brings the files of one replica. `progress(done, total)` is called with bytes, and may raise to end the work."""

    def __init__(self, spec: LaunchSpec, progress: Callable[[int, int], None], connections: int = _CONNECTIONS) -> None:
        root = Path(spec.cache_dir) if spec.cache_dir else Path(spec.state_dir) / "cache"
        self._cache = Cache(root, spec.cache_bytes)
        self._progress = progress
        self._connections = connections
        self._lock = threading.Lock()
        self._done = 0
        self._total = 0
        self._ended = threading.Event()
        self.fetched: set[str] = set()  # digests that came, and were checked, just now

    def bring(self, files: tuple[ModelFile, ...]) -> tuple[ModelFile, ...]:
        """The same files, each with the path where it lies. Raises Failure."""
        wanted = {file.sha256: file for file in files if file.url}
        self._total = sum(file.size for file in wanted.values())
        try:
            places = {digest: self._one(file) for digest, file in wanted.items()}
        except OSError as error:
            raise Failure(
                "fetch_failed", f"The files cannot be stored: {error.strerror or type(error).__name__}."
            ) from None
        return tuple(
            msgspec.structs.replace(file, path=str(places[file.sha256]), url=None) if file.url else file
            for file in files
        )

    def _one(self, file: ModelFile) -> Path:
        with self._turn(file):
            place = self._cache.find(file.sha256, file.size)
            if place:
                self._advance(file.size)
                return place
            self._cache.make_room(file.size)
            self._fetch(file)
            self.fetched.add(file.sha256)
            return self._cache.keep(file.sha256)

    @contextmanager
    def _turn(self, file: ModelFile) -> Iterator[None]:
        """Nobody else fetches this file meanwhile. Waiting can be ended, as everything here, by `progress`."""
        fd = os.open(self._cache.lock_of(file.sha256), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    self._advance(0)
                    time.sleep(0.1)
            yield
        finally:
            os.close(fd)

    def _fetch(self, file: ModelFile) -> None:
        for attempt in range(2):
            self._ranges(file)
            if self._digest(file) == file.sha256:
                return
            self._cache.drop_part(file.sha256)
            self._advance(-file.size)
            if attempt:
                break
        raise Failure(
            "checksum_mismatch",
            f"The {file.role} file {file.name or file.sha256[:12]} came with another SHA-256 than was checked in. Upload it again.",
        )

    def _ranges(self, file: ModelFile) -> None:
        source = Source(file.url or "", file.size)
        part = self._cache.open_part(file.sha256, file.size, -(-file.size // RANGE))
        self._ended.clear()
        with part, ThreadPoolExecutor(self._connections) as pool:
            missing = part.missing()
            self._advance(file.size - sum(_length(file.size, number) for number in missing))
            work = [pool.submit(self._range, source, part.write, number, file) for number in missing]
            try:
                for done in as_completed(work):
                    number = done.result()
                    part.mark(number)
                    self._advance(_length(file.size, number))
            except BaseException:
                self._ended.set()
                for item in work:
                    item.cancel()
                raise

    def _range(self, source: Source, write: Callable[[int, bytes], None], number: int, file: ModelFile) -> int:
        first = number * RANGE
        last = first + _length(file.size, number)
        for attempt in range(_ATTEMPTS):
            if self._ended.is_set():
                break
            try:
                for offset, data in source.read(first, last):
                    write(offset, data)
                    first = offset + len(data)  # a range that breaks off goes on from here
                    if self._ended.is_set():
                        break
                return number
            except Refused as refusal:
                raise Failure("fetch_refused", _refused(file, refusal.status)) from None
            except Unreachable:
                self._ended.wait(_BACKOFF_SECONDS * 2**attempt)
        raise Failure(
            "fetch_failed",
            f"The {file.role} file {file.name or file.sha256[:12]} cannot be fetched: its store does not answer.",
        )

    def _digest(self, file: ModelFile) -> str:
        digest = hashlib.sha256()
        with self._cache.part_of(file.sha256).open("rb", buffering=0) as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
                self._advance(0)
        return digest.hexdigest()

    def _advance(self, size: int) -> None:
        with self._lock:
            self._done += size
        self._progress(self._done, self._total)


def _length(size: int, number: int) -> int:
    return min(RANGE, size - number * RANGE)


def _refused(file: ModelFile, status: int) -> str:
    name = file.name or file.sha256[:12]
    if status in (401, 403):
        return f"The store does not let the {file.role} file {name} be read ({status}): its grant has ended. Start the replica again."
    if status in (200, 416):
        return f"The store of the {file.role} file {name} does not give parts of it ({status}), or it has another size."
    return f"The store does not have the {file.role} file {name} ({status}). Upload the model again."
