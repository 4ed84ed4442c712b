"""Sizes that say less: what an organisation's clients get when its answers are filled up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from berth.host.valkey import Valkey
from berth_gateway.padding import BUCKET, bucket_of, padded_events, padded_json
from tests.gateway.core import Core, answers
from tests.gateway.harness import HEAD, Engine, GatewayProcess, World, chat_events

SHORT = ["a"] * 12
LONG = ["internationalisation " * 3, "b", "four", "of unequal length"] * 3


@pytest.fixture
def world() -> World:
    made = World()
    made.route("acme/model", 7001)
    made.orgs[0] = msgspec.structs.replace(made.orgs[0], padded=True)
    return made


@pytest.fixture
def core(tmp_path: Path, world: World) -> Iterator[Core]:
    made = Core(tmp_path, world)
    yield made
    made.close()


def asked(**fields: Any) -> bytes:
    data = {"model": "acme/model", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 90, **fields}
    return json.dumps(data).encode()


def written(core: Core, words: list[str], **fields: Any) -> tuple[list[bytes], bytes]:
    """What went to the client's socket, write by write, and all of it."""
    client, wire = core.client()
    writes: list[bytes] = []
    wire_write = wire.write

    def watch(data: bytes) -> None:
        writes.append(data)
        wire_write(data)

    wire.write = watch  # type: ignore[method-assign]
    client.received(core.request(asked(**fields)))
    core.engine.send(HEAD)
    for event in chat_events(words):
        core.engine.send(b"%x\r\n%b\r\n" % (len(event), event))
    core.engine.send(b"0\r\n\r\n")
    return writes, wire.out


def said(body: bytes) -> str:
    chunks = [json.loads(line[6:]) for line in body.decode().split("\n") if line.startswith("data: {")]
    return "".join(choice["delta"].get("content") or "" for each in chunks for choice in each["choices"])


@pytest.mark.threat("G9")
def test_two_answers_come_in_writes_of_the_same_sizes(core: Core) -> None:
    sizes = []
    for words in (SHORT, LONG):
        writes, out = written(core, words, stream=True)
        (answer,) = answers(out)
        assert said(answer.body) == "".join(words)
        assert answer.body.endswith(b"data: [DONE]\n\n")
        sizes.append([len(write) for write in writes[1:]])  # the first brings the head
    assert sizes[0] == sizes[1]
    assert len(set(sizes[0][:-1])) == 1


@pytest.mark.threat("G9")
def test_a_whole_answer_is_filled_up_too_and_stays_json(core: Core) -> None:
    for words in (["a"], ["a"] * 40):
        (answer,) = answers(written(core, words)[1])
        assert len(answer.body) == BUCKET == int(answer.headers["content-length"])
        assert answer.json["choices"][0]["message"]["content"] == "".join(words)


@pytest.mark.threat("G9")
@given(st.integers(1, 200_000), st.integers(1, 200_000))
def test_sizes_of_one_bucket_look_alike(first: int, second: int) -> None:
    filled = [
        padded_events(b"x" * (size - 2) + b"\n\n") if size > 2 else padded_events(b"\n\n") for size in (first, second)
    ]
    assert all(len(each) in {bucket_of(n) for n in range(1, 300_000, 511)} | {BUCKET} for each in filled)
    assert (len(filled[0]) == len(filled[1])) or bucket_of(first + 4) != bucket_of(second + 4)
    assert all(each.startswith(b": ") and each.index(b"\n\n") > 0 for each in filled)
    assert len(padded_json(b"{}" + b" " * first)) == bucket_of(first + 2)


def test_others_are_not_filled_up(core: Core, world: World) -> None:
    world.orgs[0] = msgspec.structs.replace(world.orgs[0], padded=False)
    core.gateway.offer_snapshot(world.next().signed())
    (answer,) = answers(written(core, ["a"], stream=True)[1])
    assert b": " not in answer.body.split(b"data:")[0]


def test_clients_read_them_as_ever(
    tmp_path: Path, engine: Engine, world: World, valkey: redis.Redis, valkey_server: Valkey
) -> None:
    world.routes.clear()
    world.route("acme/model", engine.port)
    world.publish(valkey)
    process = GatewayProcess(tmp_path, world, valkey_server.url).start()
    try:
        url = f"http://127.0.0.1:{process.port}/v1"
        with openai.OpenAI(api_key=world.token, base_url=url, max_retries=0) as client:
            message: Any = [{"role": "user", "content": "hi"}]
            whole = client.chat.completions.create(model="acme/model", messages=message, max_tokens=3)
            stream = client.chat.completions.create(model="acme/model", messages=message, max_tokens=3, stream=True)
            streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert whole.choices[0].message.content == streamed == "w0 w1 w2 "
    finally:
        process.kill()
    process.check_log()
