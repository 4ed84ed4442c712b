"""What the gateway costs, beside nginx in the same run: `make bench-gateway`. How to read it: docs/performance.md.

Needs a C compiler, nginx (Debian: nginx-light) and two cores: the measured process has one, engine and clients the other.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
KEY = "bth_sk_" + "b" * 49
ENGINE_PORT, NGINX_PORT, GATEWAY_PORT = 9481, 9482, 9483


@dataclass(frozen=True)
class Case:
    """`chunks` of one answer, 0 for plain ones."""

    name: str
    connections: int
    prompt: str
    chunks: int

    @property
    def unit(self) -> str:
        return "chunk" if self.chunks else "request"


CASES = (
    Case("plain64", 64, "tokens=64", 0),
    Case("stream64", 64, "tokens=64 first=20 each=5", 64),
    Case("stream200", 200, "tokens=64 first=20 each=5", 64),
)

NGINX = """daemon off; master_process off; worker_processes 1; pid {work}/nginx.pid; error_log stderr warn;
events {{ worker_connections 2048; }}
http {{
  access_log off; client_body_temp_path {work}; proxy_temp_path {work}; fastcgi_temp_path {work};
  uwsgi_temp_path {work}; scgi_temp_path {work};
  keepalive_requests 100000000;
  upstream engine {{ server 127.0.0.1:{engine}; keepalive 512; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=1024;
    location / {{
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; client_body_buffer_size 1m;
    }}
  }}
}}
"""


def snapshot(keys: int) -> bytes:
    """Everything on: limits of key, organisation and deployment, a budget, prices. None of them is reached."""
    lots = 1_000_000_000
    many = [
        {"id": f"key-{n}", "organization": "bench", "sha256": hashlib.sha256(b"%d" % n).hexdigest()}
        for n in range(1, keys)
    ]
    mine = {"id": "key-0", "organization": "bench", "sha256": hashlib.sha256(KEY.encode()).hexdigest()}
    limits = {"rpm": lots, "concurrency": lots}
    model = {
        "name": "bench",
        "organization": "bench",
        "engine": "vllm",
        "engine_model": "m",
        "context_length": 4096,
        "replicas": [{"port": ENGINE_PORT}],
        "limits": {"concurrency": lots},
        "prices": [{"valid_from": 0, "input": 100, "cached": 10, "output": 300}],
    }
    budget = {"budget_id": "b", "org_id": "bench", "scope": "org", "subject_id": "bench", "limit_pico": 10**18}
    period = {"name": "total", "starts_at": 0, "ends_at": 4_000_000_000}
    return json.dumps(
        {
            "organizations": [{"id": "bench", "limits": {"rpm": lots, "tpm": 10**13}}],
            "keys": [mine | {"limits": limits}, *many],
            "models": [model],
            "budgets": [budget | {"version": 1, "periods": [period]}],
        }
    ).encode()


@contextlib.contextmanager
def running(command: list[str], port: int, core: int, log: Path, **environ: str) -> Iterator[int]:
    """A process on one core, until the block ends; its id."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["taskset", "-c", str(core), *command], stdout=out, stderr=out, env={**os.environ, **environ}
        )
    try:
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if process.poll() is not None:
                sys.exit(f"{command[0]} did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.1)
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()


def cpu_seconds(pid: int) -> float:
    """Of all threads of a process, to the nanosecond."""
    return sum(int(f.read_text().split()[0]) for f in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def peak_megabytes(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def drive(load: Path, target: str, port: int, case: Case, seconds: float) -> dict[str, Any]:
    what = [str(port), KEY, "bench", case.prompt, str(case.connections), str(seconds), str(case.chunks)]
    done = subprocess.run(
        ["taskset", "-c", "1", str(load), *what], capture_output=True, text=True, check=True, timeout=seconds + 120
    )
    found: dict[str, Any] = json.loads(done.stdout)
    if found["bad"] or not found["good"]:
        sys.exit(f"{case.name} through {target}: {found['bad']} bad answers. {done.stderr[:600]}")
    return found


def measure(load: Path, targets: dict[str, tuple[int, int]], rounds: int, seconds: float) -> list[dict[str, Any]]:
    """One row for each round, case and target, targets taking turns. `targets`: port and process id (0: not measured)."""
    rows = []
    for turn in range(-1, rounds):
        for case in CASES:
            for name, (port, pid) in targets.items():
                before = cpu_seconds(pid) if pid else 0.0
                row = drive(load, name, port, case, 0.3 if turn < 0 else seconds)
                spent = (cpu_seconds(pid) if pid else 0.0) - before
                units = row["chunks"] if case.chunks else row["good"]
                if turn >= 0:  # the first turn only warms up
                    rows.append(row | {"target": name, "case": case.name, "round": turn, "cpu": spent / units * 1e6})
    return rows


def median(rows: list[dict[str, Any]], target: str, case: str, field: str) -> float:
    return statistics.median(row[field] for row in rows if row["target"] == target and row["case"] == case)


def report(rows: list[dict[str, Any]], peaks: dict[str, float], keys: int) -> None:
    print(f"load average {os.getloadavg()[0]:.1f}, medians, {keys:,} keys in the snapshot\n")
    print(
        "| case | nginx: µs CPU | gateway: µs CPU | ratio | first token added, p50 / p99 | requests/s, nginx / gateway |"
    )
    print("|---|---|---|---|---|---|")
    for case in CASES:
        nginx, own = (median(rows, target, case.name, "cpu") for target in ("nginx", "gateway"))
        added = "-"
        if case.chunks:
            added = " / ".join(
                f"{(median(rows, 'gateway', case.name, f) - median(rows, 'direct', case.name, f)) / 1000:.1f} ms"
                for f in ("ttft50", "ttft99")
            )
        rates = " / ".join(
            f"{statistics.median(r['good'] / r['seconds'] for r in rows if (r['target'], r['case']) == (t, case.name)):.0f}"
            for t in ("nginx", "gateway")
        )
        print(
            f"| {case.name} | {nginx:.1f} a {case.unit} | {own:.1f} a {case.unit} | {own / nginx:.2f} | {added} | {rates} |"
        )
    print("\npeak memory: " + ", ".join(f"{name} {value:.0f} MB" for name, value in peaks.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--json", type=Path, help="write every round's figures there")
    wanted = parser.parse_args()
    for tool in ("cc", "nginx", "taskset"):
        if shutil.which(tool) is None:
            sys.exit(f"{tool} is not installed. On Debian: apt-get install gcc libc6-dev nginx-light util-linux")
    with tempfile.TemporaryDirectory(prefix="berth-bench") as folder, contextlib.ExitStack() as stack:
        work = Path(folder)
        for name in ("engine", "load"):
            subprocess.run(["cc", "-O2", "-o", str(work / name), str(HERE / f"{name}.c")], check=True)
        (work / "nginx.conf").write_text(NGINX.format(work=work, engine=ENGINE_PORT, port=NGINX_PORT))
        (work / "snapshot.json").write_bytes(snapshot(wanted.keys))
        stack.enter_context(running([str(work / "engine"), str(ENGINE_PORT)], ENGINE_PORT, 1, work / "engine.log"))
        proxy = ["nginx", "-c", str(work / "nginx.conf"), "-p", str(work)]
        gateway = [sys.executable, "-m", "berth_gateway", "--snapshot", str(work / "snapshot.json")]
        gateway += ["--port", str(GATEWAY_PORT), "--spool", str(work / "spool")]
        pids = {
            "nginx": stack.enter_context(running(proxy, NGINX_PORT, 0, work / "nginx.log")),
            "gateway": stack.enter_context(
                running(gateway, GATEWAY_PORT, 0, work / "gateway.log", PYTHONPATH=str(ROOT / "platform"))
            ),
        }
        targets = {
            "direct": (ENGINE_PORT, 0),
            "nginx": (NGINX_PORT, pids["nginx"]),
            "gateway": (GATEWAY_PORT, pids["gateway"]),
        }
        rows = measure(work / "load", targets, wanted.rounds, wanted.seconds)
        report(rows, {name: peak_megabytes(pid) for name, pid in pids.items()}, wanted.keys)
    if wanted.json:
        wanted.json.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
