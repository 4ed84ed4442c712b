"""What holds over all processes together, in real time, on a machine that stumbles."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from pathlib import Path

import pytest
import redis
from msgspec.structs import replace

from berth.host.valkey import Valkey
from berth_gateway.contract import Limits
from tests.gateway import crowd
from tests.gateway.harness import Engine, Seen, Talk, World, chat, plain, raw_post

RPM = 1200
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


def at_once(seen: Seen, talk: Talk) -> None:
    talk.send(ANSWER)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.threat("G10")
def test_eight_workers_of_two_gateways_share_a_minute_within_one_percent(
    tmp_path: Path, engine: Engine, valkey: redis.Redis, valkey_server: Valkey
) -> None:
    """Asked for three times as much for two minutes, while workers get no turn for up to half a second and Valkey answers late."""
    world = World()
    world.keys[0] = replace(world.keys[0], limits=Limits(rpm=RPM))
    world.route("acme/model", engine.port, engine="vllm")
    world.publish(valkey)
    engine.script = at_once
    gateways = [crowd.start(tmp_path, world, valkey_server.url, f"gateway-{n}", 4) for n in range(2)]
    try:
        message = raw_post("/v1/chat/completions", json.dumps(chat(max_tokens=1)).encode(), world.token)
        callers = crowd.Callers()
        workers = [pid for each in gateways for pid in crowd.workers_of(each)]
        assert len(workers) == 8
        with crowd.stumbling(workers, valkey, random.Random(5)):
            asyncio.run(callers.call([each.port for each in gateways], message, 48, 48 / 60, 125))
    finally:
        for each in gateways:
            each.stop()
    most, first = callers.surely_within_a_minute(), callers.maybe_within_the_first_minute()
    print(f"most {most}, first {first}, {Counter(each.status for each in callers.told)}")
    assert {each.status for each in callers.told} == {200, 429}
    assert most <= RPM * 1.01
    assert first >= RPM * 0.99
