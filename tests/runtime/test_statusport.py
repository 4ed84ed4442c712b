"""The status over HTTP: the file's JSON for who has the secret, a bare yes or no for everybody else."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from berth_runtime.log import ReplicaLog
from berth_runtime.spec import Phase, ReplicaStatus
from berth_runtime.status import StatusBoard
from berth_runtime.statusport import StatusPort
from tests.runtime.agents import SECRET, Agent, a_spec, call, environment, stop


class Served:
    """A status port over a board that no replica stands behind."""

    def __init__(self, folder: Path) -> None:
        self.spec = a_spec(folder)
        Path(self.spec.state_dir).mkdir()
        self.board = StatusBoard(self.spec, "an engine 1")
        server = StatusPort(self.spec, 0, self.board.now)
        server.start()
        self.port = server.port

    def get(self, path: str, secret: str | None = SECRET) -> tuple[int, Any]:
        status, raw, headers = call(self.port, "GET", path, secret=secret)
        assert headers["cache-control"] == "no-store"
        return status, json.loads(raw) if raw else None


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    yield Served(tmp_path)


def test_it_tells_what_the_file_tells(served: Served) -> None:
    status, body = served.get("/status")
    assert status == 200
    assert body == json.loads((Path(served.spec.state_dir) / "status.json").read_text())
    assert msgspec.convert(body, ReplicaStatus) == served.board.now()


def test_ready_is_the_phase_ready_and_nothing_else(served: Served) -> None:
    for phase, ready in ((Phase.LOADING, 503), (Phase.READY, 200), (Phase.DRAINING, 503), (Phase.STOPPED, 503)):
        served.board.enter(phase)
        assert served.get("/readyz", secret=None) == (ready, None)
        assert served.get("/healthz", secret=None) == (200, None)


@pytest.mark.threat("E1")
@pytest.mark.parametrize("secret", [None, "", "wrong", SECRET + "x", "é"])
@pytest.mark.parametrize("path", ["/status", "/logs", "/anything"])
def test_without_the_secret_it_tells_nothing(served: Served, path: str, secret: str | None) -> None:
    assert served.get(path, secret) == (401, None)


def test_logs_come_in_pages(served: Served) -> None:
    log = ReplicaLog(Path(served.spec.state_dir))
    for number in range(5):
        log.say(f"line {number}")
    _, page = served.get("/logs?limit=2")
    assert ([line["text"] for line in page["lines"]], page["more"]) == (["line 0", "line 1"], True)
    _, page = served.get(f"/logs?after={page['lines'][-1]['n']}&limit=100")
    assert ([line["text"] for line in page["lines"]], page["more"]) == (["line 2", "line 3", "line 4"], False)
    assert served.get("/logs?after=x")[0] == 400


def test_other_methods_and_paths_are_not_there(served: Served) -> None:
    assert served.get("/spec.json")[0] == 404
    assert call(served.port, "POST", "/status", {})[0] == 501


def test_connections_that_say_nothing_do_not_keep_it_from_answering(served: Served) -> None:
    silent = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(10)]
    assert served.get("/healthz")[0] == 200
    for connection in silent:
        connection.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_a_served_replica_tells_of_itself(tmp_path: Path) -> None:
    port = free_port()
    with Agent(a_spec(tmp_path), arguments=("--status-port", str(port))) as agent:
        told = agent.ready()
        status, raw, _ = call(port, "GET", "/status")
        now = msgspec.json.decode(raw, type=ReplicaStatus)
        assert (status, now.phase, now.pid, now.port) == (200, Phase.READY, told.pid, told.port)
        assert call(port, "GET", "/readyz", secret=None)[0] == 200
        assert any("ready" in (line.get("text") or "") for line in json.loads(call(port, "GET", "/logs")[1])["lines"])
        stop(agent.process.pid)
        agent.wait(Phase.STOPPED)


def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with Agent(a_spec(tmp_path), arguments=("--status-port", str(port))) as agent:
            _, said = agent.process.communicate(timeout=60)
    assert agent.process.returncode == 1
    assert f"The status port {port} cannot be opened: Address already in use".encode() in said


@pytest.mark.parametrize("port", ["0", "65536", "x", "-1"])
def test_a_port_that_is_none_is_refused(tmp_path: Path, port: str) -> None:
    command = [sys.executable, "-m", "berth_runtime", "serve", str(tmp_path / "spec.json"), f"--status-port={port}"]
    done = subprocess.run(command, env=environment(), capture_output=True, check=False)
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr
