"""Processes by pid and start time, so that a number that was given to another process is never taken for ours."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import Final

import psutil

# The start time is computed from the wall clock at boot, which the system corrects by fractions of a second.
_TOLERANCE_SECONDS: Final = 2.0


def runs(pid: int) -> psutil.Process | None:
    """The process of this number if there is one and it is not a zombie."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process
    except (psutil.NoSuchProcess, psutil.AccessDenied, ValueError):
        return None


def started_at(process: psutil.Process, seconds: float) -> bool:
    """Whether the process began at this Unix time."""
    try:
        return bool(abs(process.create_time() - seconds) < _TOLERANCE_SECONDS)
    except psutil.NoSuchProcess:
        return False


def ask_to_end(process: psutil.Process) -> None:
    """SIGTERM. A process that has ended meanwhile is left alone."""
    with suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGTERM)


def end_session(process: psutil.Process) -> None:
    """SIGKILL to a session leader and to everything in its session, itself last.

    While the leader lives, the session's number cannot belong to anybody else.
    """
    for other in psutil.process_iter():
        with suppress(ProcessLookupError, PermissionError, psutil.Error):
            if other.pid != process.pid and os.getsid(other.pid) == process.pid:
                other.kill()
    with suppress(psutil.NoSuchProcess):
        process.kill()
