"""The files of a spool: what a start finds in them, and the lock that keeps a second process out."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

from berth_gateway.contract import UsageEvent
from berth_gateway.records import SETTLED, read_records, undamaged_bytes


class SpoolError(Exception):
    """The spool cannot be used; the text is a sentence for people."""


class SpoolFull(Exception):
    """A record could not be written. Nothing of it is in the file."""


@dataclass(slots=True)
class Segment:
    """`base`: position of its first settled event; `end`: one behind its last."""

    path: Path
    serial: int
    base: int
    end: int
    size: int


@dataclass(slots=True)
class Checkpoint:
    """Descriptors to be synced: finished segments (then closed) and the active one. `position` is durable afterwards."""

    position: int
    fd: int
    finished: list[int]


def take_lock(folder: Path) -> int:
    """The descriptor that holds the folder for this process. Raises SpoolError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as fault:
        raise SpoolError(f"The spool folder {folder} cannot be used: {fault.strerror}.") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise SpoolError(
            f"Another gateway process uses the spool folder {folder}. Give each its own BERTH_GATEWAY_DIR."
        ) from None
    return lock


def recover(folder: Path) -> tuple[list[Segment], list[UsageEvent], int]:
    """The segments in order, the events that were open and not settled, and how many segments had a torn tail, which is cut off."""
    segments: list[Segment] = []
    unsettled: dict[str, UsageEvent] = {}
    torn = 0
    for path in sorted(folder.glob("*.spool")):
        serial, _, first = path.stem.partition("-")
        if not (serial.isdecimal() and first.isdecimal()):
            continue  # somebody else's file
        segment = Segment(path, int(serial), int(first), int(first), path.stat().st_size)
        for kind, event in read_records(path, segment.size):
            if kind == SETTLED:
                segment.end += 1
                unsettled.pop(event.event_id, None)
            else:
                unsettled[event.event_id] = event
        torn += _cut(segment)
        segments.append(segment)
    return segments, list(unsettled.values()), torn


def _cut(segment: Segment) -> bool:
    """Cuts off what follows the last undamaged record; whether there was something."""
    whole = undamaged_bytes(segment.path, segment.size)
    if whole == segment.size:
        return False
    os.truncate(segment.path, whole)
    segment.size = whole
    return True
