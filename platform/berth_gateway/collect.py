"""`python -m berth_gateway.collect DIR`: the usage of a gateway that runs alone, as JSON lines, and what need not be kept of it.

It reads beside a running gateway. An event may be written twice over two runs; its `event_id` says that it is the same.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import msgspec

from berth_gateway.contract import UsageEvent
from berth_gateway.records import SETTLED, read_records

_encode = msgspec.json.Encoder().encode


def segments(folder: Path) -> Iterator[tuple[Path, bool]]:
    """Every file of every spool in a folder, oldest first, and whether it is finished: the newest of a spool is still written."""
    spools: dict[Path, list[Path]] = {}
    for path in sorted(folder.rglob("*.spool")):
        spools.setdefault(path.parent, []).append(path)
    for paths in spools.values():
        for path in paths:
            yield path, path is not paths[-1]


def settled(path: Path) -> list[UsageEvent]:
    return [event for kind, event in read_records(path, path.stat().st_size) if kind == SETTLED]


def collect(folder: Path, out: IO[bytes], *, since: float = 0.0) -> int:
    """Writes the settled events accepted since then (Unix seconds). Returns how many."""
    count = 0
    for path, _ in segments(folder):
        for event in settled(path):
            if event.accepted_at >= since:
                out.write(_encode(event) + b"\n")
                count += 1
    return count


def trim(folder: Path, before: float) -> int:
    """Deletes finished files all of whose events were accepted before then (Unix seconds). Returns how many files."""
    count = 0
    for path, finished in list(segments(folder)):
        if finished and all(event.accepted_at < before for _, event in read_records(path, path.stat().st_size)):
            path.unlink()
            count += 1
    return count


def _at(text: str) -> float:
    """A day or an instant in ISO 8601, in UTC unless it says otherwise."""
    at = datetime.fromisoformat(text)
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m berth_gateway.collect", description=__doc__)
    parser.add_argument("folder", type=Path, help="the gateway's spool folder")
    parser.add_argument(
        "--since", type=_at, default=0.0, metavar="TIME", help="only events accepted since, such as 2026-11-01"
    )
    parser.add_argument(
        "--trim-before",
        type=_at,
        metavar="TIME",
        help="delete files whose events are all older, and write nothing. Keep what budgets still count: their whole periods",
    )
    given = parser.parse_args(arguments)
    if not given.folder.is_dir():
        sys.stderr.write(f"berth_gateway.collect: {given.folder} is no folder.\n")
        return 2
    if given.trim_before is not None:
        sys.stderr.write(f"{trim(given.folder, given.trim_before)} files deleted.\n")
        return 0
    sys.stderr.write(f"{collect(given.folder, sys.stdout.buffer, since=given.since)} events.\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
