"""What every engine must do beside an agent, whatever it is. Each test gets a replica that is READY."""

from __future__ import annotations

import http.client
import json
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from berth_runtime.engines.catalogue import engine_named
from berth_runtime.spec import EngineMetrics, Phase, PhaseTiming
from tests.runtime.agents import SECRET, Agent, call, eventually, log_of

CANARY = "BC-QZ7WXK4MTR2HVD-canary"
# Control paths that an engine has or had; with the secret they must do nothing, without it they must be closed.
CLOSED = (
    ("GET", "/slots"),
    ("POST", "/props"),
    ("POST", "/slots/0?action=save"),
    ("POST", "/slots/0?action=restore"),
    ("GET", "/"),
    ("GET", "/index.html"),
    ("GET", "/tools"),
    ("POST", "/tools"),
    ("GET", "/cors-proxy"),
    ("POST", "/models/load"),
    ("POST", "/models/unload"),
    ("POST", "/collective_rpc"),
    ("POST", "/update_weights"),
    ("POST", "/pause"),
    ("POST", "/invocations"),
    ("POST", "/v1/load_lora_adapter"),
    ("POST", "/api/create"),
    ("POST", "/api/push"),
)
GUARDED = (
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("GET", "/metrics"),
    ("GET", "/props"),
    ("POST", "/tokenize"),
    ("GET", "/v1/models"),
)


def port_of(agent: Agent) -> int:
    port = agent.ready().port
    assert port
    return port


def events(raw: bytes) -> list[Any]:
    lines = [line[6:] for line in raw.decode().split("\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def open_stream(port: int, tokens: int) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    """A generation that is under way: its first bytes have come."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = {"prompt": "Once", "max_tokens": tokens, "stream": True, "ignore_eos": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Authorization": f"Bearer {SECRET}"})
    answer = connection.getresponse()
    assert answer.status == 200
    assert answer.read(6) == b"data: "
    return connection, answer


