"""How fast Berth is here: `make bench`. Starts a platform of its own, measures, and prints a table; asserts nothing.

- start and restart: from the command to the first token of a real answer (packages and dashboard are there already)
- the gateway's share: time to the first token through the gateway and straight from the engine, taken in turns
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psycopg

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "platform")]

from berth.host.child import free_port  # noqa: E402
from tests.e2e.conftest import Platform  # noqa: E402


def first_token_ms(client: httpx.Client, url: str, key: str, model: str) -> float:
    """Milliseconds from the request to the first event of a streamed answer; the answer is read to its end."""
    body = {"model": model, "prompt": "The capital of France is", "max_tokens": 4, "stream": True}
    begun = time.perf_counter()
    with client.stream("POST", url, json=body, headers={"Authorization": f"Bearer {key}"}) as answer:
        answer.raise_for_status()
        chunks = answer.iter_bytes()
        next(chunks)
        first = (time.perf_counter() - begun) * 1000
        for _ in chunks:
            pass
    return first


def engine_of(platform: Platform) -> tuple[str, str, str]:
    """Address, bearer token and model name of the sample model's replica."""
    with psycopg.connect(platform.database_url) as connection:
        row = connection.execute(
            "select name, host, port from deployments_replica where ended_at is null and port is not null"
        ).fetchone()
    if row is None:
        raise SystemExit("No replica is running.")
    name, host, port = row
    program = f"from berth.deployments.secrets import replica_secret; print(replica_secret({name!r}))"
    secret = platform.manage("shell", "--no-imports", "-c", program)
    return f"http://{host}:{port}/v1/completions", secret, "any"


def timed(act: Callable[[], object]) -> float:
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100, help="of each kind, one after the other")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="berth-bench-") as folder:
        platform = Platform(Path(folder) / "berth", (free_port(), free_port()))
        try:
            rows = [("first start to first token", f"{timed(platform.start):.1f} s")]
            platform.end(signal.SIGINT)
            rows.append(("restart to first token", f"{timed(platform.start):.1f} s"))
            rows += compare(platform, chosen.requests)
        finally:
            platform.end(signal.SIGINT)
    for what, value in rows:
        print(f"{what:<45} {value:>12}")


def compare(platform: Platform, requests: int) -> list[tuple[str, str]]:
    engine = engine_of(platform)
    through = (f"{platform.demo['api_base']}/completions", platform.demo["api_key"], platform.demo["model"])
    seen: dict[str, list[float]] = {"through the gateway": [], "straight from the engine": []}
    with httpx.Client(timeout=60) as client:
        for _ in range(requests):  # in turns, so that both meet the same machine
            for name, (url, key, model) in zip(seen, (through, engine), strict=True):
                seen[name].append(first_token_ms(client, url, key, model))
    rows = []
    for name, times in seen.items():
        ordered = sorted(times)
        rows.append((f"first token {name}, median", f"{statistics.median(ordered):.1f} ms"))
        rows.append((f"first token {name}, 95 %", f"{ordered[int(len(ordered) * 0.95)]:.1f} ms"))
    return rows


if __name__ == "__main__":
    main()
