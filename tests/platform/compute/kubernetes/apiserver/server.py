"""The API server's sockets: HTTPS, bearer tokens, routes, watches in chunks."""

from __future__ import annotations

import json
import re
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import yaml

from tests.platform.compute.kubernetes.apiserver import certificates
from tests.platform.compute.kubernetes.apiserver.api import Api
from tests.platform.compute.kubernetes.apiserver.failure import Failure
from tests.platform.compute.kubernetes.apiserver.resources import Resource, discovery, resource
from tests.platform.compute.kubernetes.apiserver.rights import allowed

Json = dict[str, Any]
_PATH = re.compile(
    r"/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+)/(?P<version>[^/]+))(?:/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<plural>[a-z]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>[a-z]+))?"
)
_NAMESPACES = re.compile(r"/api/v1/namespaces(?:/(?P<name>[^/]+))?")


class ApiServer:
    """Listens on 127.0.0.1. `tokens`: user by bearer token. Ends with `close`."""

    def __init__(self, folder: Path, version: str = "1.37", bookmark_seconds: float = 0.5) -> None:
        self.api = Api(version)
        self.tokens: dict[str, str] = {"admin-token": "admin"}
        self.bookmark_seconds = bookmark_seconds
        self.requests: list[tuple[str, str, str]] = []  # user, verb, resource[/sub]
        self.before: Callable[[str, str], None] = lambda method, path: None  # may raise Failure
        self.ended = threading.Event()
        self.cut = threading.Event()  # set: every open watch breaks off
        self.folder = folder
        self.authority, own = certificates.make(folder)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(str(own))
        handler = type("Handler", (_Handler,), {"server_of_all": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, name="apiserver", daemon=True
        ).start()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._server.server_address[1]}"

    def kubeconfig(
        self, token: str = "admin-token", name: str = "kubeconfig.yaml", namespace: str = "berth-runtime"
    ) -> Path:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "tests",
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests", "namespace": namespace}}],
            "clusters": [
                {"name": "tests", "cluster": {"server": self.url, "certificate-authority": str(self.authority)}}
            ],
            "users": [{"name": "tests", "user": {"token": token}}],
        }
        path = self.folder / name
        path.write_text(yaml.safe_dump(config))
        return path

    def close(self) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that broke off, or that does not trust us, is nothing to print."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_of_all: ApiServer
    timeout = 60

    def _serve(self) -> None:
        url = urlsplit(self.path)
        try:
            body = self._body()
            user = self.server_of_all.tokens.get(self.headers.get("Authorization", "").removeprefix("Bearer "))
            if user is None:
                raise Failure(401, "Unauthorized", "Unauthorized")
            self.server_of_all.before(self.command, url.path)
            self._route(user, url.path, dict(parse_qsl(url.query)), body)
        except Failure as failure:
            extra = {"Retry-After": str(failure.retry)} if failure.retry is not None else {}
            self._answer(failure.code, failure.status(), extra)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815 - the library's names

    def _route(self, user: str, path: str, query: dict[str, str], body: Json) -> None:
        if self.command == "GET" and (told := discovery(path, self.server_of_all.api.version)) is not None:
            self._answer(200, told)
            return
        match = _NAMESPACES.fullmatch(path)
        parts = {"core": "v1", "plural": "namespaces", **match.groupdict()} if match else None
        if parts is None:
            whole = _PATH.fullmatch(path)
            parts = whole.groupdict() if whole else {}
        found = resource(
            parts.get("group") or "", parts.get("core") or parts.get("version") or "", parts.get("plural") or ""
        )
        if found is None:
            raise Failure(404, "NotFound", "the server could not find the requested resource")
        namespace, name, sub = parts.get("namespace"), parts.get("name"), parts.get("sub")
        self._require(user, found, namespace, name, sub, query)
        self._do(found, namespace, name, sub, query, body)

    def _require(
        self, user: str, r: Resource, namespace: str | None, name: str | None, sub: str | None, query: dict[str, str]
    ) -> None:
        watching = query.get("watch") in ("1", "true")
        reading = "watch" if watching else "get" if name else "list"
        verb = {"GET": reading, "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[self.command]
        what = f"{r.plural}/{sub}" if sub else r.plural
        self.server_of_all.requests.append((user, verb, what))
        if not allowed(self.server_of_all.api.store, user, verb, r.group, what, namespace, name or ""):
            raise Failure(
                403,
                "Forbidden",
                f'{what} is forbidden: User "{user}" cannot {verb} resource "{what}" in API group "{r.group}"',
            )

    def _do(
        self, r: Resource, namespace: str | None, name: str | None, sub: str | None, query: dict[str, str], body: Json
    ) -> None:
        api, manager = self.server_of_all.api, query.get("fieldManager") or "unknown"
        if self.command == "GET":
            self._get(r, namespace, name, sub, query)
        elif self.command == "POST" and sub == "eviction":
            api.evict(namespace or "", name or "", body)
            self._answer(201, {"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201, "metadata": {}})
        elif self.command == "POST":
            self._answer(201, api.create(r, namespace, body, manager))
        elif self.command == "PUT":
            self._answer(200, api.replace(r, namespace, name or "", body, manager, status=sub == "status"))
        elif self.command == "DELETE":
            gone_body, gone = api.delete(r, namespace, name or "", body)
            self._answer(
                200,
                gone_body if not gone else {"kind": "Status", "apiVersion": "v1", "status": "Success", "metadata": {}},
            )
        elif self.headers.get_content_type() == "application/apply-patch+yaml":
            applied, new = api.apply(r, namespace, name or "", body, query)
            self._answer(201 if new else 200, applied)
        else:
            self._answer(200, api.merge(r, namespace, name or "", body, manager, status=sub == "status"))

    def _get(
        self, r: Resource, namespace: str | None, name: str | None, sub: str | None, query: dict[str, str]
    ) -> None:
        api = self.server_of_all.api
        if query.get("watch") in ("1", "true"):
            self._watch(r, namespace, query)
        elif name is None:
            self._answer(200, api.list(r, namespace, query))
        elif sub == "log":
            pod = api.store.read("pods", namespace or "", name)
            tail, most = query.get("tailLines"), query.get("limitBytes")
            text = api.logs(pod, query.get("container", ""), int(tail) if tail else None, int(most) if most else None)
            self._send(200, text, "text/plain")
        else:
            self._answer(200, api.store.read(r.plural, namespace or "", name))

    def _watch(self, r: Resource, namespace: str | None, query: dict[str, str]) -> None:
        server = self.server_of_all
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        cut = server.cut
        for event in server.api.watch(r, namespace, query, server.bookmark_seconds):
            if server.ended.is_set() or cut.is_set():
                self.close_connection = True
                return
            if event is not None:
                data = json.dumps(event).encode() + b"\n"
                self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
                self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def _body(self) -> Json:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            return dict(yaml.safe_load(raw) if raw[:1] not in (b"{",) else json.loads(raw)) if raw else {}
        except (ValueError, TypeError, yaml.YAMLError):
            raise Failure(400, "BadRequest", "the body of the request is no object") from None

    def _answer(self, code: int, body: object, extra: dict[str, str] | None = None) -> None:
        self._send(code, json.dumps(body).encode(), "application/json", extra)

    def _send(self, code: int, data: bytes, kind: str, extra: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), **(extra or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        """Tests say themselves what they want to see."""
