"""Waiting in the main thread for whatever happens first: time, a signal, or a word from another thread."""

from __future__ import annotations

import os
import select
from contextlib import suppress


class Wake:
    """A pipe to oneself. Writing to it is safe in signal handlers, which `threading.Event.set` is not."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def up(self) -> None:
        """Ends the present or the next wait."""
        with suppress(BlockingIOError):  # full: it will wake anyway
            os.write(self._write, b"\0")

    def wait(self, seconds: float) -> None:
        """Returns after `seconds` or earlier when woken."""
        ready, _, _ = select.select([self._read], [], [], max(seconds, 0))
        if ready:
            with suppress(BlockingIOError):
                os.read(self._read, 4096)
