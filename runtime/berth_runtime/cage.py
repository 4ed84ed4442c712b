"""Starts a program under limits. Runs as a file of its own, with nothing but the standard library.

    python -I -S cage.py '{"parent": 123, …}' program argument…

A separate process sets the limits and then becomes the program: setting them between fork and exec of a process with
threads (what `preexec_fn` would do) can deadlock.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_OOM_SCORE = "500"  # under memory pressure the kernel takes an engine before a database


@dataclass(frozen=True)
class Limits:
    """What a caged program may have. None: as much as the system gives."""

    data_bytes: int | None = None  # heap and other private writable memory; files mapped to be read do not count
    file_bytes: int | None = 0  # size of any file it writes; 0: it can write none
    open_files: int = 4096


def caged(argv: list[str], limits: Limits) -> list[str]:
    """The command line that runs `argv` under `limits` and ends it when the calling thread ends."""
    settings = json.dumps({"parent": os.getpid(), **asdict(limits)})
    return [sys.executable, "-I", "-S", "-B", __file__, settings, *argv]


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def _limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


def _main() -> None:
    settings = json.loads(sys.argv[1])
    parent = settings.pop("parent")
    limits = Limits(**settings)
    os.umask(0o077)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before we asked to be told
        sys.exit(1)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    # 1, not 0: no core file is as small as a byte, and 1 is what also keeps the kernel from feeding a core to a pipe.
    _limit(resource.RLIMIT_CORE, 1)
    _limit(resource.RLIMIT_NOFILE, limits.open_files)
    if limits.file_bytes is not None:
        _limit(resource.RLIMIT_FSIZE, limits.file_bytes)
    if limits.data_bytes is not None:
        _limit(resource.RLIMIT_DATA, limits.data_bytes)
    with suppress(OSError):  # hardening only, and not every system has it
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    os.execve(sys.argv[2], sys.argv[2:], os.environ)  # noqa: S606 - an exec without a shell is the point


if __name__ == "__main__":
    _main()
