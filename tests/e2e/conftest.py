"""The whole platform, started as its users start it, once per test run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import msgspec
import psutil
import psycopg
import pytest
import redis
from psycopg import sql

from berth.host.child import free_port
from berth.host.machine import Machine
from berth_gateway.contract import GATEWAYS_KEY, GatewayReport

ROOT = Path(__file__).resolve().parents[2]
START_PATIENCE = 300.0  # seconds; the first start makes a database and imports a model
T = TypeVar("T")


@dataclass
class Platform:
    """A running platform with handles on everything a test may want to look at or break.

    `demo` holds the facts of demo.json. The platform itself makes one metered one-token request at every start.
    """

    home: Path
    ports: tuple[int, int]
    demo: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    python: str = sys.executable
    _process: subprocess.Popen[bytes] | None = None
    _session: httpx.Client | None = None

    # --- start and end

    def env(self) -> dict[str, str]:
        kept = {
            k: v for k, v in os.environ.items() if not k.startswith(("BERTH_", "DJANGO_")) and not k.endswith("_URL")
        }
        ours = {
            "BERTH_HOME": str(self.home),
            "BERTH_PORT": str(self.ports[0]),
            "BERTH_GATEWAY_PORT": str(self.ports[1]),
        }
        roots = os.pathsep.join(str(ROOT / root) for root in ("platform", "runtime"))
        return kept | ours | {"PYTHONPATH": roots} | self.environment

    def start(self) -> None:
        """Returns when the platform says that it is running, with a model that answered."""
        with self.output_file.open("ab") as output:
            self._process = subprocess.Popen(
                [self.python, "-m", "berth.host", "up"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.env(),
                cwd=ROOT,
            )
        deadline = time.monotonic() + START_PATIENCE
        while self.state().get("state") != "running":
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.end(signal.SIGINT)
                pytest.fail(f"The platform did not start:\n{self.story()}", pytrace=False)
            time.sleep(0.1)
        self.demo = json.loads((self.home / "demo.json").read_text())

    def end(self, how: signal.Signals) -> int:
        """Sends the supervisor a signal and waits for its end. Returns its exit code."""
        assert self._process is not None
        if self._session is not None:
            self._session.close()
            self._session = None
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(how)
        return self._process.wait(90)

    def try_second_start(self) -> subprocess.CompletedProcess[str]:
        """What happens when the same command is given once more."""
        return subprocess.run(
            [self.python, "-m", "berth.host", "up"],
            capture_output=True,
            text=True,
            env=self.env(),
            cwd=ROOT,
            timeout=60,
            check=False,
        )

    def manage(self, *arguments: str) -> str:
        """What a command of manage.py prints about the running platform."""
        done = subprocess.run(
            [self.python, "-m", "berth.host", "manage", *arguments],
            capture_output=True,
            text=True,
            env=self.env(),
            cwd=ROOT,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    # --- processes

    def state(self) -> dict[str, Any]:
        """What the supervisor wrote of itself; empty unless this very process wrote it."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            state: dict[str, Any] = json.loads((self.home / "run" / "supervisor.json").read_text())
            if self._process is not None and state["pid"] == self._process.pid:
                return state
        return {}

    def processes(self) -> list[psutil.Process]:
        """Everything that runs because of the platform, the supervisor included."""
        assert self._process is not None
        supervisor = psutil.Process(self._process.pid)
        return [process for process in [supervisor, *supervisor.children(recursive=True)] if _runs(process)]

    def kill(self, name: str) -> None:
        """kill -9 for postgres, valkey, web, gateway or worker; waits until the supervisor has started it again."""
        before = self.state()["pids"][name]
        os.kill(before, signal.SIGKILL)
        self.wait_for(lambda: self.state().get("pids", {}).get(name) not in (before, None))

    # --- data

    @property
    def database_url(self) -> str:
        return self._machine().database_url

    @property
    def redis_url(self) -> str:
        return self._machine().redis_url

    def _machine(self) -> Machine:
        machine = Machine(self.env())
        machine.settle_running()
        return machine

    def count(self, table: str) -> int:
        with psycopg.connect(self.database_url) as connection:
            row = connection.execute(sql.SQL("select count(*) from {}").format(sql.Identifier(table))).fetchone()
            assert row is not None
            return int(row[0])

    def event_id_of(self, request_id: str) -> str:
        """The usage event of the request with this `x-request-id`."""
        return str(uuid.UUID(request_id.removeprefix("req_")))

    def everything_is_ingested(self) -> bool:
        """Whether the gateway knows that all of its usage is in PostgreSQL, by a report made after this call began."""
        asked = time.time()
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with contextlib.suppress(redis.RedisError), redis.Redis.from_url(self.redis_url) as client:
                packed: dict[bytes, bytes] = client.hgetall(GATEWAYS_KEY)  # type: ignore[assignment]
                reports = [msgspec.msgpack.decode(value, type=GatewayReport) for value in packed.values()]
                fresh = [report for report in reports if report.at > asked]
                if fresh:
                    return all(report.spool_pending == 0 and report.in_flight == 0 for report in fresh)
            time.sleep(0.1)
        return False

    def wait_for(self, condition: Callable[[], T], seconds: float = 30) -> T:
        """The first true value of `condition`; fails with the platform's own story when it takes too long."""
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            if time.monotonic() > deadline:
                pytest.fail(f"This did not come true within {seconds:.0f} s.\n{self.story()}")
            time.sleep(0.1)
        return value

    # --- people

    def sign_in(self) -> httpx.Client:
        """The operator's session on the management API, with its CSRF token in place."""
        if self._session is None:
            session = httpx.Client(base_url=self.demo["dashboard_url"], timeout=30)
            session.get("/api/v1/csrf").raise_for_status()
            self._take_token(session)
            credentials = {"email": self.demo["email"], "password": self.demo["password"]}
            session.post("/api/v1/auth/browser/v1/auth/login", json=credentials).raise_for_status()
            self._take_token(session)
            self._session = session
        return self._session

    @staticmethod
    def _take_token(session: httpx.Client) -> None:
        session.headers["X-CSRFToken"] = session.cookies["berth_csrf"]

    # --- what it said

    @property
    def output_file(self) -> Path:
        return self.home.parent / f"{self.home.name}.output"

    def printed_curl(self) -> str:
        """The curl command, exactly as it was printed by the first start."""
        return "curl " + self._output().split("\ncurl ", 1)[1].split("\n\n", 1)[0]

    def printed_python(self) -> str:
        """The Python snippet, exactly as it was printed by the first start."""
        return (
            "from openai import OpenAI"
            + self._output().split("\nfrom openai import OpenAI", 1)[1].split("\n\n\n", 1)[0]
        )

    def _output(self) -> str:
        return self.output_file.read_text()

    def story(self) -> str:
        """What the platform printed, and the end of every log."""
        parts = [self._output()[-3000:]]
        for log in sorted((self.home / "logs").glob("*.log")):
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            parts.append(f"--- {log.name}\n{tail}")
        return "\n".join(parts)


def _runs(process: psutil.Process) -> bool:
    """Not gone, and not merely waiting for its parent to notice that it has ended."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(scope="session")
def platform_up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """The platform with its sample model, as `make up` leaves it. Tests may kill parts of it, and leave it running."""
    platform = Platform(tmp_path_factory.mktemp("e2e") / "berth", (free_port(), free_port()))
    try:
        platform.start()
        yield platform
    finally:
        if platform._process is not None and platform._process.poll() is None:
            platform.end(signal.SIGINT)
