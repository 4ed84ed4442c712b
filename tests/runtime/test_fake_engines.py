"""Ollama and TensorRT-LLM: the whole way from spec to a contract that is kept, against stand-ins that speak their API."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from berth_runtime.contract.checks import CHECKS, Check, Missing
from berth_runtime.contract.replica import Replica
from berth_runtime.engines.catalogue import engine_named
from berth_runtime.engines.ollama import Ollama
from berth_runtime.engines.tensorrt_llm import TensorRtLlm, options
from berth_runtime.failure import Failure
from berth_runtime.spec import LaunchSpec, Phase
from tests.runtime.agents import SECRET, Agent, a_spec, eventually, file_of, gone, stop
from tests.runtime.engine_programs import program
from tests.runtime.fakes import trtllm_arguments
from tests.runtime.lora_files import as_adapter, gguf_adapter

FAKES = Path(__file__).with_name("fakes.py")
SETTING = {"ollama": "BERTH_OLLAMA", "tensorrt_llm": "BERTH_TRTLLM_SERVE"}


def stand_in(kind: str, path: Path, **more: str) -> Path:
    """A program that is the stand-in; `more` goes into its environment."""
    name = "trtllm" if kind == "tensorrt_llm" else kind
    body = f"import os, sys\nos.environ |= {more!r}\n"
    return program(
        path, f"{body}os.execv({sys.executable!r}, [{sys.executable!r}, '-I', {str(FAKES)!r}, {name!r}, *sys.argv[1:]])"
    )


def spec_of(kind: str, folder: Path, **changes: Any) -> LaunchSpec:
    name = "model.gguf" if kind == "ollama" else "model.safetensors"
    weights = folder / name
    weights.write_bytes(b"GGUF and nothing more")
    file = msgspec.structs.replace(file_of(weights), name=name)
    return a_spec(folder, files=(file,), engine=kind, **changes)


@pytest.fixture(scope="module", params=["ollama", "tensorrt_llm"])
def agent(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    folder = tmp_path_factory.mktemp("replica")
    fake = stand_in(request.param, folder / "program")
    with Agent(spec_of(request.param, folder), **{SETTING[request.param]: str(fake)}) as agent:
        agent.ready()
        yield agent


@pytest.mark.threat("E1")
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(agent: Agent, check: Check) -> None:
    engine = engine_named(agent.spec.engine)
    port = agent.ready().port
    assert engine and port
    try:
        check(Replica(engine, agent.spec, "127.0.0.1", port, SECRET))
    except Missing:
        pytest.skip("this engine does not claim it")


@pytest.mark.threat("M9")
def test_no_secret_is_in_its_arguments_or_environment(agent: Agent) -> None:
    agent.ready()
    for process in psutil.Process(agent.process.pid).children(recursive=True):
        assert not any(SECRET in word for word in process.cmdline())
        assert not any(SECRET in value for value in process.environ().values())


@pytest.mark.threat("E2")
def test_the_engine_itself_listens_on_loopback_only(agent: Agent) -> None:
    agent.ready()
    everything = psutil.Process(agent.process.pid).children(recursive=True)
    sockets = [s for process in everything for s in process.net_connections("inet")]
    assert {s.laddr.ip for s in sockets if s.status == psutil.CONN_LISTEN} == {"127.0.0.1"}


@pytest.mark.parametrize("kind", ["ollama", "tensorrt_llm"])
def test_nothing_stays_when_it_is_stopped(tmp_path: Path, kind: str) -> None:
    with Agent(spec_of(kind, tmp_path), **{SETTING[kind]: str(stand_in(kind, tmp_path / "program"))}) as agent:
        agent.ready()
        everything = psutil.Process(agent.process.pid).children(recursive=True)
        stop(agent.process.pid)
        agent.wait(Phase.STOPPED)
        agent.process.wait(30)
        for process in everything:
            eventually(lambda process=process: gone(process.pid), "it is gone")


@pytest.mark.parametrize("victim", ["agent", "door"])
def test_nothing_stays_when_somebody_is_killed(tmp_path: Path, victim: str) -> None:
    """Also not what the engine has started, which the kernel does not end with it."""
    lasting = "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"
    fake = stand_in("ollama", tmp_path / "program")
    fake.write_text(fake.read_text().replace("import os, sys\n", f"import os, sys\n{lasting}\n", 1))
    with Agent(spec_of("ollama", tmp_path), BERTH_OLLAMA=str(fake)) as agent:
        agent.ready()
        everything = psutil.Process(agent.process.pid).children(recursive=True)
        assert any("time.sleep(600)" in " ".join(process.cmdline()) for process in everything)
        (psutil.Process(agent.process.pid) if victim == "agent" else agent.engine()).kill()
        for process in everything:
            eventually(lambda process=process: gone(process.pid), "it is gone")


def test_an_ollama_that_takes_no_link_gets_a_copy(tmp_path: Path) -> None:
    fake = stand_in("ollama", tmp_path / "program", FAKE_REFUSES_LINKS="1")
    with Agent(spec_of("ollama", tmp_path), BERTH_OLLAMA=str(fake)) as agent:
        agent.ready()
        [blob] = (Path(agent.spec.state_dir) / "work" / "models" / "blobs").iterdir()
        assert not blob.is_symlink()
        assert blob.read_bytes() == (tmp_path / "model.gguf").read_bytes()


def test_a_file_that_is_no_model_for_ollama_is_a_failure_with_a_reason(tmp_path: Path) -> None:
    spec = spec_of("ollama", tmp_path)
    (tmp_path / "model.gguf").write_bytes(b"no model")
    spec = msgspec.structs.replace(spec, files=(file_of(tmp_path / "model.gguf"),))
    with Agent(spec, BERTH_OLLAMA=str(stand_in("ollama", tmp_path / "program"))) as agent:
        assert agent.wait(Phase.FAILED).reason == "model_unreadable"


def test_a_trtllm_serve_that_does_not_know_an_option_is_a_failure_with_a_reason(tmp_path: Path) -> None:
    old = program(
        tmp_path / "program", "import sys\nsys.stderr.write('Error: No such option: --tp_size\\n')\nsys.exit(2)"
    )
    with Agent(spec_of("tensorrt_llm", tmp_path), BERTH_TRTLLM_SERVE=str(old)) as agent:
        assert agent.wait(Phase.FAILED).reason == "engine_too_old"


@pytest.mark.threat("E1")
def test_what_is_private_is_forced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, engine in (("ollama", Ollama()), ("tensorrt_llm", TensorRtLlm())):
        monkeypatch.setenv(SETTING[kind], str(stand_in(kind, tmp_path / kind)))
        spec = spec_of(kind, tmp_path)
        door = json.loads(engine.command(spec)[4])
        assert not any(path.startswith(("/api", "/v1/responses", "/update")) for _, path in door["allowed"])
        environment = engine.environment(spec)
        if kind == "ollama":
            assert environment["OLLAMA_DEBUG"] == "0" and environment["OLLAMA_NO_CLOUD"] == "1"
            assert environment["OLLAMA_MODELS"].startswith(spec.state_dir)
        else:
            assert environment["TRTLLM_RESPONSES_API_DISABLE_STORE"] == "1"
            argv = engine.command(spec)
            taken = trtllm_arguments([word.replace("{inner port}", "1") for word in argv[argv.index("--") + 2 :]])
            assert not taken.trust_remote_code and not taken.otlp_traces_endpoint


def test_trtllm_gets_what_the_plan_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTH_TRTLLM_SERVE", str(stand_in("tensorrt_llm", tmp_path / "program")))
    changes = {"tensor_parallel": 4, "pipeline_parallel": 2, "kv_dtype": "fp8", "memory_fraction": 0.8}
    spec = spec_of("tensorrt_llm", tmp_path, tool_parser="qwen3", prefix_cache=False, quantization="fp8", **changes)
    argv = TensorRtLlm().command(spec)
    taken = trtllm_arguments([word.replace("{inner port}", "1") for word in argv[argv.index("--") + 2 :]])
    assert (taken.tp_size, taken.pp_size, taken.max_seq_len, taken.max_batch_size) == (4, 2, 512, 2)
    assert taken.tool_parser == "qwen3"
    assert options(spec)["kv_cache_config"] == {
        "enable_block_reuse": False,
        "dtype": "fp8",
        "free_gpu_memory_fraction": 0.8,
    }
    assert options(spec)["quant_config"] == {"quant_algo": "FP8"}


@pytest.mark.parametrize("kind", ["ollama", "tensorrt_llm"])
def test_what_they_cannot_do_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setenv(SETTING[kind], str(stand_in(kind, tmp_path / "program")))
    engine = engine_named(kind)
    assert engine
    adapter = as_adapter("org/one", gguf_adapter(tmp_path / "one.gguf"))
    with pytest.raises(Failure) as failure:
        engine.command(spec_of(kind, tmp_path, adapters=(adapter,)))
    assert failure.value.reason == "unsupported_option"
