"""The contract on engines and models that take minutes: vLLM on the CPU, ONNX Runtime and the reference on the sample model.

They need a second environment, made by `make engines` (see docs/engines.md), because vLLM and torch are gigabytes.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from berth_runtime.contract.checks import names_its_models, serves_each_adapter
from berth_runtime.contract.replica import Replica
from berth_runtime.engines.vllm import Vllm
from berth_runtime.spec import Adapter, Phase
from tests.runtime import engine_programs
from tests.runtime.agents import SECRET, Agent, a_spec, eventually, folder_files, gone, model_file, stop
from tests.runtime.engine_contract import EngineContract, open_stream
from tests.runtime.lora_files import RANK, peft_adapter

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

_TO_SAFETENSORS = """
import sys, torch, transformers
from transformers import GgufConfig
source, name, out = sys.argv[1:]
made = dict(gguf_file=name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True))
transformers.AutoModelForCausalLM.from_pretrained(source, **made).save_pretrained(out)
transformers.AutoTokenizer.from_pretrained(source, gguf_file=name).save_pretrained(out)
"""


def _need(module: str) -> Path:
    python = engine_programs.engines_python()
    if python is None or not engine_programs.has(module):
        pytest.skip(f"{module} is not installed: `make engines`")
    return python


@pytest.fixture(scope="session")
def safetensors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample model as a folder of safetensors."""
    ready = os.environ.get("TEST_SAFETENSORS")
    if ready:
        return Path(ready)
    python = _need("transformers")
    out = tmp_path_factory.mktemp("models") / "safetensors"
    source = Path(model_file().path)
    environment = {"PATH": os.environ["PATH"], "HF_HUB_OFFLINE": "1"}
    subprocess.run([python, "-c", _TO_SAFETENSORS, source.parent, source.name, out], env=environment, check=True)
    return out


@pytest.fixture(scope="session")
def onnx(safetensors: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample model as ONNX in full precision: at 4 bits it no longer knows the capital of France."""
    ready = os.environ.get("TEST_ONNX")
    if ready:
        return Path(ready)
    python = _need("onnxruntime_genai")
    out = tmp_path_factory.mktemp("models") / "onnx"
    build = [python, "-m", "onnxruntime_genai.models.builder", "-i", safetensors, "-o", out, "-p", "fp32", "-e", "cpu"]
    environment = {"PATH": os.environ["PATH"], "HF_HUB_OFFLINE": "1", "ORT_DISABLE_TELEMETRY": "1", "CI": "1"}
    subprocess.run([*build, "-c", out.parent / "cache"], env=environment, check=True)
    return out


@pytest.fixture(scope="module", params=["vllm", "onnxruntime", "reference"])
def agent(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    folder = tmp_path_factory.mktemp("replica")
    common = {"engine": request.param, "start_deadline_seconds": 900, "threads": 1, "drain_seconds": 600}
    if request.param == "vllm":
        _need("vllm")
        files = folder_files(request.getfixturevalue("safetensors"))
        spec = a_spec(folder, files=files, model_format="safetensors", **common)
        extra = {"BERTH_VLLM": str(engine_programs.vllm(folder / "vllm"))}
    elif request.param == "reference":
        python = _need("transformers")
        files = folder_files(request.getfixturevalue("safetensors"))
        spec = a_spec(folder, files=files, model_format="safetensors", **common)
        extra = {"BERTH_REFERENCE_PYTHON": str(python)}
    else:
        spec = a_spec(folder, files=folder_files(request.getfixturevalue("onnx")), model_format="onnx", **common)
        extra = {}
    with Agent(spec, **extra) as agent:
        eventually(
            lambda: (now := agent.status()) and now.phase not in (Phase.LOADING, Phase.VERIFYING), "it loads", 900
        )
        yield agent


class TestSlowEngines(EngineContract):
    """All of it, by inheritance."""

    def test_drain_waits_for_what_runs_and_nothing_stays(self, agent: Agent) -> None:
        """The last test: it ends the replica."""
        port = agent.ready().port
        assert port
        connection, answer = open_stream(port, tokens=60)
        everything = [agent.engine(), *agent.engine().children(recursive=True)]
        stop(agent.process.pid)
        agent.wait(Phase.DRAINING, Phase.STOPPED)
        assert answer.read().endswith(b"data: [DONE]\n\n")
        connection.close()
        agent.wait(Phase.STOPPED)
        for process in everything:
            eventually(lambda process=process: gone(process.pid), "the engine is gone")


def test_vllm_serves_adapters_beside_their_base(safetensors: Path, tmp_path: Path) -> None:
    _need("vllm")
    adapters = tuple(
        Adapter(f"org/{name}", folder_files(peft_adapter(tmp_path / name, seed)), RANK)
        for seed, name in enumerate(("one", "two"))
    )
    spec = a_spec(
        tmp_path,
        engine="vllm",
        model_format="safetensors",
        files=folder_files(safetensors),
        adapters=adapters,
        start_deadline_seconds=900,
        threads=1,
    )
    with Agent(spec, BERTH_VLLM=str(engine_programs.vllm(tmp_path / "vllm"))) as agent:
        eventually(
            lambda: (now := agent.status()) and now.phase not in (Phase.LOADING, Phase.VERIFYING), "it loads", 900
        )
        port = agent.ready().port
        assert port
        replica = Replica(Vllm(), spec, "127.0.0.1", port, SECRET)
        names_its_models(replica)
        serves_each_adapter(replica)
        asked = {"prompt": "The capital of France is", "max_tokens": 6, "temperature": 0}
        said = [
            replica.generate("completions", **asked, model=name)["choices"][0]["text"]
            for name in ("org/model", "org/one", "org/two", "org/model")
        ]
        assert said[0] == said[3] and said[0].startswith(" Paris")
        assert len(set(said)) == 3
