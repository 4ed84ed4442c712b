"""What runs on one machine: the programs, their command lines and their environments."""

from __future__ import annotations

import functools
import http
import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from berth.env import SETTINGS, data_folder, read
from berth.host import secrets
from berth.host.child import launch_argv, open_log
from berth.host.errors import HostError
from berth.host.home import Home
from berth.host.postgres import Postgres
from berth.host.service import Service, program
from berth.host.valkey import Valkey

PLATFORM_ROOT = Path(__file__).resolve().parents[2]
PROJECT = PLATFORM_ROOT.parent
# What a program needs from its surroundings beside its own settings.
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "SSL_CERT_FILE")


class Machine:
    """Reads the settings once and knows how to start each program from them."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self.environ = environ
        self.home = Home(data_folder(environ))
        self.web_port = _number("BERTH_PORT", environ)
        self.gateway_port = _number("BERTH_GATEWAY_PORT", environ)
        self.secrets = Path(read("BERTH_SECRETS_DIR", environ) or self.home.folder / "secrets").expanduser().absolute()
        self.dashboard_url = (read("BERTH_PUBLIC_URL", environ) or f"http://127.0.0.1:{self.web_port}").rstrip("/")
        self.api_base = (read("BERTH_API_BASE", environ) or f"http://127.0.0.1:{self.gateway_port}/v1").rstrip("/")
        self.postgres: Postgres | None = None
        self.valkey: Valkey | None = None
        self.database_url = read("DATABASE_URL", environ)
        self.redis_url = read("REDIS_URL", environ)

    @property
    def ports(self) -> dict[str, int]:
        """The ports that users know, by their settings."""
        return {"BERTH_PORT": self.web_port, "BERTH_GATEWAY_PORT": self.gateway_port}

    def settle(self) -> None:
        """Makes secrets and decides where PostgreSQL and Valkey are; starts nothing."""
        secrets.ensure_secrets(self.secrets)
        if not self.database_url:
            password = secrets.read_secret(self.secrets, secrets.DATABASE_PASSWORD)
            self.postgres = Postgres(self.home.postgres, self.home.port("postgres"), password)
            self.database_url = self.postgres.url
        if not self.redis_url:
            password = secrets.read_secret(self.secrets, secrets.VALKEY_PASSWORD)
            gateway = secrets.read_secret(self.secrets, secrets.VALKEY_GATEWAY_PASSWORD)
            self.valkey = Valkey(self.home.valkey, self.home.port("valkey"), password, gateway_password=gateway)
            self.redis_url = self.valkey.url

    def settle_running(self) -> None:
        """Like `settle`, for an installation that runs: its ports are taken, by itself."""
        ports = self.home.read(self.home.run / "ports.json")
        if not self.database_url:
            password = secrets.read_secret(self.secrets, secrets.DATABASE_PASSWORD)
            self.database_url = Postgres(self.home.postgres, ports["postgres"], password).url
        if not self.redis_url:
            password = secrets.read_secret(self.secrets, secrets.VALKEY_PASSWORD)
            self.redis_url = Valkey(self.home.valkey, ports["valkey"], password).url

    def environment(self) -> dict[str, str]:
        """For programs of the control plane: every setting of Berth, and all of them absolute."""
        ours = {name: value for name, value in self.environ.items() if name.startswith("BERTH_")}
        return (
            self._base()
            | ours
            | {
                "BERTH_HOME": str(self.home.folder),
                "BERTH_SECRETS_DIR": str(self.secrets),
                "DATABASE_URL": self.database_url,
                "REDIS_URL": self.redis_url,
                "DJANGO_SETTINGS_MODULE": "berth.settings",
            }
        )

    def gateway_environment(self) -> dict[str, str]:
        """The gateway gets what it needs and no more: no database, no master key."""
        known = {setting.name for setting in SETTINGS}
        ours = {n: value for n, value in self.environ.items() if n.startswith("BERTH_") and n not in known}
        return (
            self._base()
            | ours
            | {
                "BERTH_GATEWAY_NAME": secrets.GATEWAY_NAME,
                "BERTH_GATEWAY_PORT": str(self.gateway_port),
                "BERTH_GATEWAY_DIR": str(self.home.gateway),
                "BERTH_SNAPSHOT_PUBLIC_KEY_FILE": str(self.secrets / secrets.SNAPSHOT_PUBLIC_KEY),
                "BERTH_USAGE_KEY_FILE": str(self.secrets / secrets.USAGE_KEY),
                "REDIS_URL": self.redis_url if self.valkey is None else self.valkey.gateway_url,
            }
        )

    def foundations(self) -> list[Service]:
        """The embedded services; empty when an operator brings their own."""
        services: list[Service] = []
        if self.postgres is not None:
            log = self.home.logs / "postgres.log"
            start = functools.partial(self.postgres.spawn, log)
            services.append(
                Service("postgres", "PostgreSQL", start, self.postgres.ready, log, signal.SIGINT, patience=20)
            )
        if self.valkey is not None:
            log = self.home.logs / "valkey.log"
            start = functools.partial(self.valkey.spawn, log)
            services.append(Service("valkey", "Valkey", start, self.valkey.ready, log))
        return services

    def programs(self) -> list[Service]:
        """Berth's own programs, in the order in which they are started; they are stopped from the last to the first."""
        web = [sys.executable, "-m", "uvicorn", "berth.asgi:application", "--host", "127.0.0.1"]
        web += ["--port", str(self.web_port), "--no-access-log", "--lifespan", "off", "--no-server-header"]
        web += ["--timeout-graceful-shutdown", "3", "--no-proxy-headers"]
        worker = [sys.executable, "-m", "berth.host.worker", str(self.home.run / "celerybeat-schedule")]
        gateway = [sys.executable, "-m", "berth_gateway"]
        # Another program, even another Berth, may have taken the port since it was looked at.
        dashboard = self._program(
            "web",
            "the dashboard and management API",
            web,
            self.environment(),
            ready=lambda: listens(dashboard.pid, self.web_port) and healthy(self.web_port),
        )
        programs = [
            self._program("worker", "the worker", worker, self.environment(), ready=lambda: True),
            dashboard,
            self._program(
                "gateway", "the gateway", gateway, self.gateway_environment(), ready=lambda: answers(self.gateway_port)
            ),
        ]
        # Requests in progress may go on for as long as the gateway is told to let them.
        drain = self.environ.get("BERTH_GATEWAY_DRAIN_SECONDS", "")
        programs[-1].patience = 10.0 + (float(drain) if drain.isdigit() else 30.0)
        return programs

    def first_run(self) -> subprocess.Popen[bytes]:
        """Starts the program that migrates and makes the first organisation; it tells its progress on standard output."""
        argv = launch_argv([sys.executable, "-m", "berth.host.firstrun"], signal.SIGKILL)
        with open_log(self.home.logs / "firstrun.log") as log:
            return subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self.environment(),
                start_new_session=True,
                umask=0o077,
            )

    def _program(
        self, name: str, title: str, argv: list[str], env: dict[str, str], ready: Callable[[], bool]
    ) -> Service:
        log = self.home.logs / f"{name}.log"
        return Service(name, title, program(argv, log, env), ready, log)

    def _base(self) -> dict[str, str]:
        kept = {name: self.environ[name] for name in PASSED_ON if name in self.environ}
        roots = f"{PLATFORM_ROOT}{os.pathsep}{PROJECT / 'runtime'}"
        return kept | {"PYTHONPATH": roots, "PYTHONUNBUFFERED": "1"}


def _number(name: str, environ: Mapping[str, str]) -> int:
    text = read(name, environ)
    if not text.isascii() or not text.isdigit():
        raise HostError(f"{name} must be a port number, not {text!r}.")
    return int(text)


def answers(port: int) -> bool:
    """Whether an HTTP server answers there, with anything but a fault of its own (500)."""
    status, _ = _get(port, "/")
    return status not in {0, 500}


def healthy(port: int) -> bool:
    """Whether what answers there is Berth's management API, and well."""
    status, content = _get(port, "/api/v1/health")
    try:
        return status == http.HTTPStatus.OK and json.loads(content) == {"status": "ok"}
    except ValueError:
        return False


def listens(pid: int | None, port: int) -> bool:
    """Whether that very process listens on the port of 127.0.0.1."""
    try:
        connections = psutil.Process(pid).net_connections("tcp4") if pid is not None else []
    except psutil.Error:
        return False
    return any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in connections)


def _get(port: int, path: str) -> tuple[int, bytes]:
    """Status and body of an answer of this machine; status 0 if there is none."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read(65536)
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()
