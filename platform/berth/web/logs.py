"""Log lines as JSON, by an allow-list: what is not named here is not written, whoever logs it."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

# Ids, enums, counts and durations. Nothing that can hold text of a request, a header or a secret.
ALLOWED_FIELDS = frozenset(
    {
        "action", "attempt", "budget_id", "code", "count", "deployment_id", "duration_ms", "engine", "event_id", "gateway", "key_id",
        "kind", "method", "org_id", "phase", "provider", "queue", "reason", "replica", "request_id", "revision", "route", "size", "state",
        "status", "task", "task_id", "topic", "user_id", "version",
    }
)  # fmt: skip


class JsonFormatter(logging.Formatter):
    """One object a line. The message must be a fixed string: arguments are not interpolated, an exception is told by its type
    and place, because messages and locals may quote data."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        for field in ALLOWED_FIELDS & record.__dict__.keys():
            value = record.__dict__[field]
            line[field] = value if isinstance(value, int | float | bool | None) else str(value)[:200]
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = record.exc_info[0].__name__
            line["where"] = _innermost(record)
        return json.dumps(line, ensure_ascii=False)


def _message(record: logging.LogRecord) -> str:
    if record.name.startswith("django.security"):
        return "suspicious_request"  # the logger's name says of which kind; Django's text quotes the request
    return record.msg if isinstance(record.msg, str) else type(record.msg).__name__


def _innermost(record: logging.LogRecord) -> str:
    trace = record.exc_info[2] if record.exc_info else None
    frames = []
    while trace is not None:
        frames.append(f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}")
        trace = trace.tb_next
    return " > ".join(frames[-4:])
