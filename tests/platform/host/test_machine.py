"""Where an installation lies, and whose answers it takes for its own."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from berth.env import data_folder
from berth.host.child import free_port
from berth.host.machine import Machine, healthy, listens

ROOT = Path(__file__).resolve().parents[3]


def test_the_default_home_lies_in_the_checkout_and_a_given_one_where_the_user_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Machine({}).home.folder == data_folder({}) == ROOT / ".berth"
    assert Machine({"BERTH_HOME": "mine"}).home.folder == data_folder({"BERTH_HOME": "mine"}) == tmp_path / "mine"
    assert data_folder({"BERTH_HOME": " "}) == ROOT / ".berth", "blank is absent"


@pytest.mark.parametrize("given", [None, "mine"])
def test_django_and_the_supervisor_agree(tmp_path: Path, given: str | None) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("BERTH_", "DJANGO_"))}
    environ |= {"PYTHONPATH": f"{ROOT / 'platform'}{os.pathsep}{ROOT / 'runtime'}"} | (
        {"BERTH_HOME": given} if given else {}
    )
    both = "import berth.settings, berth.host.machine as m; print(berth.settings.BERTH_HOME, m.Machine().home.folder)"
    said = subprocess.run(
        [sys.executable, "-c", both], cwd=tmp_path, env=environ, capture_output=True, text=True, check=True
    )
    django, host = said.stdout.split()
    assert django == host == str(tmp_path / given if given else ROOT / ".berth")


class Elsewhere(http.server.BaseHTTPRequestHandler):
    status, body = 200, b""

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/api/v1/health" else 404)
        self.send_header("content-length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[http.server.ThreadingHTTPServer]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (200, b'{"status": "ok"}', True),
        (200, b"<html>another program</html>", False),
        (200, b'{"status": "starting"}', False),
        (404, b'{"error": {"code": "unknown_url"}}', False),
        (503, b'{"status": "ok"}', False),
    ],
)
def test_only_the_management_api_is_taken_for_it(
    server: http.server.ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch, status: int, body: bytes, expected: bool
) -> None:
    monkeypatch.setattr(Elsewhere, "status", status)
    monkeypatch.setattr(Elsewhere, "body", body)
    assert healthy(server.server_address[1]) is expected


def test_nobody_is_not_healthy() -> None:
    assert not healthy(free_port())


def test_another_process_on_the_port_is_not_ours(server: http.server.ThreadingHTTPServer) -> None:
    port = server.server_address[1]
    assert listens(os.getpid(), port)
    assert not listens(os.getpid(), free_port())
    assert not listens(os.getppid(), port)
    assert not listens(None, port)
