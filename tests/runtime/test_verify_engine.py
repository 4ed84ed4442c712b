"""`verify-engine`: what an operator sees when an engine keeps the contract, and when it does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime.agents import ONNX_FOLDER, environment
from tests.runtime.engine_programs import program


def verified(*arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "berth_runtime",
        "verify-engine",
        "--context",
        "512",
        "--slots",
        "2",
        "--threads",
        "1",
    ]
    return subprocess.run([*command, *arguments], env=environment(**extra), capture_output=True, text=True, check=False)


def test_an_engine_that_keeps_the_contract() -> None:
    done = verified("--engine", "onnxruntime", "--model", str(ONNX_FOLDER))
    assert done.returncode == 0, done.stdout
    assert "engine: onnxruntime-genai" in done.stdout
    assert "17 hold, 0 are broken, 1 are not claimed" in done.stdout
    assert "ok     keeps_strangers_out" in done.stdout


def test_an_engine_that_does_not_start_is_told_with_its_reason(tmp_path: Path) -> None:
    model = tmp_path / "m.safetensors"
    model.write_bytes(b"x")
    broken = program(
        tmp_path / "vllm", "import sys\nsys.stderr.write('vllm: error: unrecognized arguments: --uds\\n')\nsys.exit(2)"
    )
    done = verified("--engine", "vllm", "--model", str(model), BERTH_VLLM=str(broken))
    assert done.returncode == 1
    assert "another version than Berth works with" in done.stdout


@pytest.mark.parametrize("arguments", [("--engine", "warp", "--model", "x"), ("--engine", "vllm", "--model", "/none")])
def test_what_cannot_be_tried_is_said(arguments: tuple[str, ...]) -> None:
    done = verified(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stdout + done.stderr
