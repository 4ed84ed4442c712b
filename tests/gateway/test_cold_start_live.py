"""Two gateways that share a real Valkey, each as the restricted user, and a deployment that sleeps."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest
import redis

from berth.host.child import free_port
from berth.host.valkey import Valkey
from berth_gateway.contract import (
    LOAD_PREFIX,
    WAKE_STREAM,
    DeploymentLoad,
    Replica,
    Route,
    RouteState,
    Wake,
)
from tests.gateway.harness import SECRET, Answer, Engine, GatewayProcess, World, chat, post, wait_for

SLEEP = 1_796_000_000_123


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Valkey]:
    server = Valkey(tmp_path / "valkey", free_port(), "secret", gateway_password="narrow", durable=False)
    server.start(tmp_path / "valkey.log")
    yield server
    server.stop()


def sleeping(world: World, engine: Engine) -> Route:
    return world.route("acme/model", state=RouteState.ASLEEP, asleep_since=SLEEP, hold_seconds=60)


def woken(world: World, engine: Engine, control: redis.Redis) -> None:
    """As the control plane would publish it."""
    world.routes[0] = msgspec.structs.replace(
        world.routes[0],
        state=RouteState.READY,
        asleep_since=None,
        replicas=(Replica("r1", "127.0.0.1", engine.port, SECRET, slots=1),),
    )
    world.next().publish(control)


@pytest.mark.timeout(120)
def test_requests_at_two_gateways_wake_a_deployment_once_and_are_all_served(
    tmp_path: Path, shared: Valkey, engine: Engine
) -> None:
    world = World()
    deployment = sleeping(world, engine).deployment_id
    gateways = []
    with redis.Redis.from_url(shared.url) as control:
        world.publish(control)
        for number in (1, 2):
            folder = tmp_path / str(number)
            folder.mkdir()
            process = GatewayProcess(folder, world, shared.gateway_url, BERTH_GATEWAY_NAME=f"gateway-{number}")
            gateways.append(process.start())
        got: list[Answer] = []

        def call(port: int, stream: bool) -> None:
            got.append(post(port, "/v1/chat/completions", chat(stream=stream), world.token))

        calls = [threading.Thread(target=call, args=(g.port, s)) for g in gateways for s in (False, True)]
        for each in calls:
            each.start()
        wait_for(lambda: held(control) == {1: 2, 2: 2}, "all four to be held")
        wakes = [msgspec.msgpack.decode(fields[b"wake"], type=Wake) for _, fields in control.xrange(WAKE_STREAM)]
        assert [(wake.deployment_id, wake.sleep) for wake in wakes] == [(deployment, SLEEP)]
        assert got == []
        woken(world, engine, control)
        for each in calls:
            each.join()
        assert [answer.status for answer in got] == [200] * 4
        assert len(engine.seen) == 4
        load = loads(control, 1)[deployment]
        assert load.arrivals == 2
        for process in gateways:
            assert process.stop() == 0
            process.check_log()


def loads(control: redis.Redis, number: int) -> dict[str, DeploymentLoad]:
    raw: dict[bytes, bytes] = control.hgetall(f"{LOAD_PREFIX}gateway-{number}")  # type: ignore[assignment]
    return {name.decode(): msgspec.msgpack.decode(packed, type=DeploymentLoad) for name, packed in raw.items()}


def held(control: redis.Redis) -> dict[int, int]:
    return {number: sum(load.queued for load in loads(control, number).values()) for number in (1, 2)}


@pytest.mark.timeout(120)
def test_a_gateway_as_its_user_can_write_load_and_wakes_and_read_neither_others(shared: Valkey) -> None:
    name = str(uuid4())
    with redis.Redis.from_url(shared.gateway_url) as gateway:
        assert gateway.set(f"berth:wake:{name}:1", "g", nx=True, px=1000)
        gateway.xadd(WAKE_STREAM, {"wake": b""})
        gateway.hset(f"{LOAD_PREFIX}g", "d", b"")
        for forbidden in (("SET", "berth:snapshot", "x"), ("SET", "other", "x"), ("DEL", WAKE_STREAM), ("KEYS", "*")):
            with pytest.raises(redis.exceptions.NoPermissionError):
                gateway.execute_command(*forbidden)
