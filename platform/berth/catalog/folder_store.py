"""The store in a folder of this machine.

<root>/sha256/ab/abcdef…      mode 0400, one link, a regular file
<root>/incoming/              what is staged
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from berth.catalog.errors import Refused
from berth.catalog.files import CHUNK, Staged, digest, disk_trouble_told, open_regular
from berth.catalog.store import GRANT_SECONDS, Content, Store, check_digest


class FolderStore(Store):
    def __init__(self, root: Path) -> None:
        self.root = root
        self.incoming = root / "incoming"

    def path(self, sha256: str) -> Path:
        """Where a content of this digest is, or would be."""
        return self.root / "sha256" / check_digest(sha256)[:2] / sha256

    def local_path(self, sha256: str) -> Path:
        return self.path(sha256)

    def grant(self, sha256: str, seconds: int = GRANT_SECONDS) -> None:
        check_digest(sha256)

    def holds(self, sha256: str, size: int) -> bool:
        try:
            found = self.path(sha256).lstat()
        except FileNotFoundError:
            return False
        return stat.S_ISREG(found.st_mode) and found.st_size == size

    def verify(self, sha256: str) -> bool:
        try:
            with open_regular(self.path(sha256)) as descriptor:
                return digest(descriptor)[0] == sha256
        except (Refused, FileNotFoundError):
            return False

    def read(self, sha256: str, begin: int = 0, end: int | None = None) -> Iterator[bytes]:
        path = self.path(sha256)
        try:
            with open_regular(path) as descriptor:
                at, last = begin, os.fstat(descriptor).st_size if end is None else end
                while at < last and (chunk := os.pread(descriptor, min(CHUNK, last - at), at)):
                    at += len(chunk)
                    yield chunk
        except Refused:
            raise FileNotFoundError(sha256) from None

    def put(self, staged: Staged) -> None:
        place = self.path(staged.sha256)
        if self.holds(staged.sha256, staged.size) and self.verify(staged.sha256):
            return
        with disk_trouble_told():
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            staged.path.chmod(0o400)
            staged.path.replace(place)
            folder = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def remove(self, sha256: str) -> None:
        with suppress(FileNotFoundError):
            self.path(sha256).unlink()

    def contents(self) -> Iterator[Content]:
        for path in (self.root / "sha256").glob("??/*"):
            with suppress(ValueError, FileNotFoundError):
                yield Content(check_digest(path.name), path.lstat().st_size)
