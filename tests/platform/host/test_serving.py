from __future__ import annotations

import ast
import http.server
import json
import shlex
import threading
from collections.abc import Iterator

import pytest

from berth.host.child import free_port
from berth.host.serving import Answer, Asking, ask, snippets, welcome

FACTS = {
    "dashboard_url": "http://127.0.0.1:8000",
    "api_base": "http://127.0.0.1:8080/v1",
    "api_key": "bth_sk_secret",
    "model": "my-org/smollm2-135m-instruct",
    "email": "operator@localhost",
    "password": "pass word",
}


class Scripted(http.server.BaseHTTPRequestHandler):
    status = 200
    body = b"{}"
    seen: list[tuple[str, str, dict[str, object]]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.seen.append((self.path, self.headers["authorization"], body))
        self.send_response(self.status)
        self.send_header("content-length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def gateway() -> Iterator[http.server.ThreadingHTTPServer]:
    Scripted.seen.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Scripted) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize(
    ("status", "body", "answer", "may_change"),
    [
        (200, b"{}", Answer(200), False),
        (503, b'{"error": {"code": "model_loading", "message": "Wait."}}', Answer(503, "model_loading", "Wait."), True),
        (401, b'{"error": {"code": "invalid_api_key", "message": "No."}}', Answer(401, "invalid_api_key", "No."), True),
        (
            403,
            b'{"error": {"code": "deployment_paused", "message": "P"}}',
            Answer(403, "deployment_paused", "P"),
            False,
        ),
        (502, b"<html>", Answer(502), True),
        (500, b'{"error": "text"}', Answer(500), True),
    ],
)
def test_what_the_gateway_says(
    gateway: http.server.ThreadingHTTPServer,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    body: bytes,
    answer: Answer,
    may_change: bool,
) -> None:
    monkeypatch.setattr(Scripted, "status", status)
    monkeypatch.setattr(Scripted, "body", body)
    got = ask(gateway.server_address[1], "bth_sk_x", "my-org/m")
    assert (got, got.may_change) == (answer, may_change)
    path, authorization, request = Scripted.seen[0]
    assert (path, authorization) == ("/v1/chat/completions", "Bearer bth_sk_x")
    assert (request["model"], request["max_tokens"]) == ("my-org/m", 1)


def test_nobody_there_may_change() -> None:
    assert ask(free_port(), "k", "m") == Answer(0)
    assert Answer(0).may_change


def test_asking_in_the_background_does_not_hold_up_who_waits(
    gateway: http.server.ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go = threading.Event()
    original = Scripted.do_POST
    monkeypatch.setattr(Scripted, "do_POST", lambda handler: (let_go.wait(30), original(handler))[1])
    asking = Asking(gateway.server_address[1], "bth_sk_x", "my-org/m")
    assert asking.answer() is None
    let_go.set()
    asking._thread.join(30)
    assert asking.answer() == Answer(200)


def test_the_printed_snippets_are_whole_commands() -> None:
    shell, python = snippets(FACTS).split("\n\n", 1)
    words = shlex.split(shell)
    assert words[0] == "curl"
    assert "http://127.0.0.1:8080/v1/chat/completions" in words
    assert "Authorization: Bearer bth_sk_secret" in words
    body = json.loads(words[words.index("-d") + 1])
    assert (body["model"], body["stream"]) == (FACTS["model"], True)
    ast.parse(python)
    assert 'api_key="bth_sk_secret"' in python


def test_password_and_key_are_shown_once() -> None:
    first, later = welcome(FACTS, "/data", first=True), welcome(FACTS, "/data", first=False)
    assert "pass word  (temporary: change it after signing in)" in first
    assert "bth_sk_secret" in first
    assert "pass word" not in later
    assert "bth_sk_secret" not in later
    assert "/data/demo.json" in later
    without_file = welcome({k: FACTS[k] for k in ("dashboard_url", "api_base")}, "/data", first=False)
    assert "demo.json" not in without_file
