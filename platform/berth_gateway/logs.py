"""Structured log lines on standard error: JSON, one a line, fields by allow-list.

No URL, body, header value or name chosen by a client is ever a field; a field outside the list is a mistake of ours and
is dropped. Lines are gathered and written together, so that logging costs no system call per request.
"""

from __future__ import annotations

import os
import time

import msgspec
from msgspec import Struct

from berth_gateway.contract import UsageEvent

FIELDS = frozenset(
    {
        "request_id",
        "client_request_id",
        "event_id",
        "org_id",
        "key_id",
        "deployment_id",
        "revision",
        "replica",
        "endpoint",
        "method",
        "status",
        "code",
        "outcome",
        "stream",
        "bytes_in",
        "prompt_tokens",
        "completion_tokens",
        "counted_by",
        "duration_ms",
        "first_token_ms",
        "retries",
        "gateway",
        "epoch",
        "version",
        "reason",
        "errno",
        "port",
        "count",
        "position",
        "seconds",
        "error",
    }
)

Value = str | int | float | bool | None
_encode = msgspec.json.Encoder().encode


class _Request(Struct, omit_defaults=True):
    """The line of a request, its fields those of FIELDS: the one kind of line that is written often."""

    at: float
    level: str
    event: str
    request_id: str
    org_id: str
    key_id: str
    deployment_id: str
    revision: int
    endpoint: str
    stream: bool
    status: int
    outcome: str
    counted_by: str
    prompt_tokens: int
    completion_tokens: int
    duration_ms: float
    first_token_ms: float | None = None


def request_line(at: float, request_id: str, event: UsageEvent) -> bytes:
    """The line of a request that has ended `at` (Unix seconds)."""
    return _encode(
        _Request(
            at,
            "info",
            "request",
            request_id,
            event.org_id,
            event.key_id,
            event.deployment_id,
            event.revision,
            event.endpoint,
            event.stream,
            event.status,
            event.outcome,
            event.counted_by,
            event.prompt_tokens,
            event.completion_tokens,
            event.duration_ms,
            event.first_token_ms,
        )
    )


class Log:
    """Collects lines; `flush` writes them to the file descriptor."""

    def __init__(self, fd: int = 2) -> None:
        self._fd = fd
        self._lines: list[bytes] = []
        self._count = 0

    def info(self, event: str, **fields: Value) -> None:
        self._add("info", event, fields)

    def error(self, event: str, **fields: Value) -> None:
        self._add("error", event, fields)
        self.flush()

    def request(self, request_id: str, event: UsageEvent) -> None:
        """How a request ended."""
        self.add_line(request_line(round(time.time(), 3), request_id, event))

    def add_line(self, line: bytes) -> None:
        self.add_lines(line, 1)

    def add_lines(self, lines: bytes, count: int) -> None:
        """Several in one piece."""
        self._lines.append(lines)
        self._count += count
        if self._count >= 256:
            self.flush()

    def _add(self, level: str, event: str, fields: dict[str, Value]) -> None:
        line: dict[str, Value] = {"at": round(time.time(), 3), "level": level, "event": event}
        for name, value in fields.items():
            if name in FIELDS and value is not None:
                line[name] = value[:200] if isinstance(value, str) else value
        self.add_line(_encode(line))

    def flush(self) -> None:
        if not self._lines:
            return
        data = b"\n".join(self._lines) + b"\n"
        self._lines.clear()
        self._count = 0
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError:
            pass  # nobody reads standard error any more; serving goes on
