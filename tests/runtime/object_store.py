"""A store that serves objects over HTTP with ranges, and fails as told."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


class Store:
    """`objects`: bytes by path. `before(path, first)` may give a status to answer instead, or a number of bytes to break off after."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects
        self.before: Callable[[str, int], int | None] = lambda _path, _first: None
        self.ranges = True
        self.served: Counter[int] = Counter()  # requests by first byte
        self.bytes = 0
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                store.answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}{path}?X-Signature=abc%2Fdef"

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        path, _, query = handler.path.partition("?")
        data = self.objects.get(path)
        asked = _RANGE.fullmatch(handler.headers.get("Range", ""))
        if data is None or query != "X-Signature=abc%2Fdef":
            return self._say(handler, 404)
        first, last = (int(asked[1]), int(asked[2]) + 1) if asked and self.ranges else (0, len(data))
        self.served[first] += 1
        trouble = self.before(path, first)
        if trouble is not None and trouble >= 100:
            return self._say(handler, trouble)
        body = data[first:last]
        handler.send_response(206 if asked and self.ranges else 200)
        handler.send_header("Content-Length", str(len(body)))
        if asked and self.ranges:
            handler.send_header("Content-Range", f"bytes {first}-{last - 1}/{len(data)}")
        handler.end_headers()
        sent = body if trouble is None else body[:trouble]
        self.bytes += len(sent)
        handler.wfile.write(sent)
        if trouble is not None:
            handler.close_connection = True
            handler.connection.close()
        return None

    def _say(self, handler: BaseHTTPRequestHandler, status: int) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", "0")
        handler.send_header("Location", "http://127.0.0.1:1/elsewhere")
        handler.end_headers()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
