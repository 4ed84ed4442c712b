"""Spools that nobody writes any more are shipped to their end; a lone gateway's usage can be collected and trimmed."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

from berth.host.valkey import Valkey
from berth_gateway.collect import collect, main, trim
from berth_gateway.config import Config
from berth_gateway.contract import (
    USAGE_POSITION_KEY,
    USAGE_STREAM,
    CountedBy,
    Outcome,
    UsageBatch,
    UsageEvent,
    usage_key,
    usage_mac,
)
from berth_gateway.estates import left_behind
from berth_gateway.spool import Spool
from tests.gateway.harness import MASTER, NAME, ROOT, GatewayProcess, World
from tests.gateway.test_spool import an_event
from tests.runtime.agents import eventually

DAY = 86400.0


def event(number: int, **fields: Any) -> UsageEvent:
    return an_event(revision=number, outcome=Outcome.OK, **fields) if "outcome" not in fields else an_event(**fields)


def left(folder: Path, *events: UsageEvent, still_open: UsageEvent | None = None) -> None:
    """A spool as a worker leaves it: shut down, or killed in the middle of a request."""
    spool = Spool(folder)
    for each in events:
        spool.accept(each)
        spool.settle(each)
    if still_open is not None:
        spool.accept(still_open)
    spool.close()


class Books:
    """What the control plane does, for any number of gateway names."""

    def __init__(self, valkey: redis.Redis) -> None:
        self._valkey = valkey
        self.events: dict[str, list[UsageEvent]] = {}

    def run(self) -> None:
        entries: Any = self._valkey.xrange(USAGE_STREAM)
        for entry_id, fields in entries:
            batch = msgspec.msgpack.decode(fields[b"batch"], type=UsageBatch)
            key = usage_key(MASTER, batch.gateway)
            assert batch.mac == usage_mac(key, batch.gateway, batch.start, batch.end, batch.payload)
            self.events.setdefault(batch.gateway, []).extend(
                msgspec.msgpack.decode(batch.payload, type=list[UsageEvent])
            )
            self._valkey.hset(USAGE_POSITION_KEY, batch.gateway, batch.end)
            self._valkey.xdel(USAGE_STREAM, entry_id)


def test_whose_spools_are_left_behind(tmp_path: Path) -> None:
    given = {
        "BERTH_GATEWAY_DIR": str(tmp_path), "REDIS_URL": "redis://h/0", "BERTH_SNAPSHOT_PUBLIC_KEY_FILE": "-",
        "BERTH_USAGE_KEY_FILE": "-",
    }  # fmt: skip
    for name in ("worker-1", "worker-3", "worker-4", "other"):
        left(tmp_path / name, event(1))
    (tmp_path / "worker-5").mkdir()

    def found(workers: str) -> list[int]:
        config = Config.from_environ({**given, "BERTH_GATEWAY_WORKERS": workers})
        return [number for number, _ in left_behind(config if workers == "1" else config.for_worker(1))]

    assert (found("1"), found("3"), found("4")) == ([1, 3, 4], [4], [])
    left(tmp_path, event(2))
    assert (found("4"), found("2"), found("1")) == ([0], [0, 3, 4], [1, 3, 4])


def test_what_fewer_workers_leave_is_shipped_under_its_own_name(
    tmp_path: Path, world: World, valkey: redis.Redis, valkey_server: Valkey
) -> None:
    home = tmp_path / "gateway"
    third, fourth = event(1, gateway=f"{NAME}:3"), event(2, gateway=f"{NAME}:4")
    cut = event(3, gateway=f"{NAME}:4", outcome=Outcome.INTERRUPTED, counted_by=CountedBy.ENGINE_RUNNING)
    left(home / "worker-3", third)
    left(home / "worker-4", fourth, still_open=cut)
    process = GatewayProcess(tmp_path, world, valkey_server.url).start()
    books = Books(valkey)

    def gone() -> bool:
        books.run()
        return not any(path for folder in ("worker-3", "worker-4") for path in (home / folder).glob("*.spool"))

    try:
        eventually(gone, "both spools to be shipped and emptied")
        eventually(lambda: len([line for line in process.log() if line["event"] == "estate_shipped"]) == 2, "two lines")
    finally:
        process.kill()
    assert books.events == {f"{NAME}:3": [third], f"{NAME}:4": [fourth, cut]}
    process.check_log()


def test_usage_of_a_lone_gateway_is_collected_and_trimmed(tmp_path: Path) -> None:
    old = [event(n, accepted_at=1000.0 + n) for n in range(40)]
    new = [event(n, accepted_at=DAY + n) for n in range(40, 80)]
    for folder, events in (("worker-1", old[:20] + new[:20]), ("worker-2", old[20:] + new[20:])):
        spool = Spool(tmp_path / folder, segment_bytes=2000)
        for each in events:
            spool.accept(each)
            spool.settle(each)
        spool.sync()  # and it goes on: a gateway runs
    out = io.BytesIO()
    assert collect(tmp_path, out) == 80
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert {line["event_id"] for line in lines} == {each.event_id for each in old + new}
    assert collect(tmp_path, io.BytesIO(), since=DAY) == 40
    files = len(list(tmp_path.rglob("*.spool")))
    assert trim(tmp_path, 0) == 0
    deleted = trim(tmp_path, DAY)
    assert 0 < deleted == files - len(list(tmp_path.rglob("*.spool")))
    left_over = io.BytesIO()
    assert collect(tmp_path, left_over, since=DAY) == 40
    assert trim(tmp_path, 1e12) > 0
    assert len(list(tmp_path.rglob("*.spool"))) == 2  # what is still written stays


def test_the_command(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    left(tmp_path / "spool", event(1, accepted_at=1000.0))
    command = [sys.executable, "-m", "berth_gateway.collect", str(tmp_path / "spool"), "--since", "1970-01-01"]
    done = subprocess.run(command, capture_output=True, check=True, env={"PYTHONPATH": str(ROOT / "platform")})
    assert json.loads(done.stdout)["accepted_at"] == 1000.0
    assert main([str(tmp_path / "none")]) == 2
    assert main([str(tmp_path / "spool"), "--trim-before", "2026-11-01"]) == 0
    assert b"0 files deleted" in capsysbinary.readouterr().err