class EngineContract:
    """Subclasses give the fixture `agent` (an Agent that gets READY) and may say what their engine lacks."""

    def test_chat(self, agent: Agent) -> None:
        body = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8}
        status, raw, _ = call(port_of(agent), "POST", "/v1/chat/completions", body)
        answer = json.loads(raw)
        assert status == 200
        assert answer["choices"][0]["message"]["role"] == "assistant"
        assert answer["choices"][0]["message"]["content"]
        assert 1 <= answer["usage"]["completion_tokens"] <= 8
        assert answer["usage"]["prompt_tokens"] > 1

    def test_completion(self, agent: Agent) -> None:
        body = {"prompt": "The capital of France is", "max_tokens": 1, "temperature": 0}
        status, raw, _ = call(port_of(agent), "POST", "/v1/completions", body)
        assert status == 200
        assert json.loads(raw)["choices"][0]["text"] == " Paris"

    def test_stream_ends_with_usage(self, agent: Agent) -> None:
        body = {
            "messages": [{"role": "user", "content": "Count."}],
            "max_tokens": 6,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        status, raw, headers = call(port_of(agent), "POST", "/v1/chat/completions", body)
        chunks = events(raw)
        assert status == 200
        assert headers["content-type"].startswith("text/event-stream")
        assert "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])
        usages = [c["usage"] for c in chunks if c.get("usage")]
        assert [u["completion_tokens"] for u in usages] == [usages[-1]["completion_tokens"]]
        assert 1 <= usages[-1]["completion_tokens"] <= 6

    @pytest.mark.threat("E1")
    @pytest.mark.parametrize("secret", [None, "wrong", SECRET[:-1], ""])
    @pytest.mark.parametrize(("method", "path"), GUARDED)
    def test_without_the_secret_nothing_is_served(
        self, agent: Agent, method: str, path: str, secret: str | None
    ) -> None:
        status, raw, _ = call(
            port_of(agent), method, path, {"prompt": CANARY} if method == "POST" else None, secret=secret
        )
        assert status == 401
        assert SECRET.encode() not in raw

    @pytest.mark.threat("E1")
    @pytest.mark.parametrize(("method", "path"), CLOSED)
    def test_control_paths_are_off(self, agent: Agent, method: str, path: str) -> None:
        status, _, _ = call(port_of(agent), method, path, {} if method == "POST" else None)
        assert status in (403, 404, 405, 501)

    @pytest.mark.threat("E1")
    def test_effective_settings_are_those_of_the_spec(self, agent: Agent) -> None:
        engine = engine_named(agent.spec.engine)
        assert engine
        if engine.settings_path is None:
            pytest.skip("this engine does not say")
        _, raw, _ = call(port_of(agent), "GET", engine.settings_path)
        assert engine.difference(agent.spec, raw) is None

    @pytest.mark.threat("G7")
    @pytest.mark.parametrize("method", ["POST", "OPTIONS"])
    def test_no_other_origin_is_let_in(self, agent: Agent, method: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port_of(agent), timeout=60)
        headers = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
        connection.request(method, "/v1/completions", b"{}", headers)
        answer = connection.getresponse()
        assert not answer.getheader("Access-Control-Allow-Origin")
        assert answer.getheader("Access-Control-Allow-Credentials") in (None, "false")
        connection.close()

    @pytest.mark.threat("E2")
    def test_it_listens_on_the_declared_port_only(self, agent: Agent) -> None:
        port = port_of(agent)
        everything = [psutil.Process(agent.process.pid), *psutil.Process(agent.process.pid).children(recursive=True)]
        sockets = [socket for process in everything for socket in process.net_connections("inet")]
        assert {(s.laddr.ip, s.laddr.port) for s in sockets if s.status == psutil.CONN_LISTEN} == {("127.0.0.1", port)}

    @pytest.mark.threat("M9")
    def test_its_environment_and_arguments_hold_no_secret(self, agent: Agent) -> None:
        agent.ready()
        for process in (psutil.Process(agent.process.pid), agent.engine()):
            assert not any(SECRET in word for word in process.cmdline())
            assert not any(SECRET in value for value in process.environ().values())
        assert set(agent.engine().environ()) <= {"PATH", "LANG", "HOME"}

    def test_a_client_that_leaves_stops_its_generation(self, agent: Agent) -> None:
        port = port_of(agent)
        connection, answer = open_stream(port, tokens=400)
        assert self._metrics(agent, port).running == 1
        answer.close()
        connection.close()
        eventually(lambda: self._metrics(agent, port).running == 0, "the engine is idle")
        produced = self._metrics(agent, port).completion_tokens
        time.sleep(0.3)
        assert self._metrics(agent, port).completion_tokens == produced

    def test_metrics_have_our_names(self, agent: Agent) -> None:
        port = port_of(agent)
        before = self._metrics(agent, port)
        call(port, "POST", "/v1/completions", {"prompt": "One two three", "max_tokens": 3, "ignore_eos": True})
        after = self._metrics(agent, port)
        assert (after.running, after.queued) == (0, 0)
        assert before.completion_tokens is not None and after.completion_tokens == before.completion_tokens + 3

        def told() -> bool:
            status = agent.status()
            return status is not None and status.metrics == after

        eventually(told, "the status file tells the same")

    def test_more_clients_than_slots_are_queued(self, agent: Agent) -> None:
        port = port_of(agent)
        streams = [open_stream(port, tokens=60) for _ in range(agent.spec.slots)]
        waiting = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        body = json.dumps({"prompt": "Two", "max_tokens": 2})
        waiting.request("POST", "/v1/completions", body, {"Authorization": f"Bearer {SECRET}"})
        assert waiting.getresponse().status == 200  # it had its turn
        for connection, answer in streams:
            assert answer.read().endswith(b"[DONE]\n\n")
            connection.close()
        waiting.close()

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
        assert any("withheld" in line for line in log_of(agent.spec))
        for file in written:
            assert CANARY.encode() not in file.read_bytes(), f"{file.name} holds text of a request"
            assert file.stat().st_mode & 0o077 == 0

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
