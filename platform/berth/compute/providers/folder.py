"""A replica's folder: what it was told, what it says, and what it was asked to do. Nothing else remembers a replica."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from berth.compute.launch import STATUS_FORMAT, LaunchSpec, ReplicaStatus
from berth.compute.provider import LogLine, ProviderError

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_T = TypeVar("_T")


class StopOrder(msgspec.Struct, frozen=True):
    """`drain_seconds` is read by the replica, both together say when its time is over."""

    drain_seconds: float
    asked_at: float  # Unix seconds

    @property
    def deadline(self) -> float:
        return self.asked_at + self.drain_seconds


class _Record(msgspec.Struct, frozen=True):
    n: int
    at: float
    source: str
    text: str | None = None
    withheld: int | None = None


class ReplicaFolder:
    """Files of one replica. Reading never fails: what is not there or not whole is None."""

    def __init__(self, root: Path, replica: str) -> None:
        """Raises ProviderError for a name that is not a plain one."""
        if not _NAME.fullmatch(replica):
            raise ProviderError("A replica's name must be of letters, digits, '.', '_' and '-'.")
        self.name = replica
        self.path = root / replica

    @property
    def spec_file(self) -> Path:
        return self.path / "spec.json"

    @property
    def secret_file(self) -> Path:
        return self.path / "secret"

    def exists(self) -> bool:
        return self.path.is_dir()

    def prepare(self, spec: LaunchSpec, secret: str) -> None:
        """Writes what the replica is told. The spec comes last: a folder without one counts as empty."""
        _write(self.secret_file, secret.encode())
        (self.path / "stop.json").unlink(missing_ok=True)
        _write(self.spec_file, msgspec.json.encode(spec))

    def spec(self) -> LaunchSpec | None:
        return _read(self.spec_file, LaunchSpec)

    def status(self) -> ReplicaStatus | None:
        status = _read(self.path / "status.json", ReplicaStatus)
        return status if status and status.format == STATUS_FORMAT else None

    def stop_order(self) -> StopOrder | None:
        return _read(self.path / "stop.json", StopOrder)

    def order_stop(self, order: StopOrder) -> None:
        _write(self.path / "stop.json", msgspec.json.encode(order))

    def idle_seconds(self) -> float:
        """Since anything in it was last changed."""
        times = [self.path.stat().st_mtime] if self.path.exists() else []
        with suppress(OSError):
            times += [entry.stat().st_mtime for entry in self.path.iterdir()]
        return time.time() - max(times, default=time.time())

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def log(self) -> Iterator[LogLine]:
        """All lines that are kept, oldest first."""
        for name in ("log.1.jsonl", "log.jsonl"):
            with suppress(OSError):
                for raw in (self.path / name).read_bytes().splitlines():
                    with suppress(msgspec.DecodeError):
                        line = msgspec.json.decode(raw, type=_Record)
                        yield LogLine(line.n, line.at, line.source, line.text, line.withheld)

    def agent_lock_is_held(self) -> bool:
        """Whether an agent has the replica, asked of the kernel."""
        try:
            fd = os.open(self.path / "lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            return False
        finally:
            os.close(fd)

    @contextmanager
    def starting(self) -> Iterator[None]:
        """One at a time starts or removes this replica, over all workers of the machine. Makes the folder."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(self.path / "starting", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def folders(root: Path) -> Iterator[ReplicaFolder]:
    """Every replica's folder, by name."""
    with suppress(FileNotFoundError):
        for entry in sorted(root.iterdir()):
            if entry.is_dir() and _NAME.fullmatch(entry.name):
                yield ReplicaFolder(root, entry.name)


def _read(path: Path, kind: type[_T]) -> _T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError):
        return None


def _write(path: Path, data: bytes) -> None:
    """Replaces the file in one step, readable by its owner only."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "wb") as stream:
        stream.write(data)
    draft.replace(path)
