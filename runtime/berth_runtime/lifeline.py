"""A lock file that says whether the supervisor is alive.

The supervisor holds an exclusive flock on the file for as long as it lives, and the kernel frees it however the
supervisor ends. Whoever waits for a shared lock therefore gets it exactly when there is no supervisor any more.
Several may wait and all of them get it.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path


class Lifeline:
    """Watches one lifeline file from a daemon thread."""

    def __init__(self, path: Path) -> None:
        """Opens the file. Raises OSError when it is not there: without it there is no supervisor to live under."""
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def watch(self, on_lost: Callable[[], None]) -> None:
        """Calls `on_lost` once, from a thread, when the supervisor has ended (at once if it is not there)."""
        threading.Thread(target=self._wait, args=(on_lost,), name="lifeline", daemon=True).start()

    def _wait(self, on_lost: Callable[[], None]) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_SH)  # blocks, without the interpreter lock
        # Freed at once: a new supervisor must be able to take it while we are still ending.
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        on_lost()
