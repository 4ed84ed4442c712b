from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from berth.host.child import free_port
from berth.host.errors import HostError
from berth.host.valkey import Valkey
from berth_gateway import contract

PASSWORD = 'quo"te\\d @:/'


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Valkey]:
    server = Valkey(tmp_path / "val key", free_port(), PASSWORD, gateway_password="another one")
    server.start(tmp_path / "valkey.log")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    """One server for the tests that leave nothing in it."""
    server = Valkey(tmp_path_factory.mktemp("shared"), free_port(), PASSWORD, gateway_password="g", durable=False)
    server.start()
    yield server
    server.stop()


def test_data_outlives_a_killed_server(server: Valkey, tmp_path: Path) -> None:
    assert server.process is not None
    with redis.Redis.from_url(server.url) as client:
        client.set("ship", "Rurik")
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()
    server.start(tmp_path / "valkey.log")
    with redis.Redis.from_url(server.url) as client:
        assert client.get("ship") == b"Rurik"


@pytest.mark.threat("D2")
def test_password_is_demanded_and_not_on_the_command_line(server: Valkey) -> None:
    with pytest.raises(redis.AuthenticationError), redis.Redis(port=server.port, retry=Retry(NoBackoff(), 0)) as client:
        client.ping()
    assert server.process is not None
    assert not any(PASSWORD in part for part in psutil.Process(server.process.pid).cmdline())
    assert stat.S_IMODE((server.folder / "valkey.conf").stat().st_mode) == 0o600
    listening = [c.laddr.ip for c in psutil.Process(server.process.pid).net_connections() if c.status == "LISTEN"]
    assert listening == ["127.0.0.1"]


REFUSED = "(?i)no permissions|command not allowed"
WHOLE_SERVER = [
    ("CONFIG", "GET", "*"),
    ("CONFIG", "SET", "requirepass", ""),
    ("MODULE", "LIST"),
    ("FUNCTION", "LIST"),
    ("DEBUG", "JMAP"),
    ("ACL", "LIST"),
    ("MONITOR",),
    ("REPLICAOF", "127.0.0.1", "1"),
    ("SHUTDOWN", "NOSAVE"),
]
NOT_A_GATEWAYS = [
    *WHOLE_SERVER,
    ("GET", "anything"),
    ("HGETALL", "berth:cache:1:x"),
    ("SCRIPT", "FLUSH"),
    ("HSET", contract.SNAPSHOT_KEY, "signed", "forged"),
    ("HDEL", contract.SNAPSHOT_KEY, "signed"),
    ("HSET", contract.USAGE_POSITION_KEY, "local", "9"),
    ("HGET", "berth:cache:1:x", "x"),
    ("XADD", "berth:celery:default", "*", "task", "mine"),
    ("XREAD", "STREAMS", contract.USAGE_STREAM, "0"),
    ("XTRIM", contract.USAGE_STREAM, "MAXLEN", "0"),
    ("DEL", contract.USAGE_STREAM),
    ("PUBLISH", contract.SNAPSHOT_CHANNEL, "9"),
    ("SUBSCRIBE", "berth:other"),
    ("EVAL", "return 1", "0"),
    ("KEYS", "*"),
    ("SCAN", "0"),
    ("FLUSHALL",),
    ("CLIENT", "LIST"),
]


@pytest.mark.threat("D2")
@pytest.mark.parametrize("command", WHOLE_SERVER, ids=" ".join)
def test_the_control_plane_cannot_change_the_server(shared: Valkey, command: tuple[str, ...]) -> None:
    with redis.Redis.from_url(shared.url) as client, pytest.raises(redis.ResponseError, match=REFUSED):
        client.execute_command(*command)


@pytest.mark.threat("D2")
@pytest.mark.parametrize("command", NOT_A_GATEWAYS, ids=" ".join)
def test_the_gateway_cannot_do_what_is_not_its_own(shared: Valkey, command: tuple[str, ...]) -> None:
    with redis.Redis.from_url(shared.gateway_url) as client, pytest.raises(redis.ResponseError, match=REFUSED):
        client.execute_command(*command)


@pytest.mark.threat("D2")
def test_the_gateway_can_do_its_own(server: Valkey) -> None:
    with redis.Redis.from_url(server.url) as control, redis.Redis.from_url(server.gateway_url) as client:
        control.hset(contract.SNAPSHOT_KEY, mapping={"epoch": "e", "version": "1", "signed": "s"})
        assert client.hmget(contract.SNAPSHOT_KEY, ["epoch", "version"]) == [b"e", b"1"]
        client.hset(contract.GATEWAYS_KEY, "local", "report")
        client.hdel(contract.GATEWAYS_KEY, "local")
        entry = client.xadd(contract.USAGE_STREAM, {"batch": "x"})
        assert client.xrange(contract.USAGE_STREAM, entry, entry)
        assert client.hget(contract.USAGE_POSITION_KEY, "local") is None
        script = client.script_load("return redis.call('HINCRBY', KEYS[1], 'used', ARGV[1])")
        assert client.evalsha(script, 1, contract.LIMIT_PREFIX + "rpm:key", 3) == 3
        assert client.evalsha(script, 1, contract.SLOTS_PREFIX + "name", 3) == 3
        with pytest.raises(redis.ResponseError, match=REFUSED):
            client.evalsha(script, 1, contract.SNAPSHOT_KEY, 1)  # a script may not do what its caller may not
        with client.pubsub() as channel:
            channel.subscribe(contract.SNAPSHOT_CHANNEL, contract.SLOTS_CHANNEL)
            assert channel.get_message(timeout=5) is not None
        tell = client.script_load("return redis.call('PUBLISH', ARGV[1], 'name gateway')")
        client.evalsha(tell, 0, contract.SLOTS_CHANNEL)
        with pytest.raises(redis.ResponseError, match=REFUSED):
            client.evalsha(tell, 0, contract.SNAPSHOT_CHANNEL)


def test_another_server_on_the_port_is_not_taken_for_ours(
    server: Valkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("berth.host.valkey.LOCK_PATIENCE", 0.5)
    other = Valkey(tmp_path / "other", server.port, "other")
    with pytest.raises(HostError, match=r"ended with code 1 while starting.*other\.log"):
        other.start(tmp_path / "other.log")
    other.stop()
