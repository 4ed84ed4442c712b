"""Usage on disk before anything depends on it: an append-only spool that survives a killed process at any point.

Two kinds of record: OPEN is written before a request goes to an engine, and again while it runs, and holds the event as
it would have to be if the gateway died now; SETTLED holds the event as it became. A BATCH is many of both in one
(`records`). At start, what is open and not settled is settled. Settled events are numbered; a position is the number of
the next one. Whole segments are deleted once the control plane says that their events are in PostgreSQL.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from berth_gateway.contract import UsageEvent
from berth_gateway.records import OPEN, SETTLED, frame, read_records
from berth_gateway.segments import Checkpoint, Segment, SpoolError, SpoolFull, recover, take_lock

__all__ = ["Spool", "SpoolError", "SpoolFull"]

SEGMENT_BYTES = 4 * 1024 * 1024
RESERVE_BYTES = 8 * 1024 * 1024  # free disk below which no request is admitted, so that running ones can settle


class Spool:
    """One process's spool. All methods but `make_durable` and `read` belong to the event loop's thread."""

    def __init__(self, folder: Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._segments: list[Segment] = []
        # By event id, as they stand in the file: carried into each new segment.
        self.open_records: dict[bytes, bytes] = {}
        self.usual: Callable[[], dict[bytes, bytes]] = dict  # the same of usual requests, which are not among them
        self._late: list[bytes] = []  # settled, but the disk was full
        self._fd = -1
        self._unsynced: list[int] = []  # descriptors of finished segments, to be synced and closed
        self._dirty = False
        self.durable = 0  # position up to which events are known to be on the disk
        self.acknowledged = 0
        self.torn = 0  # damaged records met at start
        self.recovered = 0  # events settled at start
        self.failures = 0
        self._lock = take_lock(folder)
        try:
            self._recover()
        except OSError as fault:
            raise SpoolError(f"The spool in {folder} cannot be read or written: {fault.strerror}.") from None
        except SpoolFull:
            raise SpoolError(f"The spool in {folder} cannot be written: the disk is full.") from None

    @property
    def next_position(self) -> int:
        return self._segments[-1].end

    @property
    def first_position(self) -> int:
        """Events before it may be gone."""
        return self._segments[0].base

    @property
    def late(self) -> int:
        """Settled events that the disk had no room for yet: they have no position."""
        return len(self._late)

    @property
    def pending(self) -> int:
        return self.next_position - self.acknowledged + len(self._late)

    # Writing

    def accept(self, event: UsageEvent) -> None:
        """Before a request goes upstream. Raises SpoolFull: then it must not go."""
        record = frame(OPEN, event)
        self.write(record)
        self.open_records[event.event_id.encode()] = record

    def progress(self, events: list[UsageEvent]) -> None:
        """The state of running requests. Best effort: without it a killed gateway bills what it last knew."""
        records = {event.event_id.encode(): frame(OPEN, event) for event in events}
        self.open_records.update(records)
        try:
            self._write(b"".join(records.values()))
        except SpoolFull:
            return

    def settle(self, event: UsageEvent) -> None:
        """The end of a request; exactly once for each accepted one. Kept in memory if the disk is full, and tried again."""
        self.open_records.pop(event.event_id.encode(), None)
        self.settle_record(frame(SETTLED, event))

    def settle_record(self, record: bytes) -> None:
        """The same for an event that is a record already and is not open any more."""
        try:
            self._write(record, 1)
        except SpoolFull:
            self._late.append(record)

    def write(self, records: bytes, settled: int = 0) -> None:
        """Records of several requests in one go, `settled` of them SETTLED. Raises SpoolFull; then none of them is written."""
        if self._late:
            self._settle_late()
        self._write(records, settled)

    def retry(self) -> None:
        """Tries again what the disk had no room for."""
        if self._late:
            try:
                self._settle_late()
            except SpoolFull:
                return

    def running(self) -> dict[bytes, bytes]:
        """The records of everything that is open, by event id."""
        return {**self.usual(), **self.open_records}

    def has_room(self) -> bool:
        """Whether the disk has room for what running requests will write."""
        disk = os.statvfs(self._folder)
        return not self._late and disk.f_bavail * disk.f_frsize > RESERVE_BYTES

    def _settle_late(self) -> None:
        while self._late:
            self._write(self._late[0], 1)
            self._late.pop(0)

    def _write(self, data: bytes, settled: int = 0) -> None:
        segment = self._segments[-1]
        try:
            written = os.write(self._fd, data)
        except OSError:
            self.failures += 1
            raise SpoolFull from None
        if written < len(data):
            os.ftruncate(self._fd, segment.size)
            self.failures += 1
            raise SpoolFull
        segment.size += written
        segment.end += settled
        self._dirty = True
        if segment.size >= self._segment_bytes:
            self._rotate()

    def _rotate(self) -> None:
        """A new segment, beginning with what is open, so that older ones can be deleted whole."""
        try:
            self._begin_segment(self.next_position, self.running().values())
        except (OSError, SpoolFull):
            self.failures += 1  # the old segment just grows on

    def _begin_segment(self, base: int, carried: Iterable[bytes]) -> None:
        serial = self._segments[-1].serial + 1 if self._segments else 1
        path = self._folder / f"{serial:010d}-{base:020d}.spool"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        data = b"".join(carried)
        try:
            if os.write(fd, data) < len(data):
                raise OSError
        except OSError:
            os.close(fd)
            path.unlink()
            raise SpoolFull from None
        if self._fd >= 0:
            self._unsynced.append(self._fd)
        self._fd = fd
        self._segments.append(Segment(path, serial, base, base, len(data)))
        self._dirty = True

    # Reaching the disk

    def checkpoint(self) -> Checkpoint | None:
        """What has been written and is not yet known to be durable; None if there is nothing."""
        if not self._dirty:
            return None
        self._dirty = False
        finished, self._unsynced = self._unsynced, []
        return Checkpoint(self.next_position, self._fd, finished)

    def make_durable(self, checkpoint: Checkpoint) -> None:
        """Blocks until the disk has it. May run in another thread, one call at a time. Raises OSError."""
        try:
            while checkpoint.finished:
                os.fdatasync(checkpoint.finished[-1])
                os.close(checkpoint.finished.pop())
            os.fdatasync(checkpoint.fd)
        except OSError:
            self._unsynced = checkpoint.finished + self._unsynced
            self._dirty = True
            self.failures += 1
            raise
        self.durable = max(self.durable, checkpoint.position)

    def sync(self) -> None:
        checkpoint = self.checkpoint()
        if checkpoint is not None:
            self.make_durable(checkpoint)

    def read(self, start: int, limit: int) -> tuple[list[UsageEvent], int]:
        """Up to `limit` durable events from position `start`, and the position behind them. May run in another thread."""
        events: list[UsageEvent] = []
        position = start
        for segment in list(self._segments):
            if segment.end <= start:
                continue
            position = segment.base
            for kind, event in read_records(segment.path, segment.size):
                if kind != SETTLED:
                    continue
                if position >= self.durable or len(events) >= limit:
                    return events, position
                if position >= start:
                    events.append(event)
                position += 1
        return events, max(position, start)

    # Trimming

    def acknowledge(self, position: int) -> None:
        """Everything before `position` is in PostgreSQL: segments that hold nothing else are deleted."""
        if position > self.next_position:
            self._rebase(position)
        self.acknowledged = max(self.acknowledged, position)
        while len(self._segments) > 1 and self._segments[0].end <= self.acknowledged:
            self._segments.pop(0).path.unlink(missing_ok=True)

    def _rebase(self, position: int) -> None:
        """The control plane knows more events of this name than this spool has numbered: the folder was lost or replaced.

        What is here has other events under numbers already acknowledged, so it is numbered anew behind them.
        """
        self.sync()
        pending = [e for s in self._segments for k, e in read_records(s.path, s.size) if k == SETTLED]
        try:
            self._begin_segment(position, self.running().values())
            for event in pending:
                self._write(frame(SETTLED, event), 1)
        except (OSError, SpoolFull):
            self.failures += 1
            return
        self.sync()

    # Starting and stopping

    def _recover(self) -> None:
        self._segments, unsettled, self.torn = recover(self._folder)
        base = self._segments[-1].end if self._segments else 0
        self.acknowledged = self._segments[0].base if self._segments else 0
        self._begin_segment(base, [])
        for event in unsettled:
            self._write(frame(SETTLED, event), 1)
            self.recovered += 1
        self.sync()
        self.durable = self.next_position

    def close(self) -> None:
        self.retry()
        self.sync()
        os.close(self._fd)
        os.close(self._lock)
