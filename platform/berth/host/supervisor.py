"""Keeps a set of services running, leaves no process behind, and ends them in order."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType

import psutil

from berth.host.home import Lock
from berth.host.service import Service, wait_until

PR_SET_CHILD_SUBREAPER = 36
REPLICA_PATIENCE = 8.0  # seconds for engines to end once the lifeline is let go
TRIM_EVERY = 10.0  # seconds
REAP_EVERY = 2.0


class Interrupted(Exception):
    """Somebody asked Berth to stop."""


class Supervisor:
    """Services are stopped in the reverse order of `add`, those of a `foundation` after everything else.

    The engines of replicas are started by others. They hold on to `lifeline` and end when it is let go; as the
    subreaper, this process inherits and reaps them.
    """

    def __init__(self, lifeline: Lock, say: Callable[[str], None]) -> None:
        self.services: list[Service] = []
        self.foundations: list[Service] = []
        self.lifeline = lifeline
        self.say = say
        self.stopping = False
        self.helpers: set[int] = set()  # pids of short-lived programs that their starter waits for
        self._trim_at = 0.0
        self._reap_at = 0.0
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def take_signals(self) -> None:
        """From now on the usual signals ask for an orderly end; a second one hurries it."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self.stopping:
            self.stopping = True
            raise Interrupted
        for service in self.services:
            if service.process is not None:
                service.process.kill()

    def add(self, service: Service, *, foundation: bool = False) -> None:
        (self.foundations if foundation else self.services).append(service)
        service.launch(time.monotonic())

    def tick(self) -> None:
        """One round: deaths, restarts, strangers to reap, logs that have grown too long."""
        now = time.monotonic()
        for service in [*self.foundations, *self.services]:
            if news := service.tick(now):
                self.say(news)
        if now >= self._reap_at:
            self._reap_at = now + REAP_EVERY
            self._reap_strangers()
        if now >= self._trim_at:
            self._trim_at = now + TRIM_EVERY
            for service in [*self.foundations, *self.services]:
                service.trim_log()

    def run(self) -> None:
        """Supervises until a signal asks to stop, which raises Interrupted."""
        while True:
            self.tick()
            time.sleep(0.2)

    def stop(self) -> None:
        """Ends everything: first what takes requests, then what works on them, then engines, then the data."""
        self.stopping = True
        for service in reversed(self.services):
            service.stop()
        self.lifeline.release()
        if not wait_until(lambda: self._reap_strangers() == 0, REPLICA_PATIENCE):
            for process in self._strangers():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            wait_until(lambda: self._reap_strangers() == 0, 2.0)
        for service in reversed(self.foundations):
            service.stop()
        self._reap_strangers()

    def _own_pids(self) -> set[int]:
        services = {service.pid for service in [*self.foundations, *self.services] if service.pid is not None}
        return services | self.helpers

    def _strangers(self) -> list[psutil.Process]:
        """Processes that became our children because whoever started them has ended, and theirs."""
        own = self._own_pids()
        mine = [child for child in psutil.Process().children() if child.pid not in own]
        return [*mine, *(grandchild for child in mine for grandchild in child.children(recursive=True))]

    def _reap_strangers(self) -> int:
        """Collects ended processes that are not services; how many still run."""
        strangers = self._strangers()
        for process in strangers:
            with contextlib.suppress(psutil.NoSuchProcess, ChildProcessError):
                if process.status() == psutil.STATUS_ZOMBIE:
                    os.waitpid(process.pid, os.WNOHANG)
        return len([process for process in strangers if process.is_running()])
