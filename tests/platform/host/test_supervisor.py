"""The supervisor as its users meet it, over real PostgreSQL and Valkey and light programs in place of Berth's own."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import psutil
import psycopg
import pytest
import redis

from berth.host.__main__ import explain, main
from berth.host.child import free_port
from berth.host.errors import HostError
from berth.host.home import Home, Lock
from berth.host.machine import Machine
from berth.host.postgres import Postgres
from berth.host.valkey import Valkey

LIGHT = Path(__file__).with_name("light.py")
PATIENCE = 60.0


@dataclass
class Run:
    """One `make up`, so to say."""

    home: Path
    ports: tuple[int, int]
    environment: dict[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    process: subprocess.Popen[str] | None = None

    def env(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("BERTH_") and not k.endswith("_URL")}
        ours = {
            "BERTH_HOME": str(self.home),
            "BERTH_PORT": str(self.ports[0]),
            "BERTH_GATEWAY_PORT": str(self.ports[1]),
        }
        return kept | ours | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)} | self.environment

    def start(self) -> None:
        output = (self.home.parent / "output").open("w")
        self.process = subprocess.Popen(
            [sys.executable, str(LIGHT), *self.arguments], stdout=output, stderr=subprocess.STDOUT, env=self.env()
        )
        self.wait(lambda: self.state() == "running" or self.process.poll() is not None)

    def run(self) -> subprocess.CompletedProcess[str]:
        """For starts that are meant to fail."""
        return subprocess.run(
            [sys.executable, str(LIGHT), *self.arguments],
            capture_output=True,
            text=True,
            env=self.env(),
            timeout=PATIENCE,
            check=False,
        )

    @property
    def output(self) -> str:
        return (self.home.parent / "output").read_text()

    def state(self) -> str | None:
        """What the supervisor says of itself, if it is this run's own word."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            state = json.loads((self.home / "run" / "supervisor.json").read_text())
            if self.process is not None and state["pid"] == self.process.pid:
                return str(state["state"])
        return None

    def pid(self, name: str) -> int:
        return int(json.loads((self.home / "run" / "supervisor.json").read_text())["pids"][name])

    def family(self) -> list[psutil.Process]:
        assert self.process is not None
        return psutil.Process(self.process.pid).children(recursive=True)

    def urls(self) -> Machine:
        machine = Machine(self.env())
        machine.settle_running()
        return machine

    def wait(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, self.output
            time.sleep(0.05)

    def stop(self) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENCE)


def command_of(process: psutil.Process) -> str:
    """Empty for one that has ended, also if its parent has not noticed yet."""
    with contextlib.suppress(psutil.NoSuchProcess):  # a zombie is one of these
        return " ".join(process.cmdline())
    return ""


@pytest.fixture
def a_run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path / "home", (free_port(), free_port()))
    yield run
    if run.process is not None:
        run.stop()


