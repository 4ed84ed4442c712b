"""What the reconciler looks at, in plain values: what is wanted, what there is, and how the two views of it are merged."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

STABLE_SECONDS: Final = 30.0  # a replica that was ready for this long makes earlier failures forgotten
SILENT_SECONDS: Final = 60.0  # a living replica speaks every 2 s: one that did not for this long is stuck
LAUNCH_SECONDS: Final = 5.0  # within which a started replica says its first word

# Trying again does not help: the files, the model or the machine have to change first.
PERMANENT: Final = frozenset(
    {
        "checksum_mismatch",
        "model_unreadable",
        "chat_template_fails",
        "unsafe_file",
        "shards_unnamed",
        "engine_missing",
        "engine_too_old",
        "settings_not_effective",
    }
)


# The cluster took the replica away, which says nothing about the deployment: it is started elsewhere at once, and no failure is counted.
TAKEN_AWAY: Final = frozenset({"preempted", "node_drained", "node_shutdown", "node_lost"})


class Want(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    DELETED = "deleted"


class Base(msgspec.Struct, frozen=True):
    """The configuration before, of which replicas stay beside the wanted one while the two are compared."""

    revision: int
    same: frozenset[int]
    replicas: int
    memory: int  # bytes, of one replica


class Wanted(msgspec.Struct, frozen=True):
    """What the owner wants."""

    deployment_id: str
    desired: Want
    revision: int
    same: frozenset[int]  # revisions with the same configuration, this one included: their replicas are as good
    replicas: int  # that answer callers; 0: it sleeps
    memory: int  # bytes, of one replica
    permanent: frozenset[str] = PERMANENT
    sleep_after: float | None = None  # seconds without a request; None: it never sleeps
    base: Base | None = None
    beside: int | None = None  # replicas of the wanted configuration beside the base; None without one
    shadow: bool = False  # they serve nobody
    comparing: str = ""  # why the base stays: "canary", "shadow", "rollout_paused"
    allowed: int | None = None  # as many may run now; below `replicas` when others of the owner come first

    @property
    def new(self) -> int:
        """Replicas of the wanted configuration."""
        return self.replicas if self.base is None or self.beside is None else self.beside


class Life(StrEnum):
    PENDING = "pending"  # recorded, not running yet
    STARTING = "starting"
    READY = "ready"
    LEAVING = "leaving"  # told or about to be told to end


class Seen(msgspec.Struct, frozen=True):
    """A replica that holds its place."""

    name: str
    revision: int
    ordinal: int
    memory: int
    life: Life
    stop_at: float | None = None  # leaving: when it may be asked to end, at the earliest
    drain: bool = False  # leaving: it may still have requests
    ready_since: float | None = None
    stuck: bool = False


class Row(msgspec.Struct, frozen=True):
    """A replica as the database has it: it has not ended."""

    name: str
    revision: int
    ordinal: int
    memory: int
    started_at: float
    ready_at: float | None = None
    retired_at: float | None = None


class Sight(msgspec.Struct, frozen=True):
    """A replica as the provider shows it."""

    name: str
    phase: str
    alive: bool
    ready: bool
    updated_at: float
    reason: str | None = None
    message: str | None = None


class Ended(msgspec.Struct, frozen=True):
    """A replica whose place is free again."""

    name: str
    revision: int
    failed: bool
    stable: bool  # it had been ready for long enough to be no part of a series of failures
    reason: str = ""
    message: str = ""

    @property
    def counts(self) -> bool:
        """Whether it is a failure to back off from."""
        return self.failed and self.reason not in TAKEN_AWAY


class Merged(msgspec.Struct, frozen=True):
    seen: tuple[Seen, ...]
    ended: tuple[Ended, ...]
    orphans: tuple[str, ...]  # run, and nobody knows why


class Failure(msgspec.Struct, frozen=True):
    at: float
    reason: str
    message: str


class Queue(msgspec.Struct, frozen=True):
    """Where somebody stands who waits for room. `usual_seconds`: None when nobody has waited here yet."""

    position: int  # 1 is the first
    length: int
    usual_seconds: float | None


class World(msgspec.Struct, frozen=True):
    """Everything that a decision depends on."""

    now: float  # Unix seconds
    state: str
    merged: Merged
    room: int  # bytes that no replica of any deployment holds
    attempts: dict[int, int]  # ordinal -> attempts so far, of the wanted revision
    failures: int  # in a row
    last_failure: Failure | None
    reason: str = ""  # why it is in that state, as it was last explained
    sleeping: bool = False  # it sleeps, and nobody has asked for it since
    last_request_at: float | None = (
        None  # when a request last arrived, waited or ran, as gateways say and as was metered
    )
    woken_at: float | None = None
    places: int | None = None  # replicas that may be started by quota and devices; None: as many as memory holds
    places_reason: str = ""  # what limits them: "over_quota", "no_capacity"
    worth: frozenset[str] | None = None  # replicas whose end brings a place for a new one; None: each of them does
    queue: Queue | None = None  # where it stands, if it waits for room
    base_attempts: dict[int, int] = {}
    base_failures: int = 0  # lately
    base_last_failure: Failure | None = None


RETIRE_SECONDS: Final = 1.5  # gateways hear of a change within a second; only then is a replica asked to end


def merge(rows: Sequence[Row], sights: Sequence[Sight], now: float) -> Merged:
    """What the database expects and what the provider shows, made one."""
    by_name = {sight.name: sight for sight in sights}
    seen: list[Seen] = []
    ended: list[Ended] = []
    for row in rows:
        found = _merged(row, by_name.pop(row.name, None), now)
        (seen if isinstance(found, Seen) else ended).append(found)  # type: ignore[arg-type]
    orphans = tuple(sight.name for sight in by_name.values() if sight.alive)
    return Merged(tuple(seen), tuple(ended), orphans)


def _merged(row: Row, sight: Sight | None, now: float) -> Seen | Ended:
    if sight is None or (not sight.alive and sight.updated_at == 0.0 and now < row.started_at + LAUNCH_SECONDS):
        # Not started yet, or whoever meant to start it died: starting it is still to be done, unless nobody wants it.
        return _ended(row, now) if row.retired_at is not None else _seen(row, Life.PENDING)
    if not sight.alive:
        return _ended(row, now, sight)
    if row.retired_at is not None:
        was_ready = row.ready_at is not None
        stop_at = row.retired_at + (RETIRE_SECONDS if was_ready else 0.0)
        return _seen(row, Life.LEAVING, stop_at=stop_at, drain=was_ready)
    if sight.phase == "draining":
        return _seen(row, Life.LEAVING, drain=True)
    stuck = now - sight.updated_at > SILENT_SECONDS and now - row.started_at > SILENT_SECONDS
    if sight.ready:
        return _seen(row, Life.READY, ready_since=row.ready_at or now, stuck=stuck)
    return _seen(row, Life.STARTING, stuck=stuck)


def _seen(
    row: Row,
    life: Life,
    *,
    stop_at: float | None = None,
    drain: bool = False,
    ready_since: float | None = None,
    stuck: bool = False,
) -> Seen:
    return Seen(row.name, row.revision, row.ordinal, row.memory, life, stop_at, drain, ready_since, stuck)


def _ended(row: Row, now: float, sight: Sight | None = None) -> Ended:
    stable = row.ready_at is not None and now - row.ready_at >= STABLE_SECONDS
    failed = sight is not None and row.retired_at is None and (sight.phase == "failed" or sight.updated_at == 0.0)
    if sight is None:
        return Ended(row.name, row.revision, False, stable)
    reason = sight.reason or ("agent_lost" if failed else "")
    message = sight.message or ("The replica's process ended before it said anything." if failed else "")
    return Ended(row.name, row.revision, failed, stable, reason[:64], message[:400])
