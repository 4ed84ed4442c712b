"""BERTH_HOME: the folder that holds everything an installation on one machine keeps, and the locks that guard it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from berth.host.child import free_port, port_is_free
from berth.host.errors import HostError
from berth.host.secrets import write_private

FIRST_START_BYTES = 400 << 20  # the database, the sample model and room to work
LATER_START_BYTES = 100 << 20


class Home:
    """Paths below BERTH_HOME. The folder is made with mode 0700 if needed; raises HostError if it cannot serve."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.expanduser().absolute()
        self.logs = self.folder / "logs"
        self.postgres = self.folder / "postgres"
        self.valkey = self.folder / "valkey"
        self.gateway = self.folder / "gateway"
        self.run = self.folder / "run"
        self.demo = self.folder / "demo.json"
        self.demo_pending = self.run / "demo.json"  # the same facts, before the model has answered
        self.draft = self.run / "first-start.json"  # what the first start must not forget when it is interrupted
        self.started = self.run / "started"  # marks that the first start came to its end
        self.lifeline = self.folder / "lifeline"
        self.running = self.run / "supervisor.json"
        self.timings = self.run / "timings.json"

    @property
    def started_before(self) -> bool:
        return self.started.exists()

    def prepare(self) -> None:
        """Makes the folders and makes sure that there is room."""
        first = not self.folder.exists()
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = self.folder.stat()
        if info.st_uid != os.geteuid():
            raise HostError(
                f"BERTH_HOME ({self.folder}) belongs to another user. Start Berth as that user, or set BERTH_HOME to a "
                "folder of your own."
            )
        if stat.S_IMODE(info.st_mode) & 0o066:
            self.folder.chmod(0o700)
        with contextlib.suppress(FileNotFoundError):
            first = first or not any(self.postgres.iterdir())
        for folder in (self.logs, self.gateway, self.run):
            folder.mkdir(mode=0o700, exist_ok=True)
        # Also proves that the folder can be written to, before anything is started.
        write_private(self.run / "writable", "")
        wanted = FIRST_START_BYTES if first or not self.postgres.exists() else LATER_START_BYTES
        free = shutil.disk_usage(self.folder).free
        if free < wanted:
            raise HostError(
                f"Only {free >> 20} MB are free where BERTH_HOME ({self.folder}) lies, and Berth needs {wanted >> 20} MB "
                "to start. Free some space, or set BERTH_HOME to a folder on another disk."
            )

    def end_first_start(self) -> None:
        """Lays the facts where people find them and marks the first start as over. Killed anywhere in it, it may be done again."""
        with contextlib.suppress(FileNotFoundError):
            self.demo_pending.replace(self.demo)
        self.started.touch(mode=0o600)
        self.draft.unlink(missing_ok=True)

    def read(self, path: Path) -> dict[str, Any]:
        """A JSON object from a file; empty when there is none or it is not whole."""
        try:
            value = json.loads(path.read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return value if isinstance(value, dict) else {}

    def write(self, path: Path, value: dict[str, Any]) -> None:
        write_private(path, json.dumps(value, indent=2) + "\n")

    def port(self, name: str) -> int:
        """The port of an embedded service: chosen once and kept, unless something else has taken it meanwhile."""
        path = self.run / "ports.json"
        ports = self.read(path)
        port = ports.get(name)
        if type(port) is not int or not 1 <= port <= 65535 or not _soon_free(port):
            port = free_port()
            self.write(path, {**ports, name: port})
        return port


def _soon_free(port: int, patience: float = 3.0) -> bool:
    """Whether the port is free, or becomes so while the processes of a killed supervisor still end."""
    deadline = time.monotonic() + patience
    while not port_is_free(port):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def demand_ports(ports: Mapping[str, int]) -> None:
    """Raises HostError unless the ports that users were told to use, by the names of their settings, can be listened on."""
    for setting, port in ports.items():
        if not 1 <= port <= 65535:
            raise HostError(f"{setting}={port} is not a port; it must be between 1 and 65535.")
    if len(set(ports.values())) < len(ports):
        shared = " and ".join(f"{setting}={port}" for setting, port in ports.items())
        raise HostError(f"{shared} are the same port, and each of the two needs one of its own. Change one of them.")


def demand_free(ports: Mapping[str, int]) -> None:
    """Raises HostError when something else listens on any of the ports; names all of them, so that one look is enough."""
    busy = {setting: port for setting, port in ports.items() if not _soon_free(port)}
    if not busy:
        return
    what = " and ".join(f"Port {port}" if n == 0 else f"port {port}" for n, port in enumerate(busy.values()))
    verb, those = ("is", "a free port") if len(busy) == 1 else ("are", "free ports")
    example = " ".join(f"{setting}={free_port()}" for setting in busy)
    raise HostError(
        f"{what} {verb} in use by another program, perhaps another Berth. Stop it, or set {' and '.join(busy)} to {those}, "
        f"for example `{example} make up`."
    )


class Lock:
    """An exclusive lock on a file, held until `release` or the end of the process, however that comes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def acquire(self, patience: float) -> bool:
        """Tries for `patience` seconds; whether the lock is ours now."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EINTR):
                    raise
                if time.monotonic() > deadline:
                    os.close(descriptor)
                    return False
                time.sleep(0.05)
            else:
                self._descriptor = descriptor
                return True

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
