"""A file or folder on this machine. For the operator only, below the allowed roots, without following links."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from berth.catalog.errors import FileRefused, Refused
from berth.catalog.files import CHUNK, open_regular
from berth.catalog.sources.choosing import choose
from berth.catalog.sources.source import Listing, Opened, RemoteFile, Source, SourceRefused


class PathSource(Source):
    at_once = 1

    def __init__(self, path: str, roots: Sequence[Path], *, pattern: str = "") -> None:
        self.path, self.pattern = Path(path), pattern
        if not self.path.is_absolute() or ".." in self.path.parts or "\0" in path:
            raise SourceRefused("invalid_path", "Give the file's absolute path, without `..` in it.", field="path")
        real = self.path.resolve()
        if roots and not any(real.is_relative_to(root.resolve()) for root in roots):
            raise SourceRefused(
                "path_outside_roots",
                "The path is not below a folder from which models may be imported (BERTH_IMPORT_ROOTS).",
                field="path",
            )

    def listing(self) -> Listing:
        try:
            found = self.path.lstat()
        except OSError as error:
            raise SourceRefused(
                "source_not_found", f"The path cannot be read ({os.strerror(error.errno or 0)}).", field="path"
            ) from None
        if stat.S_ISREG(found.st_mode):
            return Listing((_described(self.path, self.path.name),), str(self.path)[:400])
        if not stat.S_ISDIR(found.st_mode):
            raise SourceRefused(
                "file_not_regular", "The path is neither a file nor a folder. Links are not followed.", field="path"
            )
        inside = [each for each in self.path.iterdir() if stat.S_ISREG(each.lstat().st_mode)]
        files = choose([_described(each, each.name) for each in inside], self.pattern)
        return Listing(tuple(files), str(self.path)[:400])

    @contextmanager
    def open(self, file: RemoteFile, begin: int, end: int | None) -> Iterator[Opened]:
        path = self.path if self.path.name == file.location and not self.path.is_dir() else self.path / file.location
        try:
            with open_regular(path) as descriptor:
                found = os.fstat(descriptor)
                yield Opened(begin, found.st_size, _tag(found), _chunks(descriptor, begin, end))
        except Refused as refused:
            raise FileRefused(file.name, refused) from None


def _described(path: Path, name: str) -> RemoteFile:
    found = path.lstat()
    return RemoteFile(name, name, found.st_size, "", _tag(found))


def _tag(found: os.stat_result) -> str:
    return f"{found.st_ino}-{found.st_size}-{found.st_mtime_ns}"


def _chunks(descriptor: int, begin: int, end: int | None) -> Iterator[bytes]:
    at = begin
    while chunk := os.pread(descriptor, CHUNK if end is None else min(CHUNK, end - at), at):
        at += len(chunk)
        yield chunk
