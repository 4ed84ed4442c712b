"""What a pod says in its log: one JSON object a line, a record of the replica's log or its status.

A pod runs tenants' files, so nothing here is believed beyond its form: what is no such line is passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import msgspec

from berth.compute.launch import STATUS_FORMAT, ReplicaStatus
from berth.compute.provider import LogLine

LONGEST_LINE: Final = 16 << 10
_LONGEST_TEXT: Final = 400


class _Told(msgspec.Struct, frozen=True):
    status: ReplicaStatus


class _Record(msgspec.Struct, frozen=True):
    n: int
    at: float
    source: str
    text: str | None = None
    withheld: int | None = None


class _LastWord(msgspec.Struct, frozen=True):
    phase: str | None = None
    reason: str | None = None
    message: str | None = None


def last_status(log: bytes, replica: str) -> ReplicaStatus | None:
    """The latest status of this replica in the end of a log; None: it says none there."""
    for line in reversed(log.splitlines()):
        if line.startswith(b'{"status"') and len(line) <= LONGEST_LINE:
            with suppress(msgspec.DecodeError):
                status = msgspec.json.decode(line, type=_Told).status
                if status.format == STATUS_FORMAT and status.replica == replica:
                    return _bounded(status)
    return None


def log_lines(log: bytes) -> Iterator[LogLine]:
    """The records of the replica's log, oldest first."""
    for line in log.splitlines():
        if line.startswith(b'{"n"') and len(line) <= LONGEST_LINE:
            with suppress(msgspec.DecodeError):
                record = msgspec.json.decode(line, type=_Record)
                text = record.text[:_LONGEST_TEXT] if record.text else record.text
                yield LogLine(record.n, record.at, record.source, text, record.withheld)


def last_word(message: str) -> tuple[str | None, str | None, str | None]:
    """Phase, reason and message of a termination message."""
    with suppress(msgspec.DecodeError, msgspec.ValidationError):
        word = msgspec.json.decode(message.encode(), type=_LastWord)
        return word.phase, (word.reason or "")[:64] or None, (word.message or "")[:_LONGEST_TEXT] or None
    return None, None, None


def _bounded(status: ReplicaStatus) -> ReplicaStatus:
    return msgspec.structs.replace(
        status,
        reason=status.reason[:64] if status.reason else None,
        message=status.message[:_LONGEST_TEXT] if status.message else None,
        engine_version=status.engine_version[:64] if status.engine_version else None,
        phases=status.phases[:32],
    )
