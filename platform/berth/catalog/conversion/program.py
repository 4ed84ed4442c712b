"""The runtime's conversion programs, as processes of their own that outlive the worker which started them.

What they are told and what they say are files with a format number (`berth_runtime.convert.job`, `berth_runtime.quality.job`); a test
holds both sides together.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO, Final, TypeVar

import msgspec
from django.conf import settings

from berth.catalog.conversion.converters import SETTING as CONVERTERS

_RUNTIME: Final = Path(__file__).resolve().parents[4] / "runtime"
_NICE: Final = 10  # engines that serve come first
_T = TypeVar("_T")


class SourceFile(msgspec.Struct, frozen=True):
    """`berth_runtime.spec.ModelFile`, as far as it is needed here."""

    path: str
    role: str
    size: int
    sha256: str
    name: str


class Progress(msgspec.Struct, frozen=True):
    step: str
    done: int
    total: int
    updated_at: float


class MadeFile(msgspec.Struct, frozen=True):
    name: str
    role: str
    size: int
    sha256: str


class Made(msgspec.Struct, frozen=True):
    format: int
    files: tuple[MadeFile, ...]
    fallbacks: list[dict[str, Any]] = []
    types: dict[str, int] = {}
    requantized: bool = False
    tool: str = ""


class Failed(msgspec.Struct, frozen=True):
    reason: str
    message: str


class Report(msgspec.Struct, frozen=True):
    format: int
    text: str
    engine: str
    quality: dict[str, float]
    perplexity_change: float
    sample: dict[str, float] | None = None
    sample_perplexity_change: float | None = None


class Folder:
    """Where a conversion happens on this machine."""

    def __init__(self, conversion_id: Any) -> None:
        self.path = Path(settings.STORE_DIR) / "conversions" / str(conversion_id)
        self.reference_file = self.path.parent / ".reference"  # kept from one conversion to the next

    def start(self, module: str, *, sample: str | None = None, **job: Any) -> None:
        """Starts `python -m berth_runtime.<module>` on a job, detached. Does nothing while one is at work in the folder.

        `sample`: a text that the program reads as its `sample_file`, from memory that only it has: it lies on no disk.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.busy():
            return
        (self.path / "failure.json").unlink(missing_ok=True)
        file = self.path / f"{module}-job.json"
        lifeline = settings.BERTH_LIFELINE
        job |= {
            "format": 1,
            "work_dir": str(self.path),
            "threads": max(1, (os.cpu_count() or 1) - 1),
            "lifeline": str(lifeline) if lifeline and Path(lifeline).exists() else None,
        }
        with ExitStack() as held:
            passed = [] if sample is None else [held.enter_context(_in_memory(sample)).fileno()]
            if passed:
                job["sample_file"] = f"/dev/fd/{passed[0]}"
            self._run(module, file, job, passed)

    def _run(self, module: str, file: Path, job: dict[str, Any], passed: Sequence[int]) -> None:
        file.write_bytes(msgspec.json.encode(job))
        path = os.pathsep.join(str(each) for each in ([_RUNTIME] if _RUNTIME.is_dir() else []))
        command = [sys.executable, "-B", "-m", f"berth_runtime.{module}", str(file)]
        process = subprocess.Popen(
            command,
            env={
                "PATH": os.environ.get("PATH", ""),
                "LANG": "C.UTF-8",
                "PYTHONPATH": path,
                "HOME": "/nonexistent",
                CONVERTERS: os.environ.get(CONVERTERS, ""),
            },
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=passed,
        )
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, process.pid, _NICE)
        _children[str(self.path)] = process

    def busy(self) -> bool:
        """Whether a program is at work here, asked of the kernel."""
        child = _children.get(str(self.path))
        if child is not None and child.poll() is None:
            return True
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

    def killed(self) -> Failed | None:
        """Told once of a program of ours that somebody else ended, most likely because memory ran out."""
        child = _children.get(str(self.path))
        if child is None or child.poll() is None:
            return None
        del _children[str(self.path)]
        if child.returncode >= 0:
            return None
        return Failed(
            "killed", "The conversion was ended from outside, most likely because memory ran out. Use a larger machine."
        )

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Whether nobody else on this machine looks at it just now; nobody will until the end."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self.path.parent / ".looking").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True

    def stop(self) -> None:
        """Ends the program that this process started here, with all it started."""
        child = _children.pop(str(self.path), None)
        if child is not None and child.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()

    def remove(self) -> None:
        _children.pop(str(self.path), None)
        shutil.rmtree(self.path, ignore_errors=True)

    def read(self, name: str, kind: type[_T]) -> _T | None:
        """None: it is not there (yet), or is of another form."""
        try:
            return msgspec.json.decode((self.path / name).read_bytes(), type=kind)
        except (OSError, msgspec.DecodeError):
            return None


def _in_memory(text: str) -> BinaryIO:
    """A nameless file; where the system has none in memory, one that nobody else can find."""
    if hasattr(os, "memfd_create"):
        file: BinaryIO = os.fdopen(os.memfd_create("berth"), "w+b")
    else:
        file = TemporaryFile()  # noqa: SIM115 - the caller closes it
    file.write(text.encode())
    file.flush()
    file.seek(0)
    return file


# Programs that this process started, so that they leave no zombies; others are seen by their lock.
_children: dict[str, subprocess.Popen[bytes]] = {}


def sources(files: Sequence[SourceFile]) -> list[dict[str, Any]]:
    """As the programs read them."""
    return [msgspec.to_builtins(file) for file in files]
