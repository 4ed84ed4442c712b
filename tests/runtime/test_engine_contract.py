"""The engine contract, for every engine that can run here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime import llama_server
from tests.runtime.agents import Agent, a_spec, engine_spec
from tests.runtime.engine_contract import EngineContract


@pytest.fixture(scope="module", params=["llamacpp", "onnxruntime"])
def agent(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """A replica on each engine: another engine is another parameter."""
    with Agent(engine_spec(request.param, tmp_path_factory.mktemp("replica"))) as agent:
        yield agent


class TestEngines(EngineContract):
    """All of it, by inheritance."""


def test_a_llama_server_on_path_is_used(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    llama_server.make(tmp_path / "bin" / "llama-server")
    with Agent(a_spec(tmp_path), PATH=str(tmp_path / "bin"), BERTH_LLAMA_SERVER="") as agent:
        assert agent.ready().engine_version == "llama-server 7777 (abcdef0)"
        EngineContract().test_it_knows_the_capital_of_france(agent)
