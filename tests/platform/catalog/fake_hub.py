"""A local server that speaks the hub's API: who a repository is, its tree in pages, files by a redirect to another host, ranges,
gates, ETags, and the headers that newer storage adds."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

LARGE = 1024  # bytes; larger files are kept in large-file storage
PAGE = 3  # entries of a tree's page


@dataclass
class Repository:
    files: dict[str, bytes]
    commit: str = "c" * 40
    gated: bool = False
    private: bool = False
    token: str = ""  # that may read it
    licence: str = "apache-2.0"
    branches: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.branches.setdefault("main", self.commit)


@dataclass
class Behaviour:
    """Of the storage behind the hub."""

    ranges: bool = True
    pause: float = 0.0  # seconds before each 64 KiB
    cut_after: int | None = None  # bytes after which a connection is dropped
    cuts: int = 10**9  # how often
    fail: list[int] = field(default_factory=list)  # statuses to answer first
    wrong: bool = False  # one byte of each file is another
    chunk: int = 64 << 10


class Hub:
    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.plain: dict[str, bytes] = {}  # files by path, for the source "url"
        self.behaviour = Behaviour()
        self.asked: list[tuple[str, str, dict[str, str]]] = []  # host, path, headers
        self.served = 0  # bytes
        self.hub, self.storage = self._server(self._hub), self._server(self._storage)

    def add(self, name: str, files: Mapping[str, bytes], **options: Any) -> Repository:
        self.repositories[name] = Repository(dict(files), **options)
        return self.repositories[name]

    @property
    def endpoint(self) -> str:
        return f"http://{self.hub_place}"

    @property
    def hub_place(self) -> str:
        return f"127.0.0.1:{self.hub.server_address[1]}"

    @property
    def storage_place(self) -> str:
        return f"127.0.0.1:{self.storage.server_address[1]}"

    def close(self) -> None:
        for server in (self.hub, self.storage):
            server.shutdown()
            server.server_close()

    def _server(self, answer: Any) -> ThreadingHTTPServer:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                outer.asked.append((answer.__name__, self.path, headers))
                try:
                    answer(self, unquote(urlsplit(self.path).path), urlsplit(self.path).query, headers)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

            def handle_error(self, *_: Any) -> None:
                pass

        server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return server

    def _hub(self, to: BaseHTTPRequestHandler, path: str, query: str, headers: dict[str, str]) -> None:
        if api := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/([^/]+)", path):
            found = self._allowed(to, api[1], api[3], headers)
            if found is None:
                return
            repository, commit = found
            if api[2] == "revision":
                about = {
                    "id": api[1],
                    "sha": commit,
                    "gated": repository.gated,
                    "cardData": {"license": repository.licence},
                }
                _json(to, 200, about)
            else:
                self._tree(to, path, query, repository)
        elif resolve := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            found = self._allowed(to, resolve[1], resolve[2], headers)
            if found is not None:
                self._resolve(to, resolve[1], resolve[3], found, headers)
        else:
            _json(to, 404, {"error": "Not Found"})

    def _allowed(
        self, to: BaseHTTPRequestHandler, name: str, revision: str, headers: dict[str, str]
    ) -> tuple[Repository, str] | None:
        repository = self.repositories.get(name)
        token = headers.get("authorization", "").removeprefix("Bearer ")
        if repository is None or (repository.private and token != repository.token):
            _json(to, 401, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
            return None
        if repository.gated and token != repository.token:
            _json(to, 403 if token else 401, {"error": "gated"}, {"X-Error-Code": "GatedRepo"})
            return None
        commit = repository.branches.get(revision, revision)
        if commit not in repository.branches.values():
            _json(to, 404, {"error": "Invalid rev"}, {"X-Error-Code": "RevisionNotFound"})
            return None
        return repository, commit

    def _tree(self, to: BaseHTTPRequestHandler, path: str, query: str, repository: Repository) -> None:
        at = int(match[1]) if (match := re.search(r"cursor=(\d+)", query)) else 0
        names = sorted(repository.files)
        entries: list[dict[str, Any]] = (
            [{"type": "directory", "path": "a-folder", "size": 0, "oid": "0" * 40}] if at == 0 else []
        )
        for name in names[at : at + PAGE]:
            content = repository.files[name]
            entry: dict[str, Any] = {"type": "file", "path": name, "size": len(content), "oid": git_oid(content)}
            if len(content) > LARGE:
                digest = hashlib.sha256(content).hexdigest()
                entry |= {"lfs": {"oid": digest, "size": len(content), "pointerSize": 134}, "xetHash": "f" * 64}
            entries.append(entry)
        more = (
            {"Link": f'<{self.endpoint}{path}?recursive=true&cursor={at + PAGE}>; rel="next"'}
            if at + PAGE < len(names)
            else {}
        )
        _json(to, 200, entries, more)

    def _resolve(
        self, to: BaseHTTPRequestHandler, name: str, file: str, found: tuple[Repository, str], headers: dict[str, str]
    ) -> None:
        repository, commit = found
        content = repository.files.get(file)
        if content is None:
            _json(to, 404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"})
        elif len(content) > LARGE:
            digest = hashlib.sha256(content).hexdigest()
            to.send_response(302)
            for key, value in {
                "Location": f"http://{self.storage_place}/{name}/{file}?X-Amz-Signature=secret",
                "X-Repo-Commit": commit,
                "X-Linked-Size": str(len(content)),
                "X-Linked-ETag": f'"{digest}"',
                "X-Xet-Hash": "f" * 64,
                "Link": f'<{self.endpoint}/api/models/{name}/xet-read-token/{commit}>; rel="xet-auth"',
                "Content-Length": "0",
            }.items():
                to.send_header(key, value)
            to.end_headers()
        else:
            self._send(to, content, git_oid(content), headers)

    def _storage(self, to: BaseHTTPRequestHandler, path: str, query: str, headers: dict[str, str]) -> None:
        if self.behaviour.fail:
            to.send_response(self.behaviour.fail.pop(0))
            to.send_header("Content-Length", "0")
            to.end_headers()
            return
        found = re.fullmatch(r"/([^/]+/[^/]+)/(.+)", path)
        repository = self.repositories.get(found[1]) if found else None
        content = repository.files.get(found[2]) if found and repository else self.plain.get(path)
        if content is None:
            _json(to, 404, {})
            return
        if self.behaviour.wrong:
            content = bytes([content[0] ^ 1]) + content[1:]
        self._send(to, content, hashlib.md5(content).hexdigest(), headers)

    def _send(self, to: BaseHTTPRequestHandler, content: bytes, tag: str, headers: dict[str, str]) -> None:
        told = re.fullmatch(r"bytes=(\d+)-(\d*)", headers.get("range", "")) if self.behaviour.ranges else None
        begin, end = 0, len(content)
        if told:
            begin, end = int(told[1]), min(int(told[2]) + 1 if told[2] else len(content), len(content))
            if begin >= len(content):
                to.send_response(416)
                to.send_header("Content-Length", "0")
                to.end_headers()
                return
        to.send_response(206 if told else 200)
        to.send_header("ETag", f'"{tag}"')
        to.send_header("Content-Length", str(end - begin))
        if told:
            to.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(content)}")
        to.end_headers()
        self._bytes(to, content[begin:end])

    def _bytes(self, to: BaseHTTPRequestHandler, content: bytes) -> None:
        behaviour = self.behaviour
        sent = 0
        for at in range(0, len(content), behaviour.chunk):
            if behaviour.pause:
                time.sleep(behaviour.pause)
            piece = content[at : at + behaviour.chunk]
            if behaviour.cut_after is not None and sent + len(piece) > behaviour.cut_after and behaviour.cuts > 0:
                behaviour.cuts -= 1
                to.wfile.write(piece[: behaviour.cut_after - sent])
                to.wfile.flush()
                to.close_connection = True
                to.connection.shutdown(2)
                return
            to.wfile.write(piece)
            sent += len(piece)
            self.served += len(piece)


def git_oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _json(to: BaseHTTPRequestHandler, status: int, content: Any, headers: Mapping[str, str] | None = None) -> None:
    raw = json.dumps(content).encode()
    to.send_response(status)
    to.send_header("Content-Type", "application/json")
    to.send_header("Content-Length", str(len(raw)))
    for name, value in (headers or {}).items():
        to.send_header(name, value)
    to.end_headers()
    to.wfile.write(raw)
