"""The replica's log is bounded, numbered over restarts, and survives being cut short."""

from __future__ import annotations

import json
from pathlib import Path

from berth_runtime.log import ReplicaLog


def numbers(folder: Path) -> list[int]:
    found = []
    for name in ("log.1.jsonl", "log.jsonl"):
        if (folder / name).exists():
            found += [json.loads(line)["n"] for line in (folder / name).read_text().splitlines()]
    return found


def test_it_stays_within_two_generations(tmp_path: Path) -> None:
    log = ReplicaLog(tmp_path, max_bytes=2000)
    for turn in range(500):
        log.say(f"turn {turn}")
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 2 * 2000 + 200
    assert numbers(tmp_path)[-1] == 500
    assert numbers(tmp_path) == list(range(numbers(tmp_path)[0], 501))


def test_numbers_go_on_after_a_restart_also_right_after_a_rotation(tmp_path: Path) -> None:
    ReplicaLog(tmp_path, max_bytes=1).say("one")  # rotates at once
    assert not (tmp_path / "log.jsonl").exists()
    ReplicaLog(tmp_path).say("two")
    with (tmp_path / "log.jsonl").open("a") as stream:
        stream.write('{"n":3,"at":17')  # the machine stopped here
    ReplicaLog(tmp_path).say("three")
    assert (tmp_path / "log.jsonl").read_text().count('"n":3') == 2


def test_what_is_withheld_is_summed_and_noted_before_the_next_line(tmp_path: Path) -> None:
    log = ReplicaLog(tmp_path)
    log.withhold(10)
    log.withhold(32)
    log.say("after")
    log.tick()
    log.withhold(1)
    log.tick()
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [(line.get("withheld"), line.get("text")) for line in lines] == [(42, None), (None, "after"), (1, None)]


def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    ReplicaLog(tmp_path).say("hello")
    assert (tmp_path / "log.jsonl").stat().st_mode & 0o777 == 0o600
