"""Usage on disk: nothing accepted is lost, nothing is counted twice, whatever happens to the process or the disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from berth_gateway import meter
from berth_gateway.contract import CountedBy, Outcome, UsageEvent
from berth_gateway.meter import Counts, Limits
from berth_gateway.records import SETTLED, read_records
from berth_gateway.spool import Spool, SpoolError, SpoolFull


def an_event(**fields: Any) -> UsageEvent:
    values: dict[str, Any] = {
        "format": 1,
        "event_id": str(uuid4()),
        "gateway": "g",
        "org_id": "o",
        "key_id": "k",
        "deployment_id": "d",
        "revision": 1,
        "endpoint": "chat/completions",
        "stream": True,
        "accepted_at": 1.0,
        "duration_ms": 0.0,
        "outcome": Outcome.INTERRUPTED,
        "status": 503,
        "counted_by": CountedBy.NONE,
    }
    return UsageEvent(**values | fields)


def settled(event: UsageEvent, tokens: int = 3) -> UsageEvent:
    return an_event(
        event_id=event.event_id, outcome=Outcome.OK, status=200, completion_tokens=tokens, counted_by=CountedBy.ENGINE
    )


def use(spool: Spool, count: int) -> list[UsageEvent]:
    """Requests from beginning to end."""
    done = []
    for _ in range(count):
        event = an_event()
        spool.accept(event)
        done.append(settled(event))
        spool.settle(done[-1])
    return done


def abandon(spool: Spool) -> None:
    """As a killed process leaves it: what was written is there, nothing is said."""
    os.close(spool._fd)
    os.close(spool._lock)


def all_of(spool: Spool, start: int = 0) -> list[UsageEvent]:
    spool.sync()
    return spool.read(start, 10_000)[0]


def test_what_is_settled_is_read_back_in_order_and_in_pieces(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    events = use(spool, 10)
    assert spool.read(0, 100) == ([], 0), "not yet durable"
    spool.sync()
    assert spool.read(0, 4) == (events[:4], 4)
    assert spool.read(4, 100) == (events[4:], 10)
    assert spool.read(10, 100) == ([], 10)


def test_a_killed_process_settles_what_it_had_accepted(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    done = use(spool, 3)
    untouched, running = an_event(), an_event()
    spool.accept(untouched)
    spool.accept(running)
    known = an_event(
        event_id=running.event_id, completion_tokens=7, prompt_tokens=5, counted_by=CountedBy.ENGINE_RUNNING
    )
    spool.progress([known])
    abandon(spool)
    again = Spool(tmp_path)
    assert again.recovered == 2
    assert {e.event_id: e for e in all_of(again)} == {e.event_id: e for e in [*done, untouched, known]}
    abandon(again)
    third = Spool(tmp_path)
    assert (third.recovered, third.next_position) == (0, 5), "once is enough"


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_torn_tail_is_cut_off(tmp_path: Path, cut: int) -> None:
    spool = Spool(tmp_path)
    done = use(spool, 3)
    last = an_event()
    spool.accept(last)
    abandon(spool)
    (file,) = tmp_path.glob("*.spool")
    os.truncate(file, file.stat().st_size - cut)
    again = Spool(tmp_path)
    assert again.torn == 1
    assert all_of(again) == done


def test_flipped_bytes_and_garbage_are_never_taken_for_events(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    done = use(spool, 2)
    abandon(spool)
    (file,) = tmp_path.glob("*.spool")
    good = file.read_bytes()
    for at in range(0, len(good), 11):
        file.write_bytes(good[:at] + bytes([good[at] ^ 0x40]) + good[at + 1 :])
        read = [e for kind, e in read_records(file, len(good)) if kind == SETTLED]
        assert read == done[: len(read)]
    file.write_bytes(good + os.urandom(500))
    assert all_of(Spool(tmp_path)) == done


def test_segments_are_deleted_once_they_are_acknowledged_and_only_then(tmp_path: Path) -> None:
    spool = Spool(tmp_path, segment_bytes=2000)
    events = use(spool, 30)
    spool.sync()
    files = len(list(tmp_path.glob("*.spool")))
    assert files > 3
    spool.acknowledge(0)
    assert len(list(tmp_path.glob("*.spool"))) == files
    spool.acknowledge(15)
    assert len(list(tmp_path.glob("*.spool"))) < files
    assert all_of(spool, 15) == events[15:]
    spool.acknowledge(30)
    assert len(list(tmp_path.glob("*.spool"))) == 1
    assert spool.pending == 0
    abandon(spool)
    again = Spool(tmp_path)
    assert again.next_position == 30, "numbers go on where they were"
    assert use(again, 1) == all_of(again, 30)


def test_a_long_request_is_carried_into_new_segments(tmp_path: Path) -> None:
    spool = Spool(tmp_path, segment_bytes=2000)
    long = an_event()
    spool.accept(long)
    use(spool, 30)
    spool.sync()
    spool.acknowledge(30)
    assert len(list(tmp_path.glob("*.spool"))) == 1, "it does not hold up the others"
    abandon(spool)
    again = Spool(tmp_path)
    assert [e.event_id for e in all_of(again, 30)] == [long.event_id]


def test_a_full_disk_refuses_requests_and_keeps_what_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path)
    running = an_event()
    spool.accept(running)
    write = os.write

    def full(fd: int, data: bytes) -> int:
        if fd != spool._fd:
            return write(fd, data)
        if len(data) % 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data[: len(data) // 2])  # half of it fits

    monkeypatch.setattr(os, "write", full)
    for pad in range(4):
        with pytest.raises(SpoolFull):
            spool.accept(an_event(org_id="o" * pad))
    done = settled(running)
    spool.settle(done)
    spool.progress([an_event()])
    assert not spool.has_room()
    assert spool.pending == 1
    monkeypatch.undo()
    spool.retry()
    assert spool.has_room()
    assert all_of(spool) == [done]
    abandon(spool)
    assert Spool(tmp_path).torn == 0, "nothing half-written was left"


def test_little_free_disk_closes_admission_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path)
    assert spool.has_room()

    class Tight:
        f_bavail, f_frsize = 100, 4096

    monkeypatch.setattr(os, "statvfs", lambda path: Tight)
    assert not spool.has_room()


def test_a_lost_folder_is_numbered_anew_behind_what_is_known(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    events = use(spool, 3)
    open_ = an_event()
    spool.accept(open_)
    spool.acknowledge(500)
    assert spool.next_position == 503
    assert all_of(spool, 500) == events
    abandon(spool)
    again = Spool(tmp_path)
    assert [e.event_id for e in all_of(again, 500)] == [*(e.event_id for e in events), open_.event_id]


def test_two_processes_do_not_share_a_folder(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    with pytest.raises(SpoolError, match="Another gateway process"):
        Spool(tmp_path)
    spool.close()
    Spool(tmp_path)


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    events = use(spool, 2)
    abandon(spool)
    (tmp_path / "copy.spool").write_bytes(b"no record")
    again = Spool(tmp_path)
    assert again.read(0, 9) == (events, 2) and (tmp_path / "copy.spool").exists()


def test_a_disk_without_room_for_a_beginning_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path)
    spool.accept(an_event())
    abandon(spool)
    monkeypatch.setattr(os, "write", lambda fd, data: 0)
    with pytest.raises(SpoolError, match="full"):
        Spool(tmp_path)


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    use(Spool(tmp_path / "s"), 1)
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o700
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in (tmp_path / "s").iterdir())


# --- which figures count

LIMITS = Limits(prompt=100, completion=50)


@pytest.mark.threat("B4")
@pytest.mark.parametrize(
    ("final", "running", "chunks", "counts", "by", "breach"),
    [
        (Counts(9, 4, 5, 2), Counts(9, 4, 5, 0), 5, Counts(9, 4, 5, 2), CountedBy.ENGINE, False),
        (Counts(9, 0, 0, 0), None, 0, Counts(9, 0, 0, 0), CountedBy.ENGINE, False),
        (None, Counts(9, 4, 12, 0), 5, Counts(9, 4, 12, 0), CountedBy.ENGINE_RUNNING, False),
        (None, None, 5, Counts(25, 0, 5, 0), CountedBy.ESTIMATE, False),
        (None, None, 500, Counts(25, 0, 50, 0), CountedBy.ESTIMATE, False),
        (None, Counts(9, 0, 0, 0), 0, Counts(), CountedBy.NONE, False),
        (None, None, 0, Counts(), CountedBy.NONE, False),
        (Counts(9, 0, 40, 0), Counts(9, 0, 20, 0), 20, Counts(9, 0, 20, 0), CountedBy.ENGINE, True),
        (Counts(9, 0, 2, 0), None, 5, Counts(9, 0, 5, 0), CountedBy.ESTIMATE, True),
        (Counts(10**9, 10**9, 10**9, 10**9), None, 5, Counts(100, 100, 50, 50), CountedBy.ENGINE, True),
        (Counts(-5, -5, -5, -5), None, 0, Counts(0, 0, 0, 0), CountedBy.ESTIMATE, True),
    ],
)
def test_the_most_exact_figure_within_bounds_is_billed(
    final: Counts | None, running: Counts | None, chunks: int, counts: Counts, by: CountedBy, breach: bool
) -> None:
    got = meter.bill(final=final, running=running, chunks=chunks, prompt_estimate=25, limits=LIMITS)
    assert (got.counts, got.counted_by, got.breach) == (counts, by, breach)
