"""Structured log lines on standard error: JSON, one a line, fields by allow-list.

No URL, body, header value or name chosen by a client is ever a field; a field outside the list is a mistake of ours and
is dropped. Lines are gathered and written together, so that logging costs no system call per request.
"""

from __future__ import annotations

import os
import time

import msgspec

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


class Log:
    """Collects lines; `flush` writes them to the file descriptor."""

    def __init__(self, fd: int = 2) -> None:
        self._fd = fd
        self._lines: list[bytes] = []

    def info(self, event: str, **fields: Value) -> None:
        self._add("info", event, fields)

    def error(self, event: str, **fields: Value) -> None:
        self._add("error", event, fields)
        self.flush()

    def _add(self, level: str, event: str, fields: dict[str, Value]) -> None:
        line: dict[str, Value] = {"at": round(time.time(), 3), "level": level, "event": event}
        for name, value in fields.items():
            if name in FIELDS and value is not None:
                line[name] = value[:200] if isinstance(value, str) else value
        self._lines.append(_encode(line))
        if len(self._lines) >= 256:
            self.flush()

    def flush(self) -> None:
        if not self._lines:
            return
        data = b"\n".join(self._lines) + b"\n"
        self._lines.clear()
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError:
            pass  # nobody reads standard error any more; serving goes on
