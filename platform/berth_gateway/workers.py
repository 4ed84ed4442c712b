"""The parent of several gateway processes: starts them, starts anew what dies, ends them together. Serves nothing itself."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import FrameType

from berth_gateway.config import Config, ConfigError

GRACE_SECONDS = 5.0  # beyond the drain, until a worker that does not end is killed
STEADY_SECONDS = 10.0  # a worker that lived so long is started anew at once
LONGEST_PAUSE = 10.0
LOOK_SECONDS = 0.1
BAD_SETTING = 2


@dataclass(slots=True)
class _Worker:
    """One process. `due`: when it is to be started, on the monotonic clock. `pause`: how long it waits after a quick death."""

    number: int
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    due: float = 0.0
    pause: float = 0.0


class Workers:
    """Holds the port, bound but deaf, so that no other program takes it while workers come and go."""

    def __init__(self, config: Config, environ: Mapping[str, str]) -> None:
        self._config = config
        self._environ = dict(environ)
        self._workers = [_Worker(number) for number in range(1, config.workers + 1)]
        self._stopping = False
        self._code = 0

    def run(self) -> int:
        """Until SIGTERM or SIGINT; the exit code. Raises ConfigError."""
        held = self._hold_port()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        while not self._stopping:
            self._look()
            time.sleep(LOOK_SECONDS)
        self._end()
        held.close()
        return self._code

    def _hold_port(self) -> socket.socket:
        address = self._config.bind
        held = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        try:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            held.bind((address, self._config.port))
        except OSError as fault:
            held.close()
            raise ConfigError(
                f"The gateway cannot listen on {address} port {self._config.port}: {fault.strerror}. "
                "Stop what uses it, or choose another port."
            ) from None
        self._environ["BERTH_GATEWAY_PORT"] = str(held.getsockname()[1])
        return held

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True

    def _look(self) -> None:
        now = time.monotonic()
        for worker in self._workers:
            if worker.process is None:
                if now >= worker.due:
                    self._start(worker, now)
                continue
            code = worker.process.poll()
            if code is None:
                continue
            worker.process = None
            if code == BAD_SETTING:  # it has said why; starting it again would not help
                self._stopping, self._code = True, BAD_SETTING
                return
            quick = now - worker.started < STEADY_SECONDS
            worker.pause = min(LONGEST_PAUSE, worker.pause * 2 or LOOK_SECONDS) if quick else 0.0
            worker.due = now + worker.pause

    def _start(self, worker: _Worker, now: float) -> None:
        command = [sys.executable, "-m", "berth_gateway", "--worker", str(worker.number), str(os.getpid())]
        worker.process = subprocess.Popen(command, env=self._environ)
        worker.started = now

    def _end(self) -> None:
        """Every worker drains at the same time; one that does not end is killed, and loses nothing: its spool settles what ran."""
        running = [worker.process for worker in self._workers if worker.process is not None]
        for process in running:
            process.terminate()
        until = time.monotonic() + self._config.drain + GRACE_SECONDS
        for process in running:
            try:
                process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
