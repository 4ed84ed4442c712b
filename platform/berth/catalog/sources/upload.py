"""Files that were uploaded in parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final
from uuid import UUID

from django.conf import settings

from berth.catalog.sources.source import Listing, Opened, RemoteFile, Source, SourceTrouble
from berth.catalog.staging import read_part

PART_BYTES: Final[int] = settings.UPLOAD_PART_BYTES  # of every part but the last


def parts_of(size: int) -> int:
    return max(1, -(-size // PART_BYTES))


class UploadSource(Source):
    def __init__(self, import_id: UUID, files: Mapping[str, UUID], listing: Listing) -> None:
        self.import_id, self.files, self._listing = import_id, files, listing

    def listing(self) -> Listing:
        return self._listing

    @contextmanager
    def open(self, file: RemoteFile, begin: int, end: int | None) -> Iterator[Opened]:
        last = (file.size or 0) if end is None else end
        yield Opened(begin, file.size, file.tag, self._chunks(self.files[file.name], begin, last))

    def _chunks(self, file_id: UUID, at: int, end: int) -> Iterator[bytes]:
        while at < end:
            number = at // PART_BYTES
            try:
                content = read_part(self.import_id, file_id, number)
            except FileNotFoundError:
                raise SourceTrouble("part_missing") from None
            chunk = content[at - number * PART_BYTES : end - number * PART_BYTES]
            if not chunk:
                raise SourceTrouble("part_missing")
            at += len(chunk)
            yield chunk
