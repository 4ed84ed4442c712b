"""The door before an engine: who may come in, which paths there are, and that an engine notices who leaves."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.runtime.agents import RUNTIME, SECRET, call, eventually, gone

# An engine on a Unix socket that tells what it was sent, and notes in a file how its connections ended.
ENGINE = """
import asyncio, os, sys
path, notes = sys.argv[1:]
async def serve(reader, writer):
    try:
        while True:
            head = await reader.readuntil(b"\\r\\n\\r\\n")
            target = head.split(b" ")[1]
            length = [int(l.split(b":")[1]) for l in head.split(b"\\r\\n") if l.lower().startswith(b"content-length:")]
            if b"chunked" in head:
                body = b""
                while True:
                    size = int(await reader.readuntil(b"\\r\\n"), 16)
                    body += await reader.readexactly(size)
                    await reader.readexactly(2)
                    if not size: break
            else:
                body = await reader.readexactly(length[0] if length else 0)
            if target == b"/v1/completions" and b"endless" in body:
                writer.write(b"HTTP/1.1 200 OK\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n")
                while not reader.at_eof():
                    writer.write(b"3\\r\\nabc\\r\\n"); await writer.drain(); await asyncio.sleep(0.01)
                raise EOFError
            said = head + b"|" + body
            writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(said) + said)
            await writer.drain()
    except Exception:
        with open(notes, "a") as f: f.write("left\\n")
    writer.close()
async def main():
    server = await asyncio.start_unix_server(serve, path)
    await server.serve_forever()
