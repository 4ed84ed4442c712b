"""One supervised program: how it is started, ended, and started again when it dies."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from berth.host.child import end, spawn

LOG_BOUND = 5 << 20  # bytes of a log; the part before is kept once, in `<name>.log.1`
FIRST_DELAY = 0.25  # seconds before the first restart; doubles with each death that follows soon
LONGEST_DELAY = 30.0
STEADY = 20.0  # seconds of life after which earlier deaths are forgotten
LOOP = 5  # deaths in a row that are worth a sentence


@dataclass
class Service:
    """A program under supervision. `start` makes the process; `title` is what people read, as in "the gateway"."""

    name: str
    title: str
    start: Callable[[], subprocess.Popen[bytes]]
    ready: Callable[[], bool]
    log: Path
    stop_signal: signal.Signals = signal.SIGTERM
    patience: float = 10.0  # seconds to end by itself when asked to
    process: subprocess.Popen[bytes] | None = None
    deaths: int = 0
    told: bool = False
    started_at: float = 0.0
    restart_at: float | None = None
    last_code: int | None = field(default=None)
    blocked: str = ""  # why the system did not let it be started the last time

    @property
    def pid(self) -> int | None:
        return None if self.process is None else self.process.pid

    def _name(self) -> str:
        return self.title[0].upper() + self.title[1:]

    def launch(self, now: float) -> None:
        self.restart_at = None
        self.started_at = now
        self.process = self.start()
        self.blocked = ""

    def tick(self, now: float) -> str | None:
        """Notices a death and starts the program again when its time has come. Returns a sentence if there is news."""
        if self.process is not None and (code := self.process.poll()) is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)  # what a dead program left in its group
            self.process = None
            self.last_code = code
            if now - self.started_at > STEADY:
                self.deaths, self.told = 0, False
            self._try_again_later(now)
            if self.deaths == LOOP and not self.told:
                self.told = True
                return (
                    f"{self._name()} has ended {LOOP} times in a row (last with {describe(code)}). Its log is "
                    f"{self.log}. Berth keeps trying, at most every {LONGEST_DELAY:.0f} s."
                )
            if self.deaths == 1:
                return f"{self._name()} ended ({describe(code)}) and is being started again."
        elif self.process is None and self.restart_at is not None and now >= self.restart_at:
            try:
                self.launch(now)
            except OSError as error:  # a full disk, no memory: the others go on, and so does trying
                return self._not_started(error, now)
        return None

    def _try_again_later(self, now: float) -> None:
        self.deaths += 1
        self.restart_at = now + min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(self.deaths - 1, 10))

    def _not_started(self, error: OSError, now: float) -> str | None:
        self._try_again_later(now)
        why = error.strerror or str(error)
        if why == self.blocked:
            return None
        self.blocked = why
        return f"{self._name()} cannot be started again now ({why}). Berth keeps trying, at most every {LONGEST_DELAY:.0f} s."

    def why_not(self) -> str:
        """Why it does not run, in a sentence with the last line of its log."""
        how = "does not answer" if self.last_code is None else f"keeps ending ({describe(self.last_code)})"
        return f"{self._name()} {how}. The last line of its log {self.log} is: {last_line(self.log)}"

    def stop(self) -> None:
        self.restart_at = None
        if self.process is not None:
            end(self.process, self.stop_signal, self.patience)
            self.process = None

    def trim_log(self) -> None:
        """Cuts a log that has grown beyond its bound. The program appends, so it simply goes on at the new end."""
        with contextlib.suppress(OSError):  # not there yet; or no room for the older part, which is then lost
            if self.log.stat().st_size > LOG_BOUND:
                older = self.log.with_suffix(".log.1")
                content = self.log.read_bytes()[-LOG_BOUND:]
                os.truncate(self.log, 0)
                older.touch(mode=0o600)
                older.write_bytes(content)


def program(
    argv: list[str], log: Path, env: Mapping[str, str], death_signal: signal.Signals = signal.SIGKILL
) -> Callable[[], subprocess.Popen[bytes]]:
    """How to start a program of Berth's own. All are safe to kill, so a lost supervisor ends them at once."""
    return lambda: spawn(argv, log=log, env=env, death_signal=death_signal)


def last_line(log: Path) -> str:
    """The last line of a log that is not blank, at most 300 characters of it."""
    lines = log.read_text(errors="replace").split("\n") if log.exists() else []
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "(it is empty)")


def describe(code: int) -> str:
    """An exit code in words."""
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"signal {signal.Signals(-code).name}"
    return f"code {code}"


def wait_until(condition: Callable[[], bool], patience: float, step: float = 0.05) -> bool:
    """Whether the condition came true within `patience` seconds."""
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(step)
    return True
