"""The content-addressed store: a content is found by its SHA-256 and never changes. One interface, two places:

- a folder of this machine (`folder_store.py`), from which engines read in place;
- a bucket (`s3_store.py`), from which they fetch with a grant for one object and a few minutes.

What comes in is staged on this machine's disk first, checked there, and only then put. Removing is `references.py`'s business.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Final

from django.conf import settings

from berth.catalog.errors import StoreFull
from berth.catalog.files import Staged, digest_of, staged_copy

__all__ = ["GRANT_SECONDS", "Content", "Staged", "Store", "StoreFull", "check_digest", "digest_of", "store"]

GRANT_SECONDS: Final = 900
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Content:
    sha256: str
    size: int  # bytes


def check_digest(sha256: str) -> str:
    """The digest. ValueError for what is none: only digests become paths and keys."""
    if not _DIGEST.fullmatch(sha256):
        raise ValueError("A digest is 64 lower-case hexadecimal digits.")
    return sha256


class Store(ABC):
    """Every method that takes a digest raises ValueError for what is none, and StoreUnavailable when the place does not answer."""

    incoming: Path  # where files are staged, on this machine
    shares_aside: bool = False  # whether parts of uploads are kept where every machine sees them

    def stage(self, source: Path) -> AbstractContextManager[Staged]:
        """See `files.staged_copy`."""
        return staged_copy(source, self.incoming)

    @abstractmethod
    def put(self, staged: Staged) -> None:
        """Keeps a staged file, whole or not at all. Sound content of that digest which is there already stays. The staged file
        may be gone afterwards. Raises StoreFull."""

    def drop_abandoned(self, before: datetime) -> int:
        """Removes what interrupted puts left, that nobody went on with since. Returns how many there were."""
        return 0

    @abstractmethod
    def holds(self, sha256: str, size: int) -> bool:
        """Whether the content is there with its size; `verify` reads it."""

    @abstractmethod
    def verify(self, sha256: str) -> bool:
        """Whether the content still has its digest."""

    @abstractmethod
    def read(self, sha256: str, begin: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Bytes from `begin` up to, without, `end`. Raises FileNotFoundError."""

    @abstractmethod
    def local_path(self, sha256: str) -> Path | None:
        """Where an engine on this machine reads it in place. None: it has to be fetched."""

    @abstractmethod
    def grant(self, sha256: str, seconds: int = GRANT_SECONDS) -> str | None:
        """An address that gives this one object for so long. None: it can be read in place. Never logged."""

    @abstractmethod
    def remove(self, sha256: str) -> None:
        """The content is gone, if it was there."""

    @abstractmethod
    def contents(self) -> Iterator[Content]:
        """All that is there, in no order."""

    def put_aside(self, name: str, content: bytes) -> None:
        """Keeps a part of an upload under a name of ours. Only where `shares_aside`."""
        raise NotImplementedError

    def read_aside(self, name: str) -> bytes:
        """Raises FileNotFoundError."""
        raise NotImplementedError

    def drop_aside(self, prefix: str) -> None:
        """Removes all parts whose names begin so."""
        raise NotImplementedError


@lru_cache(maxsize=8)
def _made(root: str, bucket: str, prefix: str, endpoint: str, region: str) -> Store:
    from berth.catalog.folder_store import FolderStore
    from berth.catalog.s3_store import S3Store, read_keys

    if not bucket:
        return FolderStore(Path(root))
    return S3Store(
        bucket,
        prefix=prefix,
        endpoint=endpoint or None,
        region=region,
        keys=read_keys(Path(settings.SECRETS_DIR)),
        incoming=Path(root) / "incoming",
    )


def store() -> Store:
    """The installation's store."""
    return _made(
        str(settings.STORE_DIR),
        settings.STORE_S3_BUCKET,
        settings.STORE_S3_PREFIX,
        settings.STORE_S3_ENDPOINT,
        settings.STORE_S3_REGION,
    )
