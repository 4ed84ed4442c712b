from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import redis

from berth.host.child import free_port
from berth.host.errors import HostError
from berth.host.valkey import Valkey

PASSWORD = 'quo"te\\d @:/'


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Valkey]:
    server = Valkey(tmp_path / "val key", free_port(), PASSWORD)
    server.start(tmp_path / "valkey.log")
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
    with pytest.raises(redis.AuthenticationError), redis.Redis(port=server.port) as client:
        client.ping()
    assert server.process is not None
    assert not any(PASSWORD in part for part in psutil.Process(server.process.pid).cmdline())
    assert stat.S_IMODE((server.folder / "valkey.conf").stat().st_mode) == 0o600
    with redis.Redis.from_url(server.url) as client:
        assert client.config_get("bind") == {"bind": "127.0.0.1"}
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}


def test_another_server_on_the_port_is_not_taken_for_ours(
    server: Valkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("berth.host.valkey.LOCK_PATIENCE", 0.5)
    other = Valkey(tmp_path / "other", server.port, "other")
    with pytest.raises(HostError, match=r"ended with code 1 while starting.*other\.log"):
        other.start(tmp_path / "other.log")
    other.stop()
