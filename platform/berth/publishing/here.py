"""Publishing in the very process that made a change, so that a revocation waits for no worker.

The task at commit and the clock do the same work: whoever comes first does it, and the others find nothing left to do.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from django.conf import settings
from django.db import InterfaceError, OperationalError, connection

from berth.outbox import services as outbox
from berth.outbox.valkey import UNAVAILABLE
from berth.publishing.services import publish

log = logging.getLogger(__name__)


class Publisher:
    """One thread; changes that come while it is at work are covered together by its next run."""

    def __init__(self, act: Callable[[], object] = publish) -> None:
        self._act = act
        self._stopping = False
        self._wake = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def ask(self) -> None:
        """Returns at once. Call it after the commit."""
        self._wake.set()
        with self._starting:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Ends the thread after what it is at."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            self._wake.wait()
            self._wake.clear()
            try:
                self._act()
            except (*UNAVAILABLE, OperationalError, InterfaceError) as error:
                log.warning("publish_deferred", extra={"reason": type(error).__name__})
            finally:
                connection.close()


def enable() -> None:
    """For processes that serve people. Does nothing unless PUBLISH_AT_ONCE is set."""
    if settings.PUBLISH_AT_ONCE:
        outbox.on_announced(Publisher().ask)
