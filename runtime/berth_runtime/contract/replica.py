"""A replica under check: its engine's API over HTTP, and what a check can say of it."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from typing import Any, Final

from berth_runtime.engines.engine import Capabilities, Engine
from berth_runtime.spec import EngineMetrics, LaunchSpec

_SECONDS: Final = 600.0  # only ends what would hang


class Broken(Exception):
    """The engine does not keep the contract. `str(error)` says how."""


class Missing(Exception):
    """The engine does not claim to be able to do this."""


def require(holds: object, sentence: str) -> None:
    """Raises Broken."""
    if not holds:
        raise Broken(sentence)


class Stream:
    """A generation that is under way: its first bytes have come."""

    def __init__(self, connection: http.client.HTTPConnection, answer: http.client.HTTPResponse, read: bytes) -> None:
        self._connection = connection
        self._answer = answer
        self._read = read

    def rest(self) -> bytes:
        """Everything to the end, what was read already included."""
        try:
            return self._read + self._answer.read()
        finally:
            self._connection.close()

    def leave(self) -> None:
        """The client breaks off."""
        self._answer.close()
        self._connection.close()


class Replica:
    """One engine with its secret."""

    def __init__(self, engine: Engine, spec: LaunchSpec, host: str, port: int, secret: str) -> None:
        self.engine = engine
        self.spec = spec
        self.can: Capabilities = engine.capabilities()
        self.secret = secret
        self._host = host
        self._port = port

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        secret: str | None = "",
        raw: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, bytes, dict[str, str]]:
        """Status, body, headers in lower case. `secret`: another one than the right one; None: none at all."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=_SECONDS)
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        try:
            connection.request(method, path, body=data, headers=self._headers(secret) | (headers or {}))
            answer = connection.getresponse()
            return answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()}
        finally:
            connection.close()

    def generate(self, path: str, **body: Any) -> Any:
        """The decoded answer of `POST /v1/{path}`. Raises Broken unless it is 200."""
        status, raw, _ = self.ask("POST", f"/v1/{path}", {"model": self.spec.model_alias, **body})
        require(status == 200, f"/v1/{path} answered {status}")
        return json.loads(raw)

    def stream(self, path: str = "completions", **body: Any) -> Stream:
        """Raises Broken unless an event stream begins."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=_SECONDS)
        sent = json.dumps({"model": self.spec.model_alias, "stream": True, **body})
        connection.request("POST", f"/v1/{path}", sent, self._headers(""))
        answer = connection.getresponse()
        require(answer.status == 200, f"a stream answered {answer.status}")
        return Stream(connection, answer, answer.read(6))

    def leave(self, path: str, **body: Any) -> Callable[[], None]:
        """Asks, and gives what makes the client leave before there is an answer."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=_SECONDS)
        sent = json.dumps({"model": self.spec.model_alias, **body})
        connection.request("POST", f"/v1/{path}", sent, self._headers(""))
        return connection.close

    def metrics(self) -> EngineMetrics:
        path = self.engine.metrics_path
        if path is None:
            raise Missing
        status, raw, _ = self.ask("GET", path)
        require(status == 200, f"{path} answered {status}")
        return self.engine.metrics(raw.decode())

    def _headers(self, secret: str | None) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Connection": "close"}
        if secret is not None:
            headers["Authorization"] = f"Bearer {secret or self.secret}"
        return headers


def eventually(holds: Callable[[], object], sentence: str, seconds: float = 60) -> None:
    """Waits for a condition. The limit only ends what would hang. Raises Broken."""
    limit = time.monotonic() + seconds
    while not holds():
        require(time.monotonic() < limit, sentence)
        time.sleep(0.05)


def events(raw: bytes) -> list[Any]:
    """The events of a whole stream. Raises Broken if it did not end as it should."""
    lines = [line[5:].strip() for line in raw.decode().split("\n") if line.startswith("data:")]
    require(lines and lines[-1] == "[DONE]", "a stream did not end with [DONE]")
    return [json.loads(line) for line in lines[:-1]]
