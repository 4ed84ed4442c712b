"""Where files come from, one interface. A source lists what belongs to the model, pinned, and opens a file at any byte."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from berth.web.errors import ApiError


class SourceRefused(ApiError):
    """What was asked for is not there, or may not be had. Trying again does not help."""

    status = 422


class SourceTrouble(Exception):
    """The source does not answer as it should just now. `why` is a word of ours. Trying again may help."""

    def __init__(self, why: str, *, wait: float | None = None) -> None:
        super().__init__(why)
        self.why, self.wait = why, wait  # seconds that the source asked for


@dataclass(frozen=True)
class RemoteFile:
    """A file at the source. `tag` names this very content there; another tag later is another content."""

    name: str
    location: str
    size: int | None = None  # bytes
    sha256: str = ""  # as the source promises; empty: it does not
    tag: str = ""


@dataclass(frozen=True)
class Listing:
    """What belongs to the model. `pins` replaces what was asked for, so that a later look finds the same files."""

    files: tuple[RemoteFile, ...]
    origin: str
    licence: str = ""
    pins: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Opened:
    """A file from some byte on. `begin` is 0 when the source cannot begin elsewhere, whatever was asked for."""

    begin: int
    size: int | None  # of the whole file
    tag: str
    chunks: Iterator[bytes]


class Source(ABC):
    """`at_once`: how many parts of a file may be open side by side."""

    at_once: int = 4

    @abstractmethod
    def listing(self) -> Listing:
        """Raises SourceRefused, SourceTrouble, OutboundRefused."""

    @abstractmethod
    def open(self, file: RemoteFile, begin: int, end: int | None) -> AbstractContextManager[Opened]:
        """Bytes from `begin` up to, without, `end`. Raises as `listing` does."""
