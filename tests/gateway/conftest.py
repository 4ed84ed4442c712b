"""Fixtures: a world with one deployment on a scripted engine, and a gateway process that serves it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from berth.host.valkey import Valkey
from tests.gateway.core import Core
from tests.gateway.harness import Engine, GatewayProcess, World


@pytest.fixture
def engine() -> Iterator[Engine]:
    """An engine whose script a test may change."""
    running = Engine()
    yield running
    running.stop()


@pytest.fixture
def world(engine: Engine, valkey: redis.Redis) -> World:
    """Published: acme/model on the engine."""
    made = World()
    made.route("acme/model", engine.port)
    made.publish(valkey)
    return made


@pytest.fixture
def gateway(tmp_path: Path, world: World, valkey_server: Valkey) -> Iterator[GatewayProcess]:
    """Running and ready."""
    process = GatewayProcess(tmp_path, world, valkey_server.url).start()
    yield process
    process.kill()
    process.check_log()


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Core]:
    """The gateway without sockets."""
    made = Core(tmp_path)
    yield made
    made.close()
