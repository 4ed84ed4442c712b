"""Uploaded parts until their files are complete: on this machine's disk, or in the bucket where several machines see them.

A part's name is made of ids and numbers of ours, never of what a client sent.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import UUID

from berth.catalog.files import disk_trouble_told
from berth.catalog.store import store


def scratch_of(import_id: UUID) -> Path:
    """An import's own folder on this machine. What is lost with it is fetched again."""
    return store().incoming / "imports" / str(import_id)


def _folder(import_id: UUID, file_id: UUID) -> Path:
    return store().incoming / "parts" / str(import_id) / str(file_id)


def keep_part(import_id: UUID, file_id: UUID, number: int, content: bytes) -> None:
    """Whole or not at all; again is harmless. Raises StoreFull, StoreUnavailable."""
    kept = store()
    if kept.shares_aside:
        kept.put_aside(f"{import_id}/{file_id}/{number:06d}", content)
        return
    folder = _folder(import_id, file_id)
    draft = folder / f".{number:06d}.{os.getpid()}.{os.urandom(4).hex()}"
    with disk_trouble_told():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with draft.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(folder / f"{number:06d}")
        finally:
            with suppress(FileNotFoundError):
                draft.unlink()


def read_part(import_id: UUID, file_id: UUID, number: int) -> bytes:
    """Raises FileNotFoundError, StoreUnavailable."""
    kept = store()
    if kept.shares_aside:
        return kept.read_aside(f"{import_id}/{file_id}/{number:06d}")
    return (_folder(import_id, file_id) / f"{number:06d}").read_bytes()


def drop_parts(import_id: UUID, file_id: UUID | None = None) -> None:
    """Of a file, or of the whole import."""
    kept = store()
    if kept.shares_aside:
        kept.drop_aside(f"{import_id}/" if file_id is None else f"{import_id}/{file_id}/")
        return
    shutil.rmtree(
        _folder(import_id, file_id) if file_id else kept.incoming / "parts" / str(import_id), ignore_errors=True
    )


def drop_scratch(import_id: UUID) -> None:
    shutil.rmtree(scratch_of(import_id), ignore_errors=True)


def left_behind() -> Iterator[UUID]:
    """Imports that have something on this machine."""
    for kind in ("imports", "parts"):
        with suppress(FileNotFoundError):
            for folder in (store().incoming / kind).iterdir():
                with suppress(ValueError):
                    yield UUID(folder.name)
