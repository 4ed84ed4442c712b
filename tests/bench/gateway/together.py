"""What holds over all processes together: `python tests/bench/gateway/together.py`.

A gateway of eight workers and two more of one, behind one Valkey, in real time: how exactly a limit of requests per minute is held when
three times as much is asked for, how soon a revoked key is refused everywhere while 1,000 requests a second use it, and how many
requests are at a replica of eight slots at most, with all gateways asked and with one alone.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import threading
import time
from bisect import bisect_left
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "platform"), str(ROOT / "runtime")]

import redis  # noqa: E402
from msgspec.structs import replace  # noqa: E402

from berth.host.child import free_port  # noqa: E402
from berth.host.valkey import Valkey  # noqa: E402
from berth_gateway.contract import Limits  # noqa: E402
from tests.gateway.harness import (  # noqa: E402
    MASTER,
    Engine,
    GatewayProcess,
    Seen,
    Talk,
    World,
    chat,
    plain,
    raw_post,
    usage_key,
)

RPM, ASKED = 1200, 60  # a minute; a second
ANSWER = plain(
    200,
    json.dumps(
        {
            "id": "x", "object": "chat.completion", "created": 1, "model": "engine-name",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 11, "completion_tokens": 1, "total_tokens": 12},
        }
    ).encode(),
)  # fmt: skip


class Counting:
    """An engine's script that knows how many requests it has at once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.now = self.most = 0
        self.lock = threading.Lock()

    def __call__(self, seen: Seen, talk: Talk) -> None:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(self.seconds)
        with self.lock:
            self.now -= 1
        talk.send(ANSWER)


class Stage:
    """Valkey, an engine, and three gateways of ten processes."""

    def __init__(self, folder: Path) -> None:
        self.valkey_server = Valkey(folder / "valkey", free_port(), "a-password")
        self.valkey_server.start(folder / "valkey.log")
        self.valkey = redis.Redis.from_url(self.valkey_server.url)
        self.engine, self.script = Engine(), Counting()
        self.engine.script = self.script
        self.world = World()
        self.world.keys[0] = replace(self.world.keys[0], limits=Limits(rpm=RPM))
        self.world.keys.append(self.world.key("bth_sk_" + "c" * 43, self.world.org))
        route = self.world.route("acme/model", self.engine.port, engine="vllm")
        self.world.routes[-1] = replace(route, replicas=tuple(replace(each, slots=8) for each in route.replicas))
        self.world.publish(self.valkey)
        self.gateways = [self._gateway(folder, f"gateway-{n}", workers) for n, workers in enumerate((8, 1, 1))]

    def _gateway(self, folder: Path, name: str, workers: int) -> GatewayProcess:
        own = folder / name
        own.mkdir()
        made = GatewayProcess(
            own, self.world, self.valkey_server.url, BERTH_GATEWAY_NAME=name, BERTH_GATEWAY_WORKERS=str(workers),
            BERTH_GATEWAY_LOG_REQUESTS="0",
        )  # fmt: skip
        (own / "usage.key").write_text(usage_key(MASTER, name).hex())
        return made.start()

    def end(self) -> None:
        for each in self.gateways:
            each.stop()
        self.engine.stop()
        self.valkey_server.stop()


class Seconds:
    """Statuses by the moment at which they came."""

    def __init__(self) -> None:
        self.got: list[tuple[float, int]] = []

    async def call(self, port: int, message: bytes, each: float, until: float) -> None:
        """Asks on one connection after the other, every `each` seconds; 0: as soon as there is an answer."""
        reader, writer, due = None, None, time.monotonic()
        while time.monotonic() < until:
            if writer is None or reader is None:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(message)
            head = await reader.readuntil(b"\r\n\r\n")
            lower = head.lower()
            length = int(lower.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
            self.got.append((time.monotonic(), int(head[9:12])))
            if b"connection: close" in lower:
                writer.close()
                reader = writer = None
            due += each
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        if writer is not None:
            writer.close()

    async def all(self, ports: list[int], message: bytes, callers: int, each: float, seconds: float) -> None:
        until = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            for number in range(callers):
                group.create_task(self.call(ports[number % len(ports)], message, each, until))


def limits(stage: Stage, ports: list[int]) -> None:
    message = raw_post("/v1/chat/completions", json.dumps(chat(max_tokens=1)).encode(), stage.world.token)
    seen = Seconds()
    asyncio.run(seen.all(ports, message, 30, 30 / ASKED, 121))
    served = [at for at, status in seen.got if status == 200]
    most = max(bisect_left(served, at + 60) - number for number, at in enumerate(served))
    first = bisect_left(served, served[0] + 60)
    print(f"limit {RPM}/min, asked {len(seen.got) / 121:.0f}/s: {dict(Counter(s for _, s in seen.got))}; first minute {first}, "
          f"most in any minute {most}", flush=True)  # fmt: skip


def slots(stage: Stage, ports: list[int]) -> None:
    message = raw_post("/v1/chat/completions", json.dumps(chat(max_tokens=1)).encode(), "bth_sk_" + "c" * 43)
    stage.script.seconds = 0.05
    for name, some in (("all ten processes", ports), ("one process", ports[1:2])):
        stage.script.most = 0
        seen = Seconds()
        asyncio.run(seen.all(some, message, 40, 0.0, 20))
        print(f"8 slots, 40 callers at {name}: at most {stage.script.most} at the replica, {len(seen.got) / 20:.0f}/s, "
              f"{dict(Counter(s for _, s in seen.got))}", flush=True)  # fmt: skip
        time.sleep(2)
    stage.script.seconds = 0.0


def revocation(stage: Stage, ports: list[int]) -> None:
    message = f"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {stage.world.token}\r\n\r\n".encode()
    seen = Seconds()
    moment: list[float] = []

    async def revoke() -> None:
        await asyncio.sleep(5)
        stage.world.keys.pop(0)
        packed = stage.world.next()
        moment.append(time.monotonic())
        packed.publish(stage.valkey)

    async def both() -> None:
        await asyncio.gather(revoke(), seen.all(ports, message, 50, 0.05, 10))

    asyncio.run(both())
    last = max(at for at, status in seen.got if status == 200)
    after = sum(status == 200 for at, status in seen.got if at > moment[0])
    print(f"revoked at {len(seen.got) / 10:.0f} requests/s: the last that was served came {last - moment[0]:.3f} s after, "
          f"{after} in all; {dict(Counter(s for _, s in seen.got))}", flush=True)  # fmt: skip


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(Path(folder))
        try:
            ports = [each.port for each in stage.gateways]
            slots(stage, ports)
            limits(stage, ports)
            revocation(stage, ports)
        finally:
            stage.end()


if __name__ == "__main__":
    main()