asyncio.run(main())
"""


class Gate:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "secret").write_text(SECRET)
        (folder / "work").mkdir(mode=0o700)
        self.notes = folder / "notes"
        engine = folder / "engine.py"
        engine.write_text(ENGINE)
        path = str(folder / "work" / "s")
        settings = {
            "host": "127.0.0.1",
            "port": 0,
            "secret_file": str(folder / "secret"),
            "health": "/health",
            "socket": path,
            "allowed": [["POST", "/v1/completions"], ["GET", "/v1/models"]],
        }
        door = str(RUNTIME / "berth_runtime" / "servers" / "gate.py")
        command = [sys.executable, "-I", "-B", door, json.dumps(settings), "--"]
        self.process = subprocess.Popen(
            [*command, sys.executable, "-I", str(engine), path, str(self.notes)], stderr=subprocess.PIPE
        )
        assert self.process.stderr
        line = self.process.stderr.readline().decode()
        self.port = int(line.rsplit(":", 1)[1])

    def engine(self) -> psutil.Process:
        [child] = psutil.Process(self.process.pid).children()
        return child

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    made = Gate(tmp_path)
    yield made
    made.close()


def test_what_may_pass_passes_without_the_secret_and_headers_of_the_client(gate: Gate) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", gate.port, timeout=30)
    headers = {"Authorization": f"Bearer {SECRET}", "X-Forwarded-For": "1.2.3.4", "Cookie": "a=b", "Accept": "x/y"}
    connection.request("POST", "/v1/completions?x=y", b'{"prompt": 1}', headers)
    said = connection.getresponse().read()
    assert said.startswith(b"POST /v1/completions HTTP/1.1\r\n")
    assert said.endswith(b'|{"prompt": 1}')
    assert b"Accept: x/y" in said
    for word in (SECRET.encode(), b"Cookie", b"Forwarded", b"x=y"):
        assert word not in said


@pytest.mark.threat("E1")
def test_strangers_and_other_paths_do_not_pass(gate: Gate) -> None:
    assert call(gate.port, "GET", "/health", secret=None)[0] == 200
    for secret in (None, "", "wrong", SECRET[:-1], SECRET + "x"):
        assert call(gate.port, "GET", "/v1/models", secret=secret)[0] == 401
        assert call(gate.port, "POST", "/v1/completions", {}, secret=secret)[0] == 401
    for method, path in (
        ("GET", "/v1/completions"),
        ("POST", "/v1/models"),
        ("POST", "/v1/completions/"),
        ("POST", "/v1//completions"),
        ("POST", "/v1/../api"),
        ("GET", "/docs"),
        ("POST", "/v1%2fcompletions"),
        ("POST", "http://x/v1/completions"),
    ):
        assert call(gate.port, method, path)[0] == 404


@pytest.mark.threat("E1")
@pytest.mark.parametrize(
    "raw",
    [
        "GET /v1/models HTTP/1.0\r\nAuthorization: Bearer {s}\r\n\r\n",
        "GET /v1/models\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer {s}\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nhello",
        "POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer {s}\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        "GET /v1/models HTTP/1.1\r\nAuthorization: Bearer {s}\r\nAuthorization: Bearer x\r\n\r\n",
    ],
)
def test_what_two_readers_could_read_differently_is_not_passed_on(gate: Gate, raw: str) -> None:
    with socket.create_connection(("127.0.0.1", gate.port), timeout=30) as connection:
        connection.sendall(raw.format(s=SECRET).encode())
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while data := connection.recv(4096):
            answer += data
    assert b" 200 " not in answer


@pytest.mark.threat("E1")
def test_a_second_request_on_a_connection_is_judged_like_the_first(gate: Gate) -> None:
    with socket.create_connection(("127.0.0.1", gate.port), timeout=30) as connection:
        first = f"GET /v1/models HTTP/1.1\r\nAuthorization: Bearer {SECRET}\r\n\r\n"
        connection.sendall(first.encode())
        assert b"200 OK" in connection.recv(4096)
        connection.sendall(first.encode())
        assert b"200 OK" in connection.recv(4096)
        connection.sendall(b"GET /docs HTTP/1.1\r\nAuthorization: Bearer " + SECRET.encode() + b"\r\n\r\n")
        assert connection.recv(4096) == b""


def test_a_body_in_chunks_passes(gate: Gate) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", gate.port, timeout=30)
    parts = iter([b'{"a":', b"1}"])
    connection.request("POST", "/v1/completions", parts, {"Authorization": f"Bearer {SECRET}"}, encode_chunked=True)
    assert connection.getresponse().read().endswith(b'|{"a":1}')


def test_an_engine_notices_who_leaves(gate: Gate) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", gate.port, timeout=30)
    connection.request("POST", "/v1/completions", b"endless", {"Authorization": f"Bearer {SECRET}"})
    answer = connection.getresponse()
    assert answer.read(9) == b"abcabcabc"
    before = gate.notes.read_text().count("left") if gate.notes.exists() else 0
    answer.close()
    connection.close()
    eventually(lambda: gate.notes.exists() and gate.notes.read_text().count("left") > before, "the engine notices")


def test_the_two_end_together(gate: Gate) -> None:
    engine = gate.engine()
    gate.process.send_signal(signal.SIGKILL)
    eventually(lambda: gone(engine.pid), "the engine ended with its door")


def test_the_door_ends_with_its_engine(gate: Gate) -> None:
    gate.engine().kill()
    assert gate.process.wait(30) == 1


def test_told_to_end_it_ends_the_engine(gate: Gate) -> None:
    engine = gate.engine()
    gate.process.terminate()
    gate.process.wait(30)
    assert gone(engine.pid)


def test_a_client_that_says_nothing_does_not_hold_up_others(gate: Gate) -> None:
    silent = [socket.create_connection(("127.0.0.1", gate.port)) for _ in range(50)]
    began = time.monotonic()
    assert call(gate.port, "GET", "/v1/models")[0] == 200
    assert began  # the answer came; how fast is no matter
    for connection in silent:
        connection.close()


@pytest.mark.threat("E2")
def test_only_the_door_listens(gate: Gate) -> None:
    found: list[Any] = []
    for process in (psutil.Process(gate.process.pid), gate.engine()):
        found += [s for s in process.net_connections("inet") if s.status == psutil.CONN_LISTEN]
    assert [(s.laddr.ip, s.laddr.port) for s in found] == [("127.0.0.1", gate.port)]


@pytest.mark.threat("E1")
def test_a_socket_folder_that_others_may_enter_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    open_to_all = tmp_path / "work"
    open_to_all.mkdir()
    open_to_all.chmod(0o755)
    settings = {"host": "127.0.0.1", "port": 0, "secret_file": str(tmp_path / "secret"), "health": "/", "allowed": []}
    settings["socket"] = str(open_to_all / "s")
    door = str(RUNTIME / "berth_runtime" / "servers" / "gate.py")
    done = subprocess.run(
        [sys.executable, "-I", "-B", door, json.dumps(settings), "--", "/bin/true"], capture_output=True, check=False
    )
    assert done.returncode != 0
    assert not list(open_to_all.iterdir())
