"""The replica's status over HTTP, for a provider that cannot read its folder (a pod).

GET /status     the status file's JSON          with the replica's secret as bearer token
GET /logs       {"lines": [...], "more": bool}  same; `?after=N&limit=M` as in the log file's numbering
GET /healthz    200 while the agent lives       open: a kubelet has no secret, and is told nothing but the number and, in the
                                                header `Berth-Life`, which life of the agent this is (leader.py)
GET /readyz     200 in phase `ready`, else 503  same
"""

from __future__ import annotations

import hmac
import secrets
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import AF_INET, AF_INET6, socket
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import msgspec

from berth_runtime.log import Record, read_log
from berth_runtime.spec import LaunchSpec, Phase, ReplicaStatus

_CONNECTIONS: Final = 16
_SECONDS: Final = 5.0  # for a client to send its request
_MAX_LINES: Final = 1000
LIFE: Final = "Berth-Life"


class LogLines(msgspec.Struct, frozen=True):
    """A page of the replica's log. `more`: there are lines after the last one here."""

    lines: tuple[Record, ...]
    more: bool


class StatusPort:
    """Serves from daemon threads until the process ends."""

    def __init__(self, spec: LaunchSpec, port: int, status: Callable[[], ReplicaStatus]) -> None:
        """Binds at once, on the host of the spec. Raises OSError if that or the secret cannot be had."""
        secret = Path(spec.secret_file).read_text().strip()
        if not secret:
            raise OSError("the secret is empty")
        handler = type(
            "Handler",
            (_Handler,),
            {"secret": secret, "folder": Path(spec.state_dir), "status": [status], "life": secrets.token_hex(8)},
        )
        family = AF_INET6 if ":" in spec.host else AF_INET
        server = type("Server", (_Server,), {"address_family": family})
        self._server: ThreadingHTTPServer = server((spec.host, port), handler)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, name="status-port", daemon=True).start()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._room = threading.BoundedSemaphore(_CONNECTIONS)
        super().__init__(address, handler)

    def process_request(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that broke off is nothing to print."""


class _Handler(BaseHTTPRequestHandler):
    timeout = _SECONDS
    secret: str
    folder: Path
    status: tuple[Callable[[], ReplicaStatus]]
    life: str

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        phase = self.status[0]().phase
        if url.path == "/healthz":
            self._answer(HTTPStatus.OK, **{LIFE: self.life})
        elif url.path == "/readyz":
            self._answer(HTTPStatus.OK if phase is Phase.READY else HTTPStatus.SERVICE_UNAVAILABLE)
        elif not self._known():
            self._answer(HTTPStatus.UNAUTHORIZED)
        elif url.path == "/status":
            self._answer(HTTPStatus.OK, self.status[0]())
        elif url.path == "/logs":
            self._logs(parse_qs(url.query))
        else:
            self._answer(HTTPStatus.NOT_FOUND)

    def _logs(self, query: dict[str, list[str]]) -> None:
        try:
            after = int(query.get("after", ["0"])[-1])
            limit = min(max(int(query.get("limit", ["200"])[-1]), 0), _MAX_LINES)
        except ValueError:
            return self._answer(HTTPStatus.BAD_REQUEST)
        later = [record for record in read_log(self.folder) if record.n > after]
        return self._answer(HTTPStatus.OK, LogLines(tuple(later[:limit]), more=len(later) > limit))

    def _known(self) -> bool:
        given = self.headers.get("Authorization", "").encode("utf-8", "replace")
        return hmac.compare_digest(given, f"Bearer {self.secret}".encode())

    def _answer(self, status: HTTPStatus, body: object = None, **headers: str) -> None:
        data = b"" if body is None else msgspec.json.encode(body)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def version_string(self) -> str:
        return "berth"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name it has in the standard library
        """Paths and addresses of callers are nobody's business."""
