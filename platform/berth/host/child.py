"""Starting and ending child processes that cannot outlive the process that started them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Literal

LAUNCH = Path(__file__).with_name("launch.py")
Identity = Literal["same", "mapped", "nobody"]


def launch_argv(argv: Sequence[str], death_signal: signal.Signals, identity: Identity = "same") -> list[str]:
    """The command line that runs `argv` tied to the life of the calling process. `argv[0]` is an absolute path."""
    return [sys.executable, "-I", "-S", str(LAUNCH), str(os.getpid()), str(int(death_signal)), identity, *argv]


def spawn(
    argv: Sequence[str],
    *,
    log: Path | None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    death_signal: signal.Signals = signal.SIGTERM,
    identity: Identity = "same",
) -> subprocess.Popen[bytes]:
    """Starts a child in a session of its own; what it prints is appended to `log` (mode 0600), or dropped without one.

    Call it from the thread that lives as long as the process: the kernel watches the thread that started the child.
    """
    with contextlib.ExitStack() as stack:
        output: int | IO[bytes] = subprocess.DEVNULL
        if log is not None:
            output = stack.enter_context(open_log(log))
        return subprocess.Popen(
            launch_argv(argv, death_signal, identity),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=None if env is None else dict(env),
            cwd=cwd,
            start_new_session=True,
            umask=0o077,
        )


def open_log(path: Path) -> IO[bytes]:
    """Opens a log for appending, readable by its owner alone. Appending lets it be cut short while it is written to."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    return os.fdopen(descriptor, "ab", buffering=0)


def end(process: subprocess.Popen[bytes], first: signal.Signals, patience: float) -> int:
    """Asks a child to end with `first` and kills its whole group after `patience` seconds. Returns its exit code."""
    if process.poll() is None:
        process.send_signal(first)
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            kill_group(process)
    return process.wait()


def kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nothing listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen there now; lingering connections of an earlier server do not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
