"""Holds an operator's own engine to the contract: starts it as a replica would be, runs every check, says what holds.

python -m berth_runtime verify-engine --engine vllm --model FOLDER_OR_FILE [--context …] [--slots …] [--gpus …]
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from berth_runtime.contract.checks import CHECKS, Check
from berth_runtime.contract.replica import Broken, Missing, Replica
from berth_runtime.digest import sha256_of
from berth_runtime.engines.catalogue import ENGINES, engine_named
from berth_runtime.spec import LAUNCH_FORMAT, LaunchSpec, ModelFile, Phase, ReplicaStatus

_WEIGHTS: Final = (".gguf", ".safetensors", ".onnx", ".data")
_FINAL: Final = (Phase.STOPPED, Phase.FAILED)

Say = Callable[[str], None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.add_argument("--engine", required=True, choices=sorted(ENGINES), help="which engine")
    parser.add_argument("--model", required=True, type=Path, help="a GGUF file, or a folder of safetensors or ONNX")
    parser.add_argument("--context", type=int, default=2048, help="tokens of one request (2048)")
    parser.add_argument("--slots", type=int, default=4, help="requests side by side (4)")
    parser.add_argument("--threads", type=int, default=max((os.cpu_count() or 2) - 1, 1), help="all cores but one")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs it may use; 0: on the CPU")
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--pipeline-parallel", type=int, default=1)
    parser.add_argument("--start-deadline", type=int, default=1800, metavar="SECONDS")
    for name in ("quantization", "kv-dtype", "tool-parser", "reasoning-parser"):
        parser.add_argument(f"--{name}")


def verify_engine(given: argparse.Namespace, say: Say = print) -> int:
    """Exit status 0: every check held; 1: one did not, or the replica failed; 2: the model is not there."""
    folder = Path(tempfile.mkdtemp(prefix="berth-verify-"))
    try:
        spec = _spec(given, folder, say)
    except OSError as error:
        say(f"The model {given.model} cannot be read: {error.strerror}.")
        return 2
    file = folder / "spec.json"
    file.write_bytes(msgspec.json.encode(spec))
    agent = subprocess.Popen([sys.executable, "-m", "berth_runtime", "serve", str(file)])
    try:
        status = _ready(spec, agent, say)
        return 1 if status is None or status.port is None else _checked(spec, status.port, say)
    finally:
        agent.send_signal(signal.SIGTERM)
        agent.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _spec(given: argparse.Namespace, folder: Path, say: Say) -> LaunchSpec:
    secret = folder / "secret"
    secret.write_text(secrets.token_urlsafe(32))
    secret.chmod(0o600)
    paths = sorted(p for p in given.model.iterdir() if p.is_file()) if given.model.is_dir() else [given.model]
    say(f"reading {len(paths)} files of the model")
    formats = {".gguf": "gguf", ".onnx": "onnx"}
    return LaunchSpec(
        format=LAUNCH_FORMAT,
        replica="verify-engine",
        org_id="verify",
        deployment_id="verify",
        revision=1,
        engine=given.engine,
        files=tuple(_file(path.resolve()) for path in paths),
        model_alias="verify/model",
        context_length=given.context,
        slots=given.slots,
        threads=given.threads,
        secret_file=str(secret),
        state_dir=str(folder / "state"),
        start_deadline_seconds=given.start_deadline,
        model_format=next((formats[p.suffix] for p in paths if p.suffix in formats), "safetensors"),
        gpus=given.gpus,
        tensor_parallel=given.tensor_parallel,
        pipeline_parallel=given.pipeline_parallel,
        quantization=given.quantization,
        kv_dtype=given.kv_dtype,
        tool_parser=given.tool_parser,
        reasoning_parser=given.reasoning_parser,
    )


def _file(path: Path) -> ModelFile:
    role = "weights" if path.suffix in _WEIGHTS else "config"
    return ModelFile(str(path), role, path.stat().st_size, sha256_of(path), name=path.name)


def _ready(spec: LaunchSpec, agent: subprocess.Popen[bytes], say: Say) -> ReplicaStatus | None:
    """The status once the replica is ready; None if it never will be."""
    told: Phase | None = None
    while True:
        status = _status(spec)
        if status and status.phase is not told:
            told = status.phase
            say(f"{told}{f': {status.message}' if status.message else ''}")
        if status and status.phase is Phase.READY:
            say(f"engine: {status.engine_version}")
            return status
        if agent.poll() is not None or (status and status.phase in _FINAL):
            return None
        time.sleep(0.2)


def _status(spec: LaunchSpec) -> ReplicaStatus | None:
    try:
        return msgspec.json.decode((Path(spec.state_dir) / "status.json").read_bytes(), type=ReplicaStatus)
    except OSError:
        return None


def _checked(spec: LaunchSpec, port: int, say: Say) -> int:
    engine = engine_named(spec.engine)
    if engine is None:
        return 1
    replica = Replica(engine, spec, "127.0.0.1", port, Path(spec.secret_file).read_text())
    results = [_result(check, replica, say) for check in CHECKS]
    say(f"{results.count('ok')} hold, {results.count('BROKEN')} are broken, {results.count('-')} are not claimed")
    return 1 if "BROKEN" in results else 0


def _result(check: Check, replica: Replica, say: Say) -> str:
    meant = (check.__doc__ or "").split("\n")[0]
    try:
        check(replica)
        result, why = "ok", ""
    except Missing:
        result, why = "-", " (not claimed)"
    except Broken as broken:
        result, why = "BROKEN", f" But: {broken}."
    except Exception as error:  # noqa: BLE001 - an answer of another form, say; its text may hold anything
        result, why = "BROKEN", f" But: the answer cannot be understood ({type(error).__name__})."
    say(f"{result:6} {check.__name__}: {meant}{why}")
    return result
