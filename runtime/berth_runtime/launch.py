"""Starting an agent that outlives whoever started it."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Final

from berth_runtime.engines.engine import Engine
from berth_runtime.serve import EXIT_FAILED, lock, serve
from berth_runtime.spec import LaunchSpec

VISIBLE: Final = b"v"


def launch(spec: LaunchSpec, engine: Engine) -> bool:
    """Starts the agent in a session of its own, as nobody's child; True once its status file tells of it.

    True also if the replica runs already. False: the agent ended before it could say anything.
    """
    held = lock(spec)
    if held is None:
        return True
    read, write = os.pipe2(os.O_CLOEXEC)
    sys.stdout.flush()
    sys.stderr.flush()
    middle = os.fork()
    if middle == 0:
        _middle(spec, engine, write)
    os.close(write)
    os.close(held)  # the lock stays with the agent, which has its own copy of the descriptor
    os.waitpid(middle, 0)
    with os.fdopen(read, "rb") as stream:
        return stream.read(1) == VISIBLE


def _middle(spec: LaunchSpec, engine: Engine, write: int) -> None:
    """Leaves the caller's session and ends at once, so that the agent has no living parent. Never returns."""
    status = EXIT_FAILED
    try:
        os.setsid()
        if os.fork() == 0:
            _detach()

            def tell() -> None:
                os.write(write, VISIBLE)
                os.close(write)

            status = serve(spec, engine, tell)
        else:
            status = 0
    finally:
        os._exit(status)


def _detach() -> None:
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        with suppress(OSError):
            os.dup2(null, number)
    os.close(null)
