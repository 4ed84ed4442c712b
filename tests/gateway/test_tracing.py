"""Traces: what a collector gets, what an engine is told, and that nothing of a request's content is in it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis
from msgspec import Struct

from berth.host.valkey import Valkey
from berth_gateway import trace
from berth_gateway.config import Config, ConfigError, Otlp
from berth_gateway.trace import export_of, read_traceparent
from tests.gateway.core import Core, answers, whole_answer
from tests.gateway.harness import Engine, GatewayProcess, World, get, post, raw_post
from tests.runtime.agents import eventually

PROMPT, ANSWER = "BC-PROMPTCANARY7Q2", "BC-ANSWERCANARYX9Z"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


# --- OTLP's JSON, strictly: https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding


class _Strict(Struct, forbid_unknown_fields=True, rename="camel"):
    pass


class Value(_Strict):
    string_value: str | None = None
    int_value: str | None = None  # 64-bit numbers are strings in protobuf's JSON
    bool_value: bool | None = None


class Attribute(_Strict):
    key: str
    value: Value


class Status(_Strict):
    code: int


class Span(_Strict):
    trace_id: str
    span_id: str
    name: str
    kind: int
    start_time_unix_nano: str
    end_time_unix_nano: str
    parent_span_id: str = ""
    attributes: list[Attribute] = []
    status: Status | None = None

    @property
    def values(self) -> dict[str, Any]:
        return {
            each.key: next(iter(filter(None, msgspec.structs.astuple(each.value))), None) for each in self.attributes
        }


class Scope(_Strict):
    name: str


class ScopeSpans(_Strict):
    scope: Scope
    spans: list[Span]


class Resource(_Strict):
    attributes: list[Attribute]


class ResourceSpans(_Strict):
    resource: Resource
    scope_spans: list[ScopeSpans]


class Export(_Strict):
    resource_spans: list[ResourceSpans]


def read(data: bytes) -> list[Span]:
    """Every span of an export, checked as a collector would."""
    export = msgspec.json.decode(data, type=Export)
    spans = [span for each in export.resource_spans for scope in each.scope_spans for span in scope.spans]
    for span in spans:
        assert len(bytes.fromhex(span.trace_id)) == 16 and len(bytes.fromhex(span.span_id)) == 8
        assert span.parent_span_id == "" or len(bytes.fromhex(span.parent_span_id)) == 8
        assert 0 < int(span.start_time_unix_nano) <= int(span.end_time_unix_nano) < 2**63
        assert 1 <= span.kind <= 5
    assert len({span.span_id for span in spans}) == len(spans)
    return spans


# --- the core


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Core]:
    made = Core(tmp_path, BERTH_OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")
    yield made
    made.close()


def body(**fields: Any) -> bytes:
    return json.dumps(
        {"model": "acme/model", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 9, **fields}
    ).encode()


def exported(core: Core) -> tuple[bytes, list[Span]]:
    tracing = core.gateway.tracing
    assert tracing is not None
    data = msgspec.json.encode(export_of("g", list(tracing.waiting)))
    tracing.waiting.clear()
    return data, read(data)


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"n": 2}])
def test_a_request_is_a_span_with_its_parts(core: Core, fields: dict[str, Any]) -> None:
    client, wire = core.client()
    client.received(raw_post("/v1/chat/completions", body(**fields), core.world.token, f"traceparent: {PARENT}\r\n"))
    core.clock += 1
    for engine in core.dialled:
        engine.send(whole_answer([ANSWER, "b"])[:900])
    core.clock += 2
    for engine in core.dialled:
        engine.send(whole_answer([ANSWER, "b"])[900:])
    (answer,) = answers(wire.out)
    assert answer.status == 200
    data, spans = exported(core)
    request, *parts = spans
    assert [span.name for span in parts] == ["admission", "queue", "upstream first token", "stream"]
    assert (request.name, request.kind) == ("POST /v1/chat/completions", trace.SERVER)
    assert {span.trace_id for span in spans} == {PARENT[3:35]}
    assert request.parent_span_id == PARENT[36:52]
    assert {span.parent_span_id for span in parts} == {request.span_id}
    lasted = [(int(span.end_time_unix_nano) - int(span.start_time_unix_nano)) / 1e9 for span in spans]
    assert lasted == pytest.approx([3, 0, 0, 1, 2], abs=1e-3)
    (event,) = core.events
    assert request.values["berth.event_id"] == event.event_id
    assert request.values["gen_ai.usage.output_tokens"] == str(event.completion_tokens)
    assert request.values["berth.request_id"] == answer.headers["x-request-id"]
    asked = [engine.header("traceparent") for engine in core.asked]
    assert asked == [f"00-{PARENT[3:35]}-{parts[2].span_id}-01"] * len(core.dialled)
    for canary in (PROMPT, ANSWER, core.world.token, "acme/model"):
        assert canary.encode() not in data


def test_without_a_caller_s_trace_it_begins_one(core: Core) -> None:
    for header in ("", "traceparent: nonsense\r\n", f"traceparent: {PARENT[:-2]}00\r\n"):
        client, _ = core.client()
        client.received(raw_post("/v1/chat/completions", body(), core.world.token, header))
        core.engine.send(whole_answer(["a"]))
    first, second = (span for span in exported(core)[1] if span.name.startswith("POST"))
    assert first.parent_span_id == second.parent_span_id == ""
    assert first.trace_id != second.trace_id != PARENT[3:35]


def test_what_fails_is_an_error_and_what_never_came_to_a_replica_has_no_such_part(core: Core) -> None:
    core.ask(body())
    core.engine.upstream.lost()
    spans = exported(core)[1]
    assert spans[0].status == Status(2) and spans[0].values["berth.outcome"] == "upstream_error"
    assert [span.name for span in spans[1:]] == ["admission", "queue", "upstream first token"]
    assert spans[0].values["http.response.status_code"] == "503"


def test_off_it_costs_nothing(tmp_path: Path) -> None:
    core = Core(tmp_path)
    client, _ = core.client()
    client.received(raw_post("/v1/chat/completions", body(), core.world.token, f"traceparent: {PARENT}\r\n"))
    core.engine.send(whole_answer(["a"]))
    assert core.gateway.tracing is None
    assert core.asked[0].header("traceparent") is None
    core.close()


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (PARENT, ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", True)),
        (PARENT[:-2] + "02", ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", False)),
        (PARENT.upper(), None),
        (PARENT + "-more", None),
        ("cc" + PARENT[2:] + "-more", ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", True)),
        ("ff" + PARENT[2:], None),
        ("00-" + "0" * 32 + PARENT[35:], None),
        (PARENT[:36] + "0" * 16 + "-01", None),
        ("", None),
    ],
)
def test_traceparents_as_w3c_says_them(value: str, found: Any) -> None:
    assert read_traceparent(value.encode()) == found


def test_a_share_of_requests(core: Core) -> None:
    assert trace.begin(None, 0) is None
    assert trace.begin(PARENT.encode(), 0) is not None  # the caller has decided
    assert 50 < sum(trace.begin(None, 0.5) is not None for _ in range(400)) < 350


def test_settings() -> None:
    given = {
        "BERTH_GATEWAY_DIR": "/x",
        "REDIS_URL": "redis://h/0",
        "BERTH_SNAPSHOT_PUBLIC_KEY_FILE": "-",
        "BERTH_USAGE_KEY_FILE": "-",
    }
    assert Config.from_environ(given).otlp is None
    standard = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318/", "OTEL_EXPORTER_OTLP_HEADERS": "api-key=a%20b, x=y"}
    assert Config.from_environ(given | standard).otlp == Otlp(
        "http://c:4318/v1/traces", (("api-key", "a b"), ("x", "y")), 1
    )
    ours = standard | {"BERTH_OTEL_EXPORTER_OTLP_ENDPOINT": "https://d", "BERTH_OTEL_SAMPLE": "0.1"}
    found = Config.from_environ(given | ours).otlp
    assert found is not None and (found.url, found.sample) == ("https://d/v1/traces", 0.1)
    for wrong in (
        {"BERTH_OTEL_EXPORTER_OTLP_ENDPOINT": "c:4318"},
        {"BERTH_OTEL_SAMPLE": "2"},
        {"BERTH_OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "BERTH_OTEL_EXPORTER_OTLP_HEADERS": "nothing"},
    ):
        with pytest.raises(ConfigError):
            Config.from_environ(given | wrong)


# --- the process


class Collector:
    """Takes exports, or answers 503."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["content-length"]))
                outer.bodies.append(data)
                outer.headers.append(
                    {name.lower(): value for name, value in self.headers.items()} | {":path": self.path}
                )
                self.send_response(outer.status)
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *args: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def test_a_collector_gets_them_and_its_absence_harms_nobody(
    tmp_path: Path, engine: Engine, world: World, valkey: redis.Redis, valkey_server: Valkey
) -> None:
    collector = Collector()
    settings = {"BERTH_OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "BERTH_OTEL_EXPORTER_OTLP_HEADERS": "x-team=berth"}
    process = GatewayProcess(tmp_path, world, valkey_server.url, **settings).start()
    try:
        asked = json.loads(body())
        assert post(process.port, "/v1/chat/completions", asked, world.token).status == 200
        eventually(lambda: collector.bodies, "an export")
        assert read(collector.bodies[0])[0].name == "POST /v1/chat/completions"
        assert collector.headers[0][":path"] == "/v1/traces"
        assert (collector.headers[0]["content-type"], collector.headers[0]["x-team"]) == ("application/json", "berth")
        assert PROMPT.encode() not in b"".join(collector.bodies)
        collector.status = 503
        assert post(process.port, "/v1/chat/completions", asked, world.token).status == 200
        counted = 'berth_gateway_traces_total{outcome="failed"} 1'
        eventually(lambda: counted in get(process.port, "/metrics").body.decode(), "a failed export")
        collector.status = 200
        assert post(process.port, "/v1/chat/completions", asked, world.token).status == 200
        process.stop()  # sends what still waits
        assert len(read(collector.bodies[-1])) == 5
    finally:
        process.kill()
        collector.close()
    process.check_log()