def test_a_life_start_kill_resume_stop(a_run: Run) -> None:
    a_run.start()
    assert a_run.state() == "running", a_run.output
    assert "Password    pw" in a_run.output
    machine = a_run.urls()
    with psycopg.connect(machine.database_url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS number")
    with redis.Redis.from_url(machine.redis_url) as client:
        client.set("kept", "42")
        a_run.wait(lambda: client.info("persistence")["aof_pending_bio_fsync"] == 0)
    family = a_run.family()
    commands = [command_of(process) for process in family]
    assert any("LOCK_SH" in command and "Popen" not in command for command in commands), "the engine is in the family"

    assert a_run.process is not None
    a_run.process.kill()
    a_run.process.wait()
    a_run.start()  # at once: the old family is still dying
    assert a_run.state() == "running", a_run.output
    _, alive = psutil.wait_procs(family, timeout=10)
    assert [command for process in alive if (command := command_of(process))] == []
    assert "Password" not in a_run.output, "shown once"
    again = a_run.urls()
    assert (again.database_url, again.redis_url) == (machine.database_url, machine.redis_url), "ports are remembered"
    with psycopg.connect(again.database_url) as connection:
        assert connection.execute("SELECT number FROM kept").fetchone() == (42,)
    with redis.Redis.from_url(again.redis_url) as client:
        assert client.get("kept") == b"42"

    family = a_run.family()
    assert a_run.stop() == 0
    assert [process for process in family if process.is_running()] == []
    assert "Traceback" not in a_run.output
    assert not (a_run.home / "postgres" / "data" / "postmaster.pid").exists()


def test_dead_programs_and_services_come_back(a_run: Run) -> None:
    a_run.start()
    before = {name: a_run.pid(name) for name in ("postgres", "valkey", "web", "gateway", "worker")}
    for pid in before.values():
        os.kill(pid, signal.SIGKILL)

    def back() -> bool:
        now = json.loads((a_run.home / "run" / "supervisor.json").read_text())["pids"]
        return all(now[name] not in (pid, None) for name, pid in before.items())

    a_run.wait(back)
    machine = a_run.urls()

    def works() -> bool:
        try:
            with psycopg.connect(machine.database_url) as connection, redis.Redis.from_url(machine.redis_url) as client:
                return bool(connection.execute("SELECT 1").fetchone() and client.ping())
        except (psycopg.OperationalError, redis.RedisError):
            return False

    a_run.wait(works)
    assert "PostgreSQL ended (signal SIGKILL) and is being started again." in a_run.output


def test_second_start_names_the_first(a_run: Run) -> None:
    a_run.start()
    second = a_run.run()
    assert second.returncode == 1
    assert f"running already for BERTH_HOME={a_run.home}" in second.stderr
    assert f"http://127.0.0.1:{a_run.ports[0]}" in second.stderr
    assert "Traceback" not in second.stderr
    assert a_run.state() == "running"


def test_a_second_start_while_the_first_has_told_nothing_yet(a_run: Run) -> None:
    home = Home(a_run.home)
    home.prepare()
    lock = Lock(home.run / "supervisor.lock")
    assert lock.acquire(1)
    try:
        done = a_run.run()
    finally:
        lock.release()
    assert done.returncode == 1
    assert f"Berth is being started already for BERTH_HOME={a_run.home}" in done.stderr


def test_port_in_use_names_the_setting(a_run: Run) -> None:
    with socket.create_server(("127.0.0.1", a_run.ports[1])):
        done = a_run.run()
    assert done.returncode == 1
    assert f"Port {a_run.ports[1]} is in use" in done.stderr
    assert "set BERTH_GATEWAY_PORT to a free port" in done.stderr
    assert "Traceback" not in done.stderr


def test_both_ports_in_use_are_told_at_once(a_run: Run) -> None:
    with socket.create_server(("127.0.0.1", a_run.ports[0])), socket.create_server(("127.0.0.1", a_run.ports[1])):
        done = a_run.run()
    assert done.returncode == 1
    assert (
        f"Port {a_run.ports[0]} and port {a_run.ports[1]} are in use by another program, perhaps another" in done.stderr
    )
    assert "set BERTH_PORT and BERTH_GATEWAY_PORT to free ports" in done.stderr
    assert not (a_run.home / "postgres").exists()


def test_equal_ports_are_refused_before_anything_is_made(a_run: Run) -> None:
    a_run.ports = (a_run.ports[0], a_run.ports[0])
    done = a_run.run()
    assert done.returncode == 1
    assert f"BERTH_PORT={a_run.ports[0]} and BERTH_GATEWAY_PORT={a_run.ports[0]} are the same port" in done.stderr
    assert not a_run.home.exists()


@pytest.mark.parametrize("left_behind", [False, True], ids=["never ran", "was killed"])
def test_a_command_for_what_does_not_run_says_where_it_looked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], left_behind: bool
) -> None:
    monkeypatch.setenv("BERTH_HOME", str(tmp_path / "home"))
    if left_behind:
        home = Home(tmp_path / "home")
        home.prepare()
        home.write(home.running, {"pid": 1, "state": "running"})
    assert main(["manage", "check"]) == 1
    assert f"Berth is not running for BERTH_HOME={tmp_path / 'home'}." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("BERTH_PORT", "http", "BERTH_PORT must be a port number, not 'http'"),
        ("BERTH_PORT", "70000", "must be between 1 and 65535"),
        ("BERTH_DEMO", "maybe", "BERTH_DEMO must be 1 or 0, not 'maybe'"),
        ("BERTH_HOME", "/dev/null/berth", "Set BERTH_HOME to a folder"),
        ("BERTH_HOME", "/proc/berth", "Set BERTH_HOME"),
    ],
)
def test_settings_that_cannot_be_used(a_run: Run, name: str, value: str, sentence: str) -> None:
    a_run.environment = {name: value}
    done = a_run.run()
    assert done.returncode == 1
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_crash_loop_is_told_with_the_programs_last_words(a_run: Run) -> None:
    a_run.arguments = ("crash",)
    done = a_run.run()
    assert done.returncode == 1
    assert "The gateway keeps ending (code 1)" in done.stderr
    assert done.stderr.rstrip().endswith("no luck")
    assert "Traceback" not in done.stderr
    assert not any(str(a_run.home) in " ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"]))


def test_full_disk_and_read_only_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("berth.host.home.shutil.disk_usage", lambda path: SimpleNamespace(free=200 << 20))
    with pytest.raises(HostError, match=r"Only 200 MB are free .* needs 400 MB"):
        Home(tmp_path / "home").prepare()
    (tmp_path / "home" / "postgres").mkdir()
    (tmp_path / "home" / "postgres" / "data").mkdir()
    Home(tmp_path / "home").prepare()  # a later start needs less
    for number, advice in ((errno.EROFS, "It is read-only"), (errno.ENOSPC, "The disk is full")):
        said = explain(OSError(number, os.strerror(number), "/somewhere"))
        assert "/somewhere" in said
        assert advice in said


def test_everything_kept_is_private(a_run: Run) -> None:
    a_run.start()
    a_run.stop()
    assert "database system is ready" in (a_run.home / "logs" / "postgres.log").read_text()
    assert "Ready to accept connections" in (a_run.home / "logs" / "valkey.log").read_text()
    loose = [
        path for path in [a_run.home, *a_run.home.rglob("*")] if not path.is_symlink() and path.stat().st_mode & 0o066
    ]
    assert loose == []


def test_own_database_and_queue_are_used_instead(a_run: Run, postgres_server: Postgres, valkey_server: Valkey) -> None:
    a_run.environment = {"DATABASE_URL": postgres_server.url, "REDIS_URL": valkey_server.url}
    a_run.start()
    assert a_run.state() == "running", a_run.output
    assert not (a_run.home / "postgres").exists()
    assert not (a_run.home / "valkey").exists()
    a_run.stop()
    assert postgres_server.ready()
    assert valkey_server.ready()
