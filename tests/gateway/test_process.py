"""The gateway as its operator meets it: settings, start, stop, metrics, logs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis

from berth.host.child import free_port
from berth.host.valkey import Valkey
from berth_gateway.config import SETTINGS, Config, ConfigError
from berth_gateway.contract import GATEWAYS_KEY, GatewayReport
from tests.gateway.harness import (
    HEAD,
    NAME,
    PATIENCE,
    Engine,
    GatewayProcess,
    Ingester,
    Seen,
    Talk,
    World,
    chat,
    chat_events,
    get,
    post,
    talk,
    wait_for,
)  # fmt: skip

GIVEN = {
    "BERTH_GATEWAY_DIR": "/tmp/x",
    "REDIS_URL": "redis://127.0.0.1:1/0",
    "BERTH_SNAPSHOT_PUBLIC_KEY_FILE": "/tmp/x",
    "BERTH_USAGE_KEY_FILE": "/tmp/x",
}


def test_defaults_are_good_and_local() -> None:
    config = Config.from_environ(GIVEN)
    assert (config.bind, config.port, config.max_body, config.snapshot_max_age) == ("127.0.0.1", 8080, 32 << 20, 86400)
    assert config.metrics_on_main_port
    assert all(setting.help for setting in SETTINGS)
    assert len({setting.name for setting in SETTINGS}) == len(SETTINGS)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, "") for name in GIVEN),
        ("BERTH_GATEWAY_PORT", "70000"),
        ("BERTH_GATEWAY_PORT", "+80"),
        ("BERTH_GATEWAY_PORT", "CANARY"),
        ("BERTH_GATEWAY_BIND", "0.0.0.0"),
        ("BERTH_GATEWAY_BIND", "::"),
        ("BERTH_GATEWAY_BIND", "CANARY"),
        ("BERTH_GATEWAY_NAME", "a b"),
        ("BERTH_BEHIND_TLS_PROXY", "yes"),
        ("BERTH_SNAPSHOT_MAX_AGE_SECONDS", "-1"),
        ("BERTH_SNAPSHOT_MAX_AGE_SECONDS", "nan"),
        ("BERTH_MAX_BODY_BYTES", "0"),
        ("REDIS_URL", "http://:CANARY@x"),
    ],
)
def test_a_bad_setting_is_named_in_one_sentence_without_its_value(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Config.from_environ({**GIVEN, name: value})
    assert name in str(refused.value)
    assert "CANARY" not in str(refused.value)


def test_other_addresses_demand_a_tls_proxy_by_name() -> None:
    config = Config.from_environ({**GIVEN, "BERTH_GATEWAY_BIND": "0.0.0.0", "BERTH_BEHIND_TLS_PROXY": "1"})
    assert config.bind == "0.0.0.0"
    assert not config.metrics_on_main_port, "behind a proxy every peer is loopback"


def run(environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "berth_gateway"], env=environ, capture_output=True, text=True, timeout=30
    )


def test_what_stops_the_start_is_said_in_one_sentence(tmp_path: Path) -> None:
    good = GatewayProcess(tmp_path, World(), "redis://127.0.0.1:1/0").environ
    taken = socket.create_server(("127.0.0.1", 0))
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"BERTH_GATEWAY_PORT": str(taken.getsockname()[1])}, "cannot listen on 127.0.0.1"),
        ({"BERTH_SNAPSHOT_PUBLIC_KEY_FILE": "/nowhere"}, "cannot be read"),
        ({"BERTH_SNAPSHOT_PUBLIC_KEY_FILE": good["BERTH_USAGE_KEY_FILE"] + "x"}, "cannot be read"),
        ({"BERTH_USAGE_KEY_FILE": __file__}, "must hold 32 bytes"),
        ({"BERTH_GATEWAY_DIR": "/proc/nowhere"}, "cannot be used"),
        ({"BERTH_GATEWAY_BIND": "0.0.0.0"}, "BERTH_BEHIND_TLS_PROXY"),
    ]
    for change, words in wrong:
        done = run({**good, **change})
        assert done.returncode == 2, change
        assert words in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
        assert done.stderr.startswith("berth_gateway: ")
    taken.close()


def test_two_processes_do_not_share_a_spool(gateway: GatewayProcess) -> None:
    done = run({**gateway.environ, "BERTH_GATEWAY_PORT": str(free_port())})
    assert done.returncode == 2
    assert "Another gateway process" in done.stderr


def test_a_report_is_written_and_taken_back(gateway: GatewayProcess, world: World, valkey: redis.Redis) -> None:
    import msgspec

    def report() -> GatewayReport | None:
        packed = valkey.hget(GATEWAYS_KEY, NAME)
        return msgspec.msgpack.decode(packed, type=GatewayReport) if packed else None

    def applied(version: int) -> GatewayReport | None:
        """The report once it tells of that version: the first may be written before the snapshot has been read."""
        found = report()
        return found if found is not None and found.version == version else None

    first = wait_for(lambda: applied(1), "a report")
    assert (first.gateway, first.epoch) == (NAME, world.epoch)
    world.next().publish(valkey)
    wait_for(lambda: applied(2), "the next version")
    assert gateway.stop() == 0
    assert report() is None


def test_sigterm_finishes_what_runs_and_exits_cleanly(
    gateway: GatewayProcess, world: World, engine: Engine, valkey: redis.Redis
) -> None:
    import threading

    release = threading.Event()

    def slow(seen: Seen, talk_: Talk) -> None:
        events = chat_events(["a", "b"])
        talk_.send(HEAD + b"".join(b"%x\r\n%b\r\n" % (len(e), e) for e in events[:2]))
        release.wait(PATIENCE)
        talk_.send(b"".join(b"%x\r\n%b\r\n" % (len(e), e) for e in events[2:]) + b"0\r\n\r\n")

    engine.script = slow
    got: list[Any] = []
    caller = threading.Thread(
        target=lambda: got.append(post(gateway.port, "/v1/chat/completions", chat(stream=True), world.token))
    )
    caller.start()
    wait_for(lambda: engine.seen, "the request")
    assert gateway.process is not None
    gateway.process.terminate()
    wait_for(lambda: _refuses(gateway.port), "the port to close")
    release.set()
    caller.join(PATIENCE)
    assert got[0].events[-1] == "[DONE]"
    assert gateway.stop() == 0
    assert [e.completion_tokens for e in Ingester(valkey).until(1)] == [2]


def _refuses(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return True
    return False


def test_the_drain_is_bounded_and_what_is_cut_is_told_and_metered(
    tmp_path: Path, world: World, engine: Engine, valkey: redis.Redis, valkey_server: Valkey
) -> None:
    def stuck(seen: Seen, talk_: Talk) -> None:
        talk_.send(HEAD + b"".join(b"%x\r\n%b\r\n" % (len(e), e) for e in chat_events(["a", "b"])[:2]))
        talk_.gone()

    engine.script = stuck
    gateway = GatewayProcess(tmp_path, world, valkey_server.url, BERTH_GATEWAY_DRAIN_SECONDS="0.3").start()
    import threading

    got: list[Any] = []
    caller = threading.Thread(
        target=lambda: got.append(post(gateway.port, "/v1/chat/completions", chat(stream=True), world.token))
    )
    caller.start()
    wait_for(lambda: engine.seen, "the request")
    assert gateway.stop() == 0
    caller.join(20)
    assert got[0].events[-1]["error"]["code"] == "service_unavailable"
    (event,) = Ingester(valkey).until(1)
    assert (event.outcome, event.completion_tokens) == ("interrupted", 1)


def test_metrics_have_ids_and_enums_as_labels_only(gateway: GatewayProcess, world: World) -> None:
    post(gateway.port, "/v1/chat/completions", chat(), world.token)
    post(gateway.port, "/v1/chat/completions", chat("acme/CANARY"), world.token)
    text = get(gateway.port, "/metrics").body.decode()
    deployment = world.routes[0].deployment_id
    assert (
        f'berth_gateway_requests_total{{deployment="{deployment}",endpoint="chat/completions",outcome="ok"}} 1' in text
    )
    assert f'berth_gateway_tokens_total{{deployment="{deployment}",kind="completion"}} 5' in text
    assert 'berth_gateway_refused_total{code="model_not_found"} 1' in text
    assert "berth_gateway_snapshot_version 1" in text
    assert f'berth_gateway_first_token_seconds_count{{deployment="{deployment}"}} 1' in text
    assert "CANARY" not in text
    assert "acme" not in text


def test_a_port_for_metrics_shows_metrics_and_nothing_else(tmp_path: Path, world: World, valkey_server: Valkey) -> None:
    admin = free_port()
    gateway = GatewayProcess(tmp_path, world, valkey_server.url, BERTH_GATEWAY_ADMIN_PORT=str(admin)).start()
    try:
        assert get(admin, "/metrics").status == 200
        assert get(admin, "/v1/models", world.token).status == 404
        assert get(gateway.port, "/metrics").status == 404
        assert get(gateway.port, "/v1/models", world.token).status == 200
    finally:
        gateway.kill()


def test_logs_tell_ids_sizes_and_outcomes_but_no_content(gateway: GatewayProcess, world: World, engine: Engine) -> None:
    canary = "BC-CANARY-TEXT"
    body = chat(stream=True)
    body["messages"] = [{"role": "user", "content": canary}]
    answer = post(
        gateway.port,
        f"/v1/chat/completions?{canary}={canary}",
        body,
        world.token,
        X_Request_ID="my-own",
        X_Thing=canary,
    )
    post(gateway.port, f"/v1/{canary}", {canary: canary}, world.token)
    post(gateway.port, "/v1/chat/completions", {**body, canary: canary}, world.token)
    post(gateway.port, "/v1/chat/completions", ('{"model":"' + canary).encode(), world.token)
    talk(gateway.port, b"BROKEN " + canary.encode() + b"\n\n")
    gateway.stop()
    text = gateway.log_file.read_text()
    assert canary not in text
    assert world.token not in text
    (line,) = [entry for entry in gateway.log() if entry["event"] == "request"]
    assert line["request_id"] == answer.headers["x-request-id"]
    assert (line["status"], line["outcome"], line["completion_tokens"]) == (200, "ok", 5)
    assert {entry["code"] for entry in gateway.log() if entry["event"] == "refused"} - {"service_unavailable"} == {
        "unknown_url", "unknown_parameter", "invalid_json", "bad_request",
    }  # fmt: skip
    for file in (gateway.folder / "gateway").iterdir():
        assert canary.encode() not in file.read_bytes()
        assert world.token.encode() not in file.read_bytes()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")
def test_its_memory_is_closed_to_others(gateway: GatewayProcess) -> None:
    assert gateway.process is not None
    limits = Path(f"/proc/{gateway.process.pid}/limits").read_text()
    (cores,) = [line for line in limits.splitlines() if line.startswith("Max core file size")]
    assert cores.split()[4:6] == ["0", "0"]
    assert Path(f"/proc/{gateway.process.pid}/mem").stat().st_uid == 0, "not dumpable: /proc belongs to root"


def test_several_processes_share_a_port(tmp_path: Path, world: World, valkey_server: Valkey, engine: Engine) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = GatewayProcess(tmp_path / "a", world, valkey_server.url, BERTH_GATEWAY_REUSE_PORT="1").start()
    second = GatewayProcess(
        tmp_path / "b", world, valkey_server.url, BERTH_GATEWAY_REUSE_PORT="1", BERTH_GATEWAY_NAME="second"
    )
    second.port = first.port
    second.environ["BERTH_GATEWAY_PORT"] = str(first.port)
    try:
        second.start()
        wait_for(lambda: any(e["event"] == "listening" for e in second.log()), "the second to listen")
        first.kill()
        assert get(second.port, "/v1/models", world.token).status == 200
    finally:
        first.kill()
        second.kill()


def test_json_lines_only(gateway: GatewayProcess) -> None:
    gateway.stop()
    assert all(json.loads(line)["event"] for line in gateway.log_file.read_text().splitlines())
    assert os.path.getsize(gateway.log_file) > 0  # noqa: PTH202
