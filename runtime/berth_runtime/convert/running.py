"""The life of a job's process: one at a time in its folder, ended with the supervisor, and its end told in a file."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, TypeVar

import msgspec

from berth_runtime.convert.workdir import WorkDir
from berth_runtime.failure import Failure, Halt
from berth_runtime.lifeline import Lifeline

EXIT_DONE: Final = 0
EXIT_FAILED: Final = 1
EXIT_BAD_JOB: Final = 2
EXIT_STOPPED: Final = 3
EXIT_BUSY: Final = 4


class Job(Protocol):
    """What every job says."""

    @property
    def format(self) -> int: ...
    @property
    def work_dir(self) -> str: ...
    @property
    def lifeline(self) -> str | None: ...


_J = TypeVar("_J", bound=Job)


def run_job(path: str, kind: type[_J], job_format: int, work: Callable[[_J, WorkDir], None]) -> int:
    """Exit status 0: done; 1: `failure.json` says why not; 2: the job cannot be read; 3: it was told to stop, and the same call
    goes on from there; 4: another process is at it."""
    os.umask(0o077)
    try:
        job = msgspec.json.decode(Path(path).read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        sys.stderr.write(f"The job cannot be read ({type(error).__name__}).\n")
        return EXIT_BAD_JOB
    if job.format != job_format:
        sys.stderr.write(f"The job has format {job.format}; this runtime reads format {job_format}.\n")
        return EXIT_BAD_JOB
    signal.signal(signal.SIGTERM, _stop)
    folder = WorkDir(Path(job.work_dir))
    if not _locked(folder.path / "lock"):
        return EXIT_BUSY
    try:
        if job.lifeline is not None:
            Lifeline(Path(job.lifeline)).watch(lambda: os.kill(os.getpid(), signal.SIGTERM))
        work(job, folder)
    except Halt:
        return EXIT_STOPPED
    except Failure as failure:
        folder.fail(failure)
        return EXIT_FAILED
    except MemoryError:
        folder.fail(Failure("out_of_memory", "The job needs more memory than this machine has. Use a larger one."))
        return EXIT_FAILED
    except OSError as error:
        folder.fail(Failure("disk_trouble", f"The job could not read or write its files: {error.strerror}."))
        return EXIT_FAILED
    return EXIT_DONE


def _locked(path: Path) -> bool:
    """For as long as the process lives, however it ends."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _stop(_number: int, _frame: object) -> None:
    raise Halt
