"""The status file: what the replica says of itself, at least every second while it lives."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import psutil

from berth_runtime.files import write_atomically
from berth_runtime.spec import STATUS_FORMAT, EngineMetrics, LaunchSpec, Phase, PhaseTiming, ReplicaStatus

BEAT_SECONDS: Final = 1.0
_MOST_PHASES: Final = 64  # of an engine that was started again and again, the last ones
FINAL: Final = (Phase.STOPPED, Phase.FAILED)


class StatusBoard:
    """Holds the status, writes it on every change of phase and once a second. Safe to call from several threads."""

    def __init__(self, spec: LaunchSpec, engine_version: str | None) -> None:
        me = psutil.Process()
        now = time.time()
        self._path = Path(spec.state_dir) / "status.json"
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._status = ReplicaStatus(
            format=STATUS_FORMAT,
            replica=spec.replica,
            pid=me.pid,
            pid_created_at=me.create_time(),
            phase=Phase.VERIFYING,  # local files need no fetching
            phases=(PhaseTiming(Phase.VERIFYING, now),),
            updated_at=now,
            host=spec.host,
            engine_version=engine_version,
        )
        self._store()  # raises OSError: a replica that cannot say anything at all is not started

    def beat(self, also: Callable[[], None]) -> None:
        """Writes from a daemon thread from now on; `also` is called at each beat."""
        threading.Thread(target=self._beat, args=(also,), name="status", daemon=True).start()

    def enter(
        self, phase: Phase, *, port: int | None = None, reason: str | None = None, message: str | None = None
    ) -> None:
        """Ends the running phase and begins another. After a final phase nothing is written any more.

        `port` 0: nothing listens any more. A phase of its own kind before it that is empty is replaced, not ended.
        """
        now = time.time()
        with self._lock:
            if self._status.phase in FINAL:
                return
            *before, running = self._status.phases
            begun = PhaseTiming(phase, now, ended_at=now if phase in FINAL else None)
            if running.phase is phase or (phase is Phase.FETCHING and not before):
                phases = (*before, begun)
            else:
                phases = (*before, msgspec.structs.replace(running, ended_at=now), begun)
            self._status = msgspec.structs.replace(
                self._status,
                phase=phase,
                phases=phases[-_MOST_PHASES:],
                port=self._status.port if port is None else port or None,
                reason=reason,
                message=message,
            )
            self._write()
        if phase in FINAL:
            self._closed.set()

    def progress(self, done: int, total: int) -> None:
        """Bytes of the running phase; written with the next beat."""
        with self._lock:
            *before, running = self._status.phases
            self._status = msgspec.structs.replace(
                self._status, phases=(*before, msgspec.structs.replace(running, done=done, total=total))
            )

    def measured(self, metrics: EngineMetrics) -> None:
        """Metrics of the engine; written with the next beat."""
        with self._lock:
            self._status = msgspec.structs.replace(self._status, metrics=metrics)

    @property
    def phase(self) -> Phase:
        return self._status.phase

    def now(self) -> ReplicaStatus:
        """What the status file says or is about to say."""
        return self._status

    def _beat(self, also: Callable[[], None]) -> None:
        while not self._closed.wait(BEAT_SECONDS):
            also()
            with self._lock:
                if self._status.phase not in FINAL:
                    self._write()

    def _write(self) -> None:
        """A full disk must not end what serves; the next beat tries again."""
        with suppress(OSError):
            self._store()

    def _store(self) -> None:
        self._status = msgspec.structs.replace(self._status, updated_at=time.time())
        write_atomically(self._path, msgspec.json.encode(self._status))
