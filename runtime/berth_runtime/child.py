"""The engine's process: started in a cage, listened to, ended with everything it started."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from berth_runtime.cage import Limits, caged
from berth_runtime.failure import Failure
from berth_runtime.lines import LineFilter

_GRACE_SECONDS: Final = 5.0


class Child:
    """Make it in the main thread: the kernel ends the engine when the thread that started it ends."""

    def __init__(
        self,
        argv: list[str],
        environment: dict[str, str],
        limits: Limits,
        output: LineFilter,
        on_end: Callable[[], None],
    ) -> None:
        """Starts it, in a process group of its own. `on_end` is called from a thread when its output has ended."""
        try:
            self._process = subprocess.Popen(
                caged(argv, limits),
                env=environment,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        except OSError as error:
            raise Failure("engine_missing", f"The engine cannot be started: {error.strerror}.") from None
        self._reader = threading.Thread(target=self._read, args=(output, on_end), name="output", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ended(self) -> int | None:
        """The exit status (negative: the signal), or None while it runs. Leaves the dead process to `finish`."""
        if self._process.returncode is not None:
            return self._process.returncode
        result = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if result is None:
            return None
        return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status

    def finish(self) -> int:
        """Ends the engine and all of its process group; the exit status."""
        if self._process.returncode is None:
            self._signal(signal.SIGTERM)
            deadline = time.monotonic() + _GRACE_SECONDS
            while self.ended() is None and time.monotonic() < deadline:
                time.sleep(0.02)
            # While its leader is not reaped, the group's number cannot belong to anybody else.
            self._signal(signal.SIGKILL)
            self._process.wait()
            self._reader.join(timeout=2)
        return self._process.returncode

    def listening_ports(self) -> set[int]:
        """TCP ports on which the engine and its children listen. Empty where the system does not tell."""
        ports = set()
        with suppress(psutil.Error):
            engine = psutil.Process(self.pid)
            for process in (engine, *engine.children(recursive=True)):
                sockets = process.net_connections("tcp")
                ports |= {socket.laddr.port for socket in sockets if socket.status == psutil.CONN_LISTEN}
        return ports

    def private_memory(self) -> int:
        """Bytes of memory that only the engine uses: its heap and caches, not the files it has mapped. 0: not known."""
        with suppress(OSError):
            for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
                if line.startswith("RssAnon:"):
                    return int(line.split()[1]) * 1024
        return 0

    def resident_memory(self) -> int:
        """Bytes of main memory of the engine and all that it started, mapped weights included. 0: not known."""
        total = 0
        with suppress(psutil.Error):
            engine = psutil.Process(self.pid)
            for process in (engine, *engine.children(recursive=True)):
                with suppress(psutil.Error):
                    total += process.memory_info().rss
        return total

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def _read(self, output: LineFilter, on_end: Callable[[], None]) -> None:
        stream = self._process.stdout
        if stream is not None:
            with stream:
                while data := os.read(stream.fileno(), 65536):
                    output.feed(data)
        output.close()
        on_end()
