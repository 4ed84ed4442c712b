"""What one caller left in an engine's cache of prefixes is not another's to find."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

from berth.host.valkey import Valkey
from tests.gateway.core import Core
from tests.gateway.harness import HEAD as STREAM
from tests.gateway.harness import GatewayProcess, World, chat, chat_events, chunked, post
from tests.gateway.llama import Llama

SECOND = "bth_sk_" + "c" * 43  # another key of the same organisation
PROMPT = "The harbour master keeps a book of every ship that came in, and of every ship that left. " * 8


def world_of(engine: str, port: int, *, apart: bool, **fields: Any) -> World:
    world = World()
    world.orgs[0] = msgspec.structs.replace(world.orgs[0], keys_apart=apart)
    world.keys.append(world.key(SECOND, world.org))
    world.route("acme/model", port, engine=engine, **fields)
    return world


@pytest.mark.threat("G8")
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("engine", ["vllm", "llamacpp"])
def test_each_key_has_a_salt_or_reads_anew(tmp_path: Path, engine: str, apart: bool) -> None:
    """The first request of a connection and those that come the short way alike."""
    core = Core(tmp_path, world_of(engine, 7001, apart=apart))
    told: dict[str, set[Any]] = {}
    for token in (core.world.token, SECOND):
        core.world.token = token
        client, _ = core.client()
        for _ in range(3):
            client.received(core.request(stream=True))
            core.engine.send(STREAM + chunked(*chat_events(["a"])))
        bodies = [seen.json for seen in core.asked][-3:]
        told[token] = {each.get("cache_salt" if engine == "vllm" else "cache_prompt") for each in bodies}
    first, second = told.values()
    if engine == "llamacpp":
        assert first == second == ({False} if apart else {None})
    else:
        assert len(first) == len(second) == 1
        assert (first == second) is not apart
        assert all(len(salt) == 32 for salt in first | second)
    core.close()


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Llama]:
    server = Llama(tmp_path_factory.mktemp("llama"))
    server.start()
    yield server
    server.kill()


@pytest.mark.threat("G8")
def test_a_real_engine_tells_a_second_key_nothing(
    tmp_path: Path, llama: Llama, valkey: redis.Redis, valkey_server: Valkey
) -> None:
    """As first, second and first again: with keys apart `cached_tokens` is 0 each time; without, the cache shows that it works."""
    world = world_of("llamacpp", llama.port, apart=True, context_length=1024)
    world.publish(valkey)
    gateway = GatewayProcess(tmp_path, world, valkey_server.url).start()

    def cached(token: str) -> int:
        body = chat(messages=[{"role": "user", "content": PROMPT}], max_tokens=2)
        usage = post(gateway.port, "/v1/chat/completions", body, token).json["usage"]
        assert usage["prompt_tokens"] > 100
        found: int = usage["prompt_tokens_details"]["cached_tokens"]
        return found

    try:
        assert [cached(token) for token in (world.token, SECOND, world.token)] == [0, 0, 0]
        world.orgs[0] = msgspec.structs.replace(world.orgs[0], keys_apart=False)
        world.next().publish(valkey)
        for _ in range(100):  # until it is applied
            if max(cached(token) for token in (world.token, SECOND)) > 100:
                break
        else:
            pytest.fail("nothing was ever found in the cache")
    finally:
        gateway.kill()
