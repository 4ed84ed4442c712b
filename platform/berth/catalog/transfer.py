"""Fetching one file so that it can be interrupted at any byte: several ranges side by side, and a journal of what is on the disk.

    files/<name>           the complete file
    state/<name>.part      the bytes, each range at its place
    state/<name>.journal   {"size", "tag", "segment", "done": [bytes of each segment]}, replaced in one step, only ever behind the data
    state/<name>.whole     {"sha256", "size", "tag"}: the file is complete and was read once more for its digest

A journal that is older than the data costs some bytes again, nothing else. Another tag or size at the source is another file:
it begins anew. No database: threads call this.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from berth.catalog.files import CHUNK, Staged, disk_trouble_told
from berth.catalog.intake.refused import Refused
from berth.catalog.sources.source import RemoteFile, Source, SourceTrouble

SEGMENT: Final = 64 << 20  # bytes
JOURNAL_EVERY: Final = 16 << 20  # bytes between two looks at the disk


class Stopped(Exception):
    """Whoever fetches was told to stop."""


@dataclass
class Watch:
    """What a fetch tells and asks: bytes on the disk now, and whether to go on. Safe from several threads."""

    stopped: threading.Event = field(default_factory=threading.Event)
    done: dict[str, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def set(self, name: str, value: int) -> None:
        with self._lock:
            self.done[name] = value

    def total(self) -> int:
        with self._lock:
            return sum(self.done.values())

    def check(self) -> None:
        if self.stopped.is_set():
            raise Stopped


def fetch_file(source: Source, file: RemoteFile, target: Path, watch: Watch, *, segment: int = SEGMENT) -> Staged:
    """The file, complete on this machine's disk. Resumes what an earlier try left. Raises Refused (a wrong checksum),
    SourceRefused, SourceTrouble, Stopped, StoreFull."""
    whole = read_whole(target, file)
    if whole is not None:
        watch.set(file.name, whole.size)
        return whole
    for folder in (target.parent, _beside(target, "part").parent):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with disk_trouble_told():
        known = file.size is not None and file.size > 0 and source.at_once > 0
        fetched = _Ranges(source, file, target, watch, segment).run() if known else None
        if fetched is None:
            _stream(source, file, target, watch)
        return _complete(file, target, watch)


def read_whole(target: Path, file: RemoteFile) -> Staged | None:
    """What an earlier try completed, if it is still that."""
    try:
        told = json.loads(_beside(target, "whole").read_text())
        if (
            told["tag"] == file.tag
            and target.stat().st_size == told["size"]
            and (file.size is None or told["size"] == file.size)
            and (not file.sha256 or told["sha256"] == file.sha256)
        ):
            return Staged(target, told["sha256"], told["size"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None


def _beside(target: Path, what: str) -> Path:
    return target.parent.parent / "state" / f"{target.name}.{what}"


def _write(path: Path, content: object) -> None:
    draft = path.with_name(f"{path.name}.new")
    with draft.open("w") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


@contextmanager
def _part(target: Path) -> Iterator[int]:
    descriptor = os.open(_beside(target, "part"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, content: bytes, at: int) -> None:
    rest = memoryview(content)
    while rest:
        written = os.pwrite(descriptor, rest, at)
        rest, at = rest[written:], at + written


class _NoRanges(Exception):
    """The source gives files from their beginning only."""


class _Ranges:
    """A file of known size, in segments."""

    def __init__(self, source: Source, file: RemoteFile, target: Path, watch: Watch, segment: int) -> None:
        self.source, self.file, self.target, self.watch = source, file, target, watch
        self.size = file.size or 0
        self.segment = segment
        resumed = self._resumed()
        if resumed is None:  # before a new part begins: an old journal would vouch for bytes that are not there
            _beside(target, "journal").unlink(missing_ok=True)
        self.done = resumed or [0] * -(-self.size // segment)
        self.lock = threading.Lock()
        self.unwritten = 0
        self.failed = threading.Event()

    def run(self) -> bool | None:
        """True: all bytes are on the disk. None: the source knows no ranges."""
        self._tell()
        open_segments = [number for number in range(len(self.done)) if self._left(number)]
        with _part(self.target) as descriptor:
            try:
                with ThreadPoolExecutor(max(1, min(self.source.at_once, len(open_segments) or 1))) as pool:
                    work = [pool.submit(self._guarded, number, descriptor) for number in open_segments]
                    for each in work:
                        each.result()
            except _NoRanges:
                return None
            finally:
                self._journal(descriptor)
        return True

    def _resumed(self) -> list[int] | None:
        try:
            told = json.loads(_beside(self.target, "journal").read_text())
            same = told["size"] == self.size and told["tag"] == self.file.tag and told["segment"] == self.segment
            there = _beside(self.target, "part").exists()
            done = [int(each) for each in told["done"]]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return done if same and there and len(done) == -(-self.size // self.segment) else None

    def _left(self, number: int) -> int:
        begin = number * self.segment
        return min(self.segment, self.size - begin) - self.done[number]

    def _guarded(self, number: int, descriptor: int) -> None:
        try:
            self._fetch(number, descriptor)
        except BaseException:
            self.failed.set()  # the others stop too: whoever asked decides what next
            raise

    def _fetch(self, number: int, descriptor: int) -> None:
        if not (left := self._left(number)):
            return
        begin = number * self.segment + self.done[number]
        with self.source.open(self.file, begin, begin + left) as opened:
            if opened.begin != begin:
                raise _NoRanges
            if opened.size is not None and opened.size != self.size:
                raise SourceTrouble("source_changed")
            if opened.tag and self.file.tag and opened.tag != self.file.tag:
                raise SourceTrouble("source_changed")
            for chunk in opened.chunks:
                self.watch.check()
                if self.failed.is_set():
                    return
                piece = chunk[:left]
                _write_all(descriptor, piece, begin)
                begin, left = begin + len(piece), left - len(piece)
                self._note(number, len(piece), descriptor)
                if not left:
                    break
        if left:
            raise SourceTrouble("cut_short")

    def _note(self, number: int, count: int, descriptor: int) -> None:
        with self.lock:
            self.done[number] += count
            self.unwritten += count
            due = self.unwritten >= JOURNAL_EVERY
            if due:
                self.unwritten = 0
        self._tell()
        if due:
            self._journal(descriptor)

    def _journal(self, descriptor: int) -> None:
        with self.lock:
            done = list(self.done)
            os.fdatasync(descriptor)
            told = {"size": self.size, "tag": self.file.tag, "segment": self.segment, "done": done}
            _write(_beside(self.target, "journal"), told)

    def _tell(self) -> None:
        self.watch.set(self.file.name, sum(self.done))


def _stream(source: Source, file: RemoteFile, target: Path, watch: Watch) -> None:
    """From the beginning to the end, for sources without sizes or ranges."""
    _beside(target, "journal").unlink(missing_ok=True)
    with _part(target) as descriptor, source.open(file, 0, None) as opened:
        os.ftruncate(descriptor, 0)
        at = 0
        for chunk in opened.chunks:
            watch.check()
            _write_all(descriptor, chunk, at)
            at += len(chunk)
            watch.set(file.name, at)
            if file.size is not None and at > file.size:
                raise SourceTrouble("source_changed")
        if file.size is not None and at != file.size:
            raise SourceTrouble("cut_short")


def _complete(file: RemoteFile, target: Path, watch: Watch) -> Staged:
    part = _beside(target, "part")
    told, size = hashlib.sha256(), 0
    with part.open("r+b", buffering=0) as content:
        if file.size is not None:
            os.ftruncate(content.fileno(), file.size)
        while chunk := content.read(CHUNK):
            watch.check()
            told.update(chunk)
            size += len(chunk)
        os.fsync(content.fileno())
    sha256 = told.hexdigest()
    if file.sha256 and sha256 != file.sha256:
        forget(target)
        raise Refused(
            "checksum_mismatch",
            "what arrived is not what the source promises (SHA-256). It was fetched completely and thrown away; try again, and if it "
            "stays, the source is damaged.",
            file=file.name,
        )
    _write(_beside(target, "whole"), {"sha256": sha256, "size": size, "tag": file.tag})
    part.replace(target)
    _beside(target, "journal").unlink(missing_ok=True)
    watch.set(file.name, size)
    return Staged(target, sha256, size)


def forget(target: Path) -> None:
    """Removes all that was fetched of a file."""
    for path in (target, *(_beside(target, what) for what in ("part", "journal", "whole"))):
        with suppress(FileNotFoundError):
            path.unlink()
