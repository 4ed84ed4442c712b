"""An engine is killed under load: whoever has had nothing of an answer yet gets it from another replica."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis
from msgspec.structs import replace

from berth.host.valkey import Valkey
from berth_gateway.contract import Outcome
from tests.gateway.harness import PATIENCE, GatewayProcess, Ingester, World, chat, get, raw_post, wait_for
from tests.gateway.llama import Llama

CALLERS = 8


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[list[Llama]]:
    made = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        made.append(Llama(folder))
    try:
        for each in made:
            each.start()
        yield made
    finally:
        for each in made:
            each.kill()


@dataclass
class Got:
    """What a client had of one answer when its connection ended."""

    stream: bool
    data: bytes

    @property
    def whole(self) -> bool:
        done = self.data.endswith(b"0\r\n\r\n") if self.stream else b'"usage"' in self.data
        return b" 200 " in self.data[:20] and done and b'"error"' not in self.data

    @property
    def begun(self) -> bool:
        """Whether content had come: then nothing but an error can follow."""
        return self.stream and b'"content":' in self.data


class Callers:
    """Threads that ask, plainly and streaming, without pause. Every other one keeps its connection."""

    def __init__(self, port: int, token: str) -> None:
        self._port, self._token = port, token
        self.got: list[Got] = []
        self.stop = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(n,)) for n in range(CALLERS)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()

    def _work(self, number: int) -> None:
        stream = number % 2 == 0
        body = json.dumps(
            chat(stream=stream, max_tokens=12, messages=[{"role": "user", "content": f"Count from {number}."}])
        )
        while not self.stop.is_set():
            with socket.create_connection(("127.0.0.1", self._port), timeout=PATIENCE) as sock:
                sock.sendall(raw_post("/v1/chat/completions", body.encode(), self._token, "Connection: close\r\n"))
                data = b""
                while part := sock.recv(65536):
                    data += part
            self.got.append(Got(stream, data))


@pytest.mark.slow
@pytest.mark.threat("G5")
def test_who_had_nothing_yet_is_answered_by_another_replica(
    tmp_path: Path, engines: list[Llama], valkey: redis.Redis, valkey_server: Valkey
) -> None:
    world = World()
    route = world.route("acme/model", *(each.port for each in engines), context_length=1024)
    world.routes[-1] = replace(route, replicas=tuple(replace(each, slots=2) for each in route.replicas))
    world.publish(valkey)
    gateway = GatewayProcess(tmp_path, world, valkey_server.url, BERTH_GATEWAY_QUEUE_SECONDS="300").start()
    try:
        callers = Callers(gateway.port, world.token)
        victim = engines[0]
        for number in (1, 2):
            so_far = len(callers.got)
            wait_for(lambda so_far=so_far: len(callers.got) > so_far + CALLERS, "load")  # type: ignore[misc]
            wait_for(lambda: victim.busy() == 2, "the engine to be full")
            victim.kill()
            so_far = len(callers.got)
            wait_for(lambda so_far=so_far: len(callers.got) > so_far + CALLERS, "the others to go on")  # type: ignore[misc]
            if number == 1:
                victim.start()
        callers.end()
        lost = [each.data for each in callers.got if not each.whole and not each.begun]
        assert lost == []
        metrics = get(gateway.port, "/metrics").body.decode()
        retried = [line for line in metrics.splitlines() if line.startswith("berth_gateway_retries_total{")]
        assert any(float(line.split()[-1]) > 0 for line in retried)
        events = Ingester(valkey).until(len(callers.got))
        assert len(events) == len(callers.got), "one usage event each, tried twice or not"
        assert sum(e.outcome is Outcome.OK for e in events) == sum(each.whole for each in callers.got)
    finally:
        gateway.kill()
    gateway.check_log()
