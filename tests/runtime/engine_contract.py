"""What every engine must do beside an agent, whatever it is. Each test gets a replica that is READY."""

from __future__ import annotations

import http.client
import json
from pathlib import Path

import psutil
import pytest

from berth_runtime.contract.checks import CHECKS, Check, Missing
from berth_runtime.contract.replica import Replica
from berth_runtime.engines.catalogue import engine_named
from berth_runtime.spec import EngineMetrics, Phase, PhaseTiming
from tests.runtime.agents import SECRET, Agent, call, eventually, log_of

TALKATIVE = ("llamacpp",)  # engines that print text of requests that they cannot read
CANARY = "BC-QZ7WXK4MTR2HVD-canary"


def port_of(agent: Agent) -> int:
    port = agent.ready().port
    assert port
    return port


def open_stream(port: int, tokens: int) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    """A generation that is under way: its first bytes have come."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = {"model": "org/model", "prompt": "Once", "max_tokens": tokens, "stream": True, "ignore_eos": True}
    body["temperature"] = 0  # the same tokens each time: one that is part of a character makes no piece of its own
    headers = {"Authorization": f"Bearer {SECRET}", "Content-Type": "application/json"}
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    answer = connection.getresponse()
    assert answer.status == 200
    assert answer.read(6) == b"data: "
    return connection, answer


class EngineContract:
    """Subclasses give the fixture `agent` (an Agent that gets READY) and may say what their engine lacks."""

    # The checks that `python -m berth_runtime verify-engine` runs on an operator's own engine.
    @pytest.mark.threat("E1")
    @pytest.mark.threat("G7")
    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_contract(self, agent: Agent, check: Check) -> None:
        engine = engine_named(agent.spec.engine)
        assert engine
        try:
            check(Replica(engine, agent.spec, "127.0.0.1", port_of(agent), SECRET))
        except Missing:
            pytest.skip("this engine does not claim it")

    def test_it_knows_the_capital_of_france(self, agent: Agent) -> None:
        body = {"model": "org/model", "prompt": "The capital of France is", "max_tokens": 1, "temperature": 0}
        status, raw, _ = call(port_of(agent), "POST", "/v1/completions", body)
        assert status == 200
        assert json.loads(raw)["choices"][0]["text"] == " Paris"

    @pytest.mark.threat("E2")
    def test_it_listens_on_the_declared_port_only(self, agent: Agent) -> None:
        port = port_of(agent)
        everything = [psutil.Process(agent.process.pid), *psutil.Process(agent.process.pid).children(recursive=True)]
        sockets = [socket for process in everything for socket in process.net_connections("inet")]
        listening = {(s.laddr.ip, s.laddr.port) for s in sockets if s.status == psutil.CONN_LISTEN}
        engine = engine_named(agent.spec.engine)
        assert engine and ("127.0.0.1", port) in listening
        if engine.inner_ports:
            assert {ip for ip, _ in listening} <= {"127.0.0.1", "::1"}, listening
        else:
            assert listening == {("127.0.0.1", port)}

    @pytest.mark.threat("M9")
    def test_its_environment_and_arguments_hold_no_secret(self, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
        agent.ready()
        for name, value in agent.extra.items():
            monkeypatch.setenv(name, value)
        for process in (psutil.Process(agent.process.pid), agent.engine()):
            assert not any(SECRET in word for word in process.cmdline())
            assert not any(SECRET in value for value in process.environ().values())
        engine = engine_named(agent.spec.engine)
        assert engine and agent.engine().environ() == engine.environment(agent.spec)

    def test_the_status_tells_its_metrics(self, agent: Agent) -> None:
        now = self._metrics(agent, port_of(agent))
        engine = engine_named(agent.spec.engine)
        assert engine
        offered = engine.capabilities().metrics  # the agent adds what it measures itself

        def told() -> bool:
            status = agent.status()
            return bool(status and status.metrics) and all(
                getattr(status.metrics, name) == getattr(now, name) for name in offered
            )

        eventually(told, "the status file tells the same")

    def test_nothing_of_a_request_gets_into_a_file(self, agent: Agent) -> None:
        port = port_of(agent)
        chat = "/v1/chat/completions"
        user = [{"role": "user", "content": CANARY}]
        call(port, "POST", chat, {"messages": user, "max_tokens": 4})
        call(port, "POST", "/v1/completions", raw=b'{"prompt": "' + CANARY.encode() + b'" oops')
        call(port, "POST", "/v1/completions", {"prompt": CANARY, "max_tokens": 1, "grammar": f"root ::= {CANARY} (("})
        call(port, "POST", chat, {"messages": user, "response_format": {"type": CANARY}, "max_tokens": 1})
        call(port, "POST", chat, {"messages": [{"role": CANARY, "content": CANARY}], "max_tokens": 1})
        schema = {"type": "json_schema", "json_schema": {"schema": {"type": "string", "pattern": f"^({CANARY}"}}}
        call(port, "POST", chat, {"messages": user, "response_format": schema, "max_tokens": 1})
        call(port, "POST", f"/{CANARY}", {"x": CANARY})
        # Two more beats of the status: whatever the engine printed has been judged by then.
        beat = agent.ready().updated_at
        eventually(lambda: agent.ready().updated_at > beat + 1.5, "the agent goes on")
        written = [file for file in Path(agent.spec.state_dir).rglob("*") if file.is_file()]
        if agent.spec.engine in TALKATIVE:
            assert any("withheld" in line for line in log_of(agent.spec))
        for file in written:
            assert CANARY.encode() not in file.read_bytes(), f"{file.name} holds text of a request"
            # Names of the model's files, which are as they were before.
            known = file.is_symlink() or file.stat().st_nlink > 1
            assert known or file.stat().st_mode & 0o077 == 0

    def test_phases_are_timed(self, agent: Agent) -> None:
        phases = agent.ready().phases
        assert [timing.phase for timing in phases] == [Phase.VERIFYING, Phase.LOADING, Phase.WARMING, Phase.READY]
        ended: list[PhaseTiming] = list(phases[:-1])
        assert all(timing.ended_at is not None and timing.ended_at >= timing.started_at for timing in ended)
        assert phases[-1].ended_at is None
        assert phases[0].done == phases[0].total == sum(file.size for file in agent.spec.files)

    @staticmethod
    def _metrics(agent: Agent, port: int) -> EngineMetrics:
        engine = engine_named(agent.spec.engine)
        assert engine and engine.metrics_path
        status, raw, _ = call(port, "GET", engine.metrics_path)
        assert status == 200
        return engine.metrics(raw.decode())
