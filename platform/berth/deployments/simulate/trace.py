"""What is asked of a deployment: moments, prompt tokens, reply tokens; read from a file, multiplied, stretched, thinned."""

from __future__ import annotations

import csv
import gzip
import io
import random
from datetime import datetime
from pathlib import Path

import msgspec

from berth.deployments.simulate.replica import Requests

_TEN = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
SPREAD = 10.0  # seconds over which the copies of a request are spread


class Trace(msgspec.Struct, frozen=True):
    """Sorted by time; seconds from the first."""

    at: tuple[float, ...]
    prompt: tuple[int, ...]
    output: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.at)

    @property
    def span(self) -> float:
        return self.at[-1] if self.at else 0.0

    def requests(self) -> Requests:
        return Requests(list(self.at), list(self.prompt), list(self.output))


def made_of(rows: list[tuple[float, int, int]]) -> Trace:
    rows.sort()
    return Trace(
        tuple(at for at, _, _ in rows),
        tuple(max(1, prompt) for _, prompt, _ in rows),
        tuple(max(1, output) for _, _, output in rows),
    )


def read_trace(path: Path) -> Trace:
    """CSV, also gzipped, with the columns TIMESTAMP, ContextTokens and GeneratedTokens. Raises ValueError with what is wrong."""
    data = path.read_bytes()
    text = gzip.decompress(data).decode() if data[:2] == b"\x1f\x8b" else data.decode()
    reader = csv.DictReader(io.StringIO(text))
    missing = [name for name in _TEN if name not in (reader.fieldnames or ())]
    if missing:
        raise ValueError(f"{path} has no column {missing[0]}. A trace has the columns {', '.join(_TEN)}.")
    rows = []
    for number, row in enumerate(reader, start=2):
        try:
            rows.append((_moment(row[_TEN[0]]), int(row[_TEN[1]]), int(row[_TEN[2]])))
        except (ValueError, TypeError):
            raise ValueError(f"Line {number} of {path} is not a moment and two whole numbers.") from None
    if not rows:
        raise ValueError(f"{path} has no requests.")
    first = min(at for at, _, _ in rows)
    return made_of([(at - first, prompt, output) for at, prompt, output in rows])


def _moment(text: str) -> float:
    """An ISO date and time, with up to seven digits behind the second, or seconds."""
    try:
        return float(text)
    except ValueError:
        whole, _, part = text.strip().removesuffix("Z").removesuffix("+00:00").partition(".")
        seconds = datetime.fromisoformat(f"{whole}+00:00").timestamp()
        return seconds + (float(f"0.{part}") if part else 0.0)


def multiplied(trace: Trace, times: float, seed: int = 1) -> Trace:
    """So many times as many requests within the same time: copies of each, spread over a few seconds. The part behind the point is
    the chance of one more copy, so below 1 it thins."""
    if times == 1.0:
        return trace
    chance = random.Random(seed)  # noqa: S311
    rows = []
    whole, part = int(times), times - int(times)
    for at, prompt, output in zip(trace.at, trace.prompt, trace.output, strict=True):
        for copy in range(whole + (chance.random() < part)):
            rows.append((at + (chance.uniform(0.0, SPREAD) if copy else 0.0), prompt, output))
    return made_of(rows)


def hastened(trace: Trace, times: float) -> Trace:
    """The same requests in a shorter time: everything rises and falls so much faster."""
    return msgspec.structs.replace(trace, at=tuple(at / times for at in trace.at))
