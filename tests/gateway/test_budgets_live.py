"""Limits and budgets with real gateway processes, a real Valkey and a scripted engine."""

from __future__ import annotations

import http.client
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest
import redis

from berth.billing import claims
from berth.host.child import free_port
from berth.host.valkey import Valkey
from berth_gateway.contract import (
    USAGE_POSITION_KEY,
    USAGE_STREAM,
    Budget,
    BudgetScope,
    Limits,
    Period,
    Price,
    UsageBatch,
    UsageEvent,
    usage_key,
)
from berth_gateway.cost import TEMPLATE_TOKENS, cost_of
from tests.gateway.harness import (
    HEAD,
    MASTER,
    Answer,
    Engine,
    GatewayProcess,
    Seen,
    Talk,
    World,
    answer,
    chat,
    chat_events,
    get,
    post,
    wait_for,
)

CHAT = "/v1/chat/completions"
PRICE = Price(0, 10, 5, 100)
TOKENS = 5
PERIOD = Period("2026-11", 0.0, 4e9)


class Held:
    """An engine's script that answers half and then waits to be let go."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def __call__(self, seen: Seen, talk: Talk) -> None:
        if self.go.is_set():
            answer(seen, talk)
            return
        pieces = chat_events([f"w{n} " for n in range(TOKENS)])
        data = [b"%x\r\n%b\r\n" % (len(each), each) for each in pieces]
        talk.send(HEAD + b"".join(data[:3]))
        self.go.wait(30)
        talk.send(b"".join(data[3:]) + b"0\r\n\r\n")


class Books:
    """What the control plane does for one budget: takes usage in, and says what was spent by whom up to where."""

    def __init__(self, valkey: redis.Redis, budget: Budget, monkeypatch: pytest.MonkeyPatch) -> None:
        self.valkey, self.budget = valkey, budget
        self.events: dict[str, UsageEvent] = {}
        self.positions: dict[str, int] = {}
        self.mirror: dict[str, int] = {}
        self.seeded = False
        monkeypatch.setattr(claims, "client", lambda: valkey)

    def look(self) -> claims.Claims:
        entries = self.valkey.xrange(USAGE_STREAM)
        for entry_id, fields in entries:  # type: ignore[union-attr]
            batch = msgspec.msgpack.decode(fields[b"batch"], type=UsageBatch)
            for each in msgspec.msgpack.decode(batch.payload, type=list[UsageEvent]):
                self.events.setdefault(each.event_id, each)
            if batch.start <= self.positions.get(batch.gateway, 0):
                self.positions[batch.gateway] = max(self.positions.get(batch.gateway, 0), batch.end)
            self.valkey.xdel(USAGE_STREAM, entry_id)
        for name, position in self.positions.items():
            self.valkey.hset(USAGE_POSITION_KEY, name, position)
        told = [
            claims.Told(
                name, self.spent(name), self.positions.get(name, 0), max(self.spent(name), self.mirror.get(name, 0))
            )
            for name in sorted({*self.positions, *self.mirror})
        ]
        found = claims.seed(
            f"{self.budget.budget_id}:{PERIOD.name}", limit_pico=self.budget.limit_pico, version=self.budget.version,
            lost=self.seeded, expires_at=0, told=told,
        )  # fmt: skip
        self.seeded, self.mirror = True, found.by_gateway
        return found

    def spent(self, gateway: str | None = None) -> int:
        return sum(cost_of(each, PRICE) for each in self.events.values() if gateway in (None, each.gateway))

    def until(self, count: int) -> None:
        def enough() -> bool:
            self.look()
            return len(self.events) >= count

        wait_for(enough, f"{count} events")


def budget_for(world: World, limit: int) -> Budget:
    return Budget(str(uuid4()), world.org.org_id, BudgetScope.ORG, world.org.org_id, limit, 1, (PERIOD,))


def start(folder: Path, name: str, world: World, url: str) -> GatewayProcess:
    (folder / name).mkdir(exist_ok=True)
    process = GatewayProcess(folder / name, world, url, BERTH_GATEWAY_NAME=name)
    (folder / name / "usage.key").write_text(usage_key(MASTER, name).hex())
    return process.start()


def at_once(ports: list[int], world: World, count: int) -> list[Answer]:
    """So many calls side by side, over the gateways in turn."""
    with ThreadPoolExecutor(count) as pool:
        calls = [
            pool.submit(post, ports[n % len(ports)], CHAT, chat(max_tokens=TOKENS), world.token) for n in range(count)
        ]
        return [each.result() for each in calls]


def until_known(ports: list[int], world: World, count: int) -> list[Answer]:
    """The same with what every SDK does: a 503 (this busy machine was slower than a request waits) is tried again."""

    def call(port: int) -> Answer:
        while (found := post(port, CHAT, chat(max_tokens=TOKENS), world.token)).status == 503:
            time.sleep(0.1)
        return found

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(call, [ports[n % len(ports)] for n in range(count)]))


def worst(engine: Engine) -> int:
    """What the gateway sets aside for the call that the engine saw last."""
    return (len(engine.seen[-1].body) + TEMPLATE_TOKENS) * PRICE.input + TOKENS * PRICE.output


@pytest.fixture
def own_valkey(tmp_path: Path) -> Iterator[Valkey]:
    """One that keeps its data, and may be killed."""
    server = Valkey(tmp_path / "valkey", free_port(), "p")
    server.start(tmp_path / "valkey.log")
    yield server
    server.stop()


@pytest.mark.threat("G10")
@pytest.mark.threat("K2")
def test_200_calls_at_once_on_a_budget_for_10(
    tmp_path: Path, engine: Engine, valkey: redis.Redis, valkey_server: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    world.route("acme/model", engine.port, prices=(PRICE,))
    world.publish(valkey)
    gateways = [start(tmp_path, name, world, valkey_server.url) for name in ("gw-a", "gw-b")]
    try:
        assert post(gateways[0].port, CHAT, chat(max_tokens=TOKENS), world.token).status == 200
        cost, held = worst(engine), Held()
        engine.script = held
        engine.seen.clear()
        wait_for(lambda: valkey.xlen(USAGE_STREAM), "the first event")
        budget = budget_for(world, 0)
        books = Books(valkey, budget, monkeypatch)
        books.look()
        budget = books.budget = msgspec.structs.replace(
            budget, limit_pico=books.spent() + 10 * cost + cost // 2, version=2
        )
        claims.forget(f"{budget.budget_id}:{PERIOD.name}")
        books.seeded = False
        books.look()
        world.budgets = [budget]
        world.next().publish(valkey)
        wait_for(lambda: f"c:{'gw-b'}".encode() in _hash(valkey, budget), "both to know the budget")
        wait_for(lambda: b"q:gw-a" in _hash(valkey, budget), "both to know the budget")

        answers: list[Answer] = []
        caller = threading.Thread(target=lambda: answers.extend(until_known([g.port for g in gateways], world, 200)))
        caller.start()
        wait_for(lambda: len(engine.seen) >= 10, "ten to reach the engine")
        time.sleep(1.5)  # so that an eleventh would be seen
        assert len(engine.seen) == 10
        held.go.set()
        caller.join(30)
        refused = [each for each in answers if each.status != 200]
        assert len(answers) == 200 and len(refused) == 190
        assert {(each.status, each.code, each.error["type"]) for each in refused} == {
            (429, "insufficient_quota", "insufficient_quota")
        }
        assert all(each.headers["x-should-retry"] == "false" and "retry-after" not in each.headers for each in refused)
        books.until(11)
        assert books.spent() <= budget.limit_pico
    finally:
        for each in gateways:
            each.kill()


def _hash(valkey: redis.Redis, budget: Budget) -> dict[bytes, bytes]:
    return valkey.hgetall(f"berth:budget:{budget.budget_id}:{PERIOD.name}")  # type: ignore[return-value]


@pytest.mark.threat("G10")
@pytest.mark.parametrize("loss", ["restarted", "emptied"])
def test_a_killed_gateway_and_a_lost_valkey_do_not_exceed_a_budget(
    tmp_path: Path, engine: Engine, own_valkey: Valkey, monkeypatch: pytest.MonkeyPatch, loss: str
) -> None:
    """Killed in the middle of streams, Valkey killed too: what was spent counts, and no more than what is left can be spent."""
    world = World()
    world.route("acme/model", engine.port, prices=(PRICE,))
    valkey = redis.Redis.from_url(own_valkey.url)
    held = Held()
    engine.script = held
    cost = (
        len(msgspec.json.encode(chat(max_tokens=TOKENS))) + 200 + TEMPLATE_TOKENS
    ) * PRICE.input + TOKENS * PRICE.output
    budget = budget_for(world, 12 * cost)
    world.budgets = [budget]
    books = Books(valkey, budget, monkeypatch)
    books.look()
    world.publish(valkey)
    gateways = [start(tmp_path, name, world, own_valkey.url) for name in ("gw-a", "gw-b")]
    ports = [each.port for each in gateways]
    try:
        callers = [
            threading.Thread(target=lambda port=port: _quietly(port, world), daemon=True) for port in (ports * 3)
        ]
        for each in callers:
            each.start()
        wait_for(lambda: len(engine.seen) >= 6, "six streams")
        books.look()
        time.sleep(1.2)  # the running counts reach the spool
        gateways[0].kill()
        assert own_valkey.process is not None
        os.kill(own_valkey.process.pid, signal.SIGKILL)
        own_valkey.process.wait()
        own_valkey.start(tmp_path / "valkey.log")
        if loss == "emptied":
            valkey.flushall()
        world.publish(valkey)
        books.look()
        gateways[0].start()
        held.go.set()
        for each in callers:
            each.join(30)

        def used_up() -> bool:
            books.look()
            codes = {"" if each.status == 200 else each.code for each in at_once(ports, world, 8)}
            assert codes <= {"", "insufficient_quota", "service_unavailable"}
            return codes == {"insufficient_quota"}

        wait_for(used_up, "the budget to be used up", patience=90)
        served = {str(seen.header("x-request-id"))[4:] for seen in engine.seen}

        def all_told() -> bool:
            books.look()
            return served <= {event_id.replace("-", "") for event_id in books.events}

        wait_for(all_told, "an event for each request that an engine saw")
        assert 6 * PRICE.output < books.spent() <= budget.limit_pico
        assert budget.limit_pico - books.spent() < 3 * cost, "and what was left could be spent"
    finally:
        for each_gateway in gateways:
            each_gateway.kill()
        valkey.close()


def _quietly(port: int, world: World) -> None:
    """One call that reaches an engine; what becomes of it then is looked at elsewhere."""
    try:
        while post(port, CHAT, chat(max_tokens=TOKENS, stream=True), world.token).status == 503:
            time.sleep(0.1)  # this busy machine was slower than a request waits
    except (OSError, http.client.HTTPException):
        return  # the gateway was killed in the middle of the answer


def test_limits_are_told_and_refuse_over_the_wire(
    tmp_path: Path, engine: Engine, valkey: redis.Redis, valkey_server: Valkey
) -> None:
    world = World()
    world.route("acme/model", engine.port)
    world.publish(valkey)
    gateways = [start(tmp_path, name, world, valkey_server.url) for name in ("gw-a", "gw-b")]
    try:
        for each in gateways:
            wait_for(lambda each=each: "berth_gateway_limits_contact 1" in _metrics(each), "contact")
        for _ in range(10):
            before = [_failures(each) for each in gateways]
            found = _calls_at_a_limit(world, valkey, gateways)
            if before == [_failures(each) for each in gateways]:
                break  # else this busy machine was slower than a request waits, and each gateway decided alone
        _check_answers(found)
        other = post(gateways[0].port, CHAT, chat(max_tokens=5), world.other_token)
        assert not [name for name in other.headers if name.startswith("x-ratelimit")]
    finally:
        for each in gateways:
            each.kill()


def _calls_at_a_limit(world: World, valkey: redis.Redis, gateways: list[GatewayProcess]) -> list[Answer]:
    """Four that fit, two that do not, one that never could; over two gateways in turn."""
    limited = msgspec.structs.replace(world.keys[0], key_id=str(uuid4()), limits=Limits(rpm=4, tpm=3000))
    world.keys[0] = limited
    world.next().publish(valkey)
    told = f"berth_gateway_snapshot_version {world.version}\n"
    for each in gateways:
        wait_for(lambda each=each: told in _metrics(each), "the snapshot")
    bodies = [chat(max_tokens=5) for _ in range(5)] + [chat(max_tokens=5, stream=True)]
    large = chat(max_tokens=2000, messages=[{"role": "user", "content": "x" * 20000}])
    return [post(gateways[n % 2].port, CHAT, body, world.token) for n, body in enumerate([*bodies, large])]


def _check_answers(found: list[Answer]) -> None:
    *served, first, streamed, large = found
    for left, answered in zip((3, 2, 1, 0), served, strict=True):
        assert answered.status == 200
        assert answered.headers["x-ratelimit-limit-requests"] == "4"
        assert answered.headers["x-ratelimit-remaining-requests"] == str(left)
        assert answered.headers["x-ratelimit-limit-tokens"] == "3000"
        assert answered.headers["x-ratelimit-reset-requests"] == "1m0s"
    for refused in (first, streamed):
        assert (refused.status, refused.code, refused.error["type"]) == (429, "rate_limit_exceeded", "requests")
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert "limit 4, used 4, requested 1" in refused.error["message"]
    assert large.error["type"] == "tokens" and large.headers["x-should-retry"] == "false"
    assert "retry-after" not in large.headers


def _metrics(gateway: GatewayProcess) -> str:
    return get(gateway.port, "/metrics").body.decode()


def _failures(gateway: GatewayProcess) -> str:
    return "".join(line for line in _metrics(gateway).splitlines() if 'failures_total{job="limits"}' in line)
