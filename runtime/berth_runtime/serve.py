"""The agent: one process per replica, from its spec to its end."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final

from berth_runtime.engines.catalogue import engine_named
from berth_runtime.engines.engine import Engine
from berth_runtime.failure import Failure
from berth_runtime.log import ReplicaLog
from berth_runtime.spec import LaunchSpec, Phase
from berth_runtime.specfile import BadSpec
from berth_runtime.status import StatusBoard
from berth_runtime.statusport import StatusPort
from berth_runtime.supervise import Supervisor

EXIT_STOPPED: Final = 0
EXIT_FAILED: Final = 1
EXIT_BAD_SPEC: Final = 2


def prepare(spec: LaunchSpec) -> Engine:
    """Everything that can be refused before anything runs: the engine and the folder. Raises BadSpec."""
    engine = engine_named(spec.engine)
    if engine is None:
        raise BadSpec(f"This runtime has no engine called {spec.engine}.")
    try:
        Path(spec.state_dir).mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BadSpec(f"The folder {spec.state_dir} cannot be made: {error.strerror}.") from None
    return engine


def lock(spec: LaunchSpec) -> int | None:
    """Takes the replica for this process until it ends; None if another process runs it. Raises BadSpec."""
    try:
        fd = os.open(Path(spec.state_dir) / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except OSError as error:
        raise BadSpec(f"The folder {spec.state_dir} cannot be used: {error.strerror}.") from None
    return fd


def serve(
    spec: LaunchSpec,
    engine: Engine,
    on_visible: Callable[[], None] = lambda: None,
    status_port: int | None = None,
    role: Callable[[LaunchSpec, Engine, StatusBoard, ReplicaLog], Supervisor] = Supervisor,
) -> int:
    """Runs the replica to its end; the exit status. The caller holds the lock.

    `on_visible` is called once the status file tells of this run; `status_port` serves the same over HTTP.
    """
    try:
        version: str | None = engine.version()
    except Failure:
        version = None  # the same trouble will be told when the engine is started
    try:
        board = StatusBoard(spec, version)
    except OSError as error:
        sys.stderr.write(f"The folder {spec.state_dir} cannot be written to: {error.strerror}.\n")
        return EXIT_FAILED
    if status_port is not None:
        try:
            StatusPort(spec, status_port, board.now).start()
        except OSError as error:
            sys.stderr.write(f"The status port {status_port} cannot be opened: {error.strerror or error}.\n")
            return EXIT_FAILED
    supervisor = role(spec, engine, board, ReplicaLog(Path(spec.state_dir)))

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        supervisor.order_stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    on_visible()
    return EXIT_FAILED if supervisor.run() is Phase.FAILED else EXIT_STOPPED
