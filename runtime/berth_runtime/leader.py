"""Whether the node that a replica's other nodes work for is still there, and still the same.

Engines that span nodes do not notice on all of them that the first one has ended: the others would hold their devices for nobody. So each
asks the first node's status port, which answers for as long as the agent there lives, and says which life that is.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable
from typing import Final

from berth_runtime.statusport import LIFE

ASK_SECONDS: Final = 1.0
REFUSED_SECONDS: Final = 4.0  # its machine answers that nobody is there
SILENT_SECONDS: Final = (
    30.0  # nothing answers: that may be the network's fault, and then the engine's own link has a hitch too
)
_PATIENCE: Final = 3.0  # for one answer

_ENDED: Final = "The replica's first node has ended, so this one ended too."
_ANOTHER: Final = "The replica's first node was started again, and this one worked for the one before."
_SILENT: Final = f"The replica's first node has not answered for {SILENT_SECONDS:.0f} seconds."


class Leader:
    """Asks from a daemon thread. Until it is seen for the first time nothing is concluded: it may start later."""

    def __init__(self, host: str, port: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._host = host
        self._port = port
        self._clock = clock
        self._life: str | None = None
        self._missing_since: float | None = None
        self.lost: str | None = None  # why the engine here has nobody to work for any more

    @property
    def seen(self) -> bool:
        return self._life is not None

    def watch(self, on_seen: Callable[[], None], on_lost: Callable[[], None]) -> None:
        """Calls each once, from a thread."""
        threading.Thread(target=self._watch, args=(on_seen, on_lost), name="leader", daemon=True).start()

    def _watch(self, on_seen: Callable[[], None], on_lost: Callable[[], None]) -> None:
        told = False
        while self.lost is None:
            self.look()
            if self.seen and not told:
                told = True
                on_seen()
            time.sleep(ASK_SECONDS)
        on_lost()

    def look(self) -> None:
        """Asks once."""
        refused = False
        try:
            life = self._ask()
        except (OSError, http.client.HTTPException) as error:
            life, refused = None, isinstance(error, ConnectionRefusedError | ConnectionResetError)
        self._learn(life, refused=refused)

    def _learn(self, life: str | None, *, refused: bool) -> None:
        if life is not None:
            self._missing_since = None
            if self._life not in (None, life):
                self.lost = _ANOTHER
            self._life = life
        elif self._life is not None:
            now = self._clock()
            self._missing_since = now if self._missing_since is None else self._missing_since
            missing = now - self._missing_since
            if refused and missing >= REFUSED_SECONDS:
                self.lost = _ENDED
            elif missing >= SILENT_SECONDS:
                self.lost = _SILENT

    def _ask(self) -> str | None:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=_PATIENCE)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().getheader(LIFE)
        finally:
            connection.close()
