"""Adapters beside their base on the real engine: each under its own name, none where nobody asked for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from berth_runtime.contract.checks import names_its_models, serves_each_adapter
from berth_runtime.contract.replica import Replica
from berth_runtime.engines.llamacpp import LlamaCpp
from berth_runtime.failure import Failure
from berth_runtime.spec import Adapter, Phase
from tests.runtime import llama_server
from tests.runtime.agents import SECRET, Agent, a_spec, call, folder_files
from tests.runtime.lora_files import RANK, as_adapter, gguf_adapter, peft_adapter


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    folder = tmp_path_factory.mktemp("lora")
    adapters = (
        as_adapter("org/one", gguf_adapter(folder / "one.gguf", seed=1)),
        as_adapter("org/two", gguf_adapter(folder / "two.gguf", seed=2)),
        Adapter("org/saved", folder_files(peft_adapter(folder / "saved", seed=3)), RANK),
    )
    with Agent(a_spec(folder, adapters=adapters)) as agent:
        agent.ready()
        yield agent


def unaddressed(agent: Agent) -> str:
    return said(agent, {"model": "org/model"})


def said_by(agent: Agent, name: str) -> str:
    return said(agent, LlamaCpp().address(agent.spec, name))


def said(agent: Agent, address: dict[str, Any]) -> str:
    body: dict[str, Any] = {"prompt": "The capital of France is", "max_tokens": 6, "temperature": 0}
    port = agent.ready().port
    assert port
    status, raw, _ = call(port, "POST", "/v1/completions", body | {"cache_prompt": False} | address)
    assert status == 200
    return str(json.loads(raw)["choices"][0]["text"])


def test_each_answers_as_itself_and_the_base_is_not_touched(agent: Agent) -> None:
    base = said_by(agent, "org/model")
    assert unaddressed(agent) == base
    one, two, saved = (said_by(agent, f"org/{name}") for name in ("one", "two", "saved"))
    assert base.startswith(" Paris")
    assert len({base, one, two, saved}) == 4
    assert said_by(agent, "org/model") == base
    assert said_by(agent, "org/one") == one


def test_no_prefix_that_was_read_with_an_adapter_serves_the_base(agent: Agent) -> None:
    """The same slot, with its cache."""
    base = said(agent, LlamaCpp().address(agent.spec, "org/model") | {"cache_prompt": True, "id_slot": 0})
    for name in ("org/one", "org/model", "org/two", "org/model"):
        text = said(agent, LlamaCpp().address(agent.spec, name) | {"cache_prompt": True, "id_slot": 0})
        assert (text == base) is (name == "org/model")


def test_they_keep_the_contract(agent: Agent) -> None:
    port = agent.ready().port
    assert port
    replica = Replica(LlamaCpp(), agent.spec, "127.0.0.1", port, SECRET)
    serves_each_adapter(replica)
    names_its_models(replica)


@pytest.mark.threat("M8")
def test_the_name_of_an_adapter_is_in_no_path(agent: Agent) -> None:
    argv = LlamaCpp().command(agent.spec)
    given = [word.removeprefix("--lora=") for word in argv if word.startswith("--lora=")]
    assert [Path(word).parent.name for word in given] == ["adapter-0", "adapter-1", "work"]
    assert not any("org/one" in word for word in argv)


def test_an_adapter_that_cannot_be_loaded_keeps_the_replica_from_ready(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF not really")
    with Agent(a_spec(tmp_path, adapters=(as_adapter("org/broken", broken),))) as agent:
        status = agent.wait(Phase.FAILED)
    assert Phase.READY not in [timing.phase for timing in status.phases]


@pytest.mark.threat("M7")
def test_an_adapter_is_checked_like_its_base(tmp_path: Path) -> None:
    adapter = as_adapter("org/one", gguf_adapter(tmp_path / "one.gguf"))
    wrong = msgspec.structs.replace(adapter.files[0], sha256="0" * 64)
    with Agent(a_spec(tmp_path, adapters=(msgspec.structs.replace(adapter, files=(wrong,)),))) as agent:
        assert agent.wait(Phase.FAILED).reason == "checksum_mismatch"


@pytest.mark.parametrize("form", ["--lora-scaled FNAME:SCALE,...", "--lora-scaled FNAME SCALE"])
def test_a_llama_server_gets_them_without_weight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    program = llama_server.make(tmp_path / "llama-server", flags=f"{llama_server.FLAGS} {form}")
    monkeypatch.setenv("BERTH_LLAMA_SERVER", str(program))
    spec = a_spec(tmp_path, adapters=(as_adapter("org/one", gguf_adapter(tmp_path / "one.gguf")),))
    argv = LlamaCpp().command(spec)
    path = f"{spec.state_dir}/adapter-0/adapter.gguf"
    expected = [f"{path}:0"] if ":" in form else [path, "0"]
    at = argv.index("--lora-scaled") + 1
    assert argv[at : at + len(expected)] == expected


def test_what_llama_cpp_cannot_do_is_refused(tmp_path: Path) -> None:
    for changes in ({"tensor_parallel": 2}, {"quantization": "fp8"}, {"reasoning_parser": "qwen3"}):
        with pytest.raises(Failure) as failure:
            LlamaCpp().command(a_spec(tmp_path, **changes))
        assert failure.value.reason == "unsupported_option"
