"""Several choices of an engine that gives one a request: several requests to it, one answer, one usage event."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import redis

from berth.host.valkey import Valkey
from berth_gateway.contract import CountedBy, Outcome
from berth_gateway.fan import sum_up
from berth_gateway.meter import NOTHING, Bill, Counts
from tests.gateway.core import Core, answers
from tests.gateway.harness import (
    HEAD,
    GatewayProcess,
    Ingester,
    World,
    chat_events,
    chunked,
    completion_events,
    get,
    plain,
    post,
)
from tests.gateway.llama import Llama

HELLO = [{"role": "user", "content": "hi"}]


@pytest.fixture
def fan(tmp_path: Path) -> Iterator[Core]:
    world = World()
    world.route("acme/model", 7001)
    world.route("acme/pair", 7002, 7003)
    made = Core(tmp_path, world)
    yield made
    made.close()


def asked(core: Core, path: str = "/v1/chat/completions", **fields: Any) -> Any:
    data = {"model": "acme/model", "max_tokens": 9, "n": 3, **fields}
    if "prompt" not in data:
        data["messages"] = HELLO
    return core.ask(json.dumps(data).encode(), path)


def chunks(body: bytes) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in body.decode().split("\n") if line.startswith("data: {")]


def said(body: bytes) -> dict[int, str]:
    out: dict[int, str] = {}
    for each in chunks(body):
        for choice in each["choices"]:
            out[choice["index"]] = out.get(choice["index"], "") + (choice["delta"].get("content") or "")
    return out


@pytest.mark.parametrize("asks", [True, False])
def test_a_stream_has_every_choice_under_its_number(fan: Core, asks: bool) -> None:
    _, wire = asked(fan, stream=True, **({"stream_options": {"include_usage": True}} if asks else {}))
    assert len(fan.dialled) == 3
    sent = [chat_events([f"{name}{n} " for n in range(4)]) for name in "abc"]
    for engine in fan.dialled:
        engine.send(HEAD)
    for at in range(len(sent[0])):  # a piece of each in turn
        for engine, events in zip(fan.dialled, sent, strict=True):
            last = b"0\r\n\r\n" if at == len(events) - 1 else b""
            engine.send(b"%x\r\n%b\r\n" % (len(events[at]), events[at]) + last)
    (answer,) = answers(wire.out)
    assert said(answer.body) == {0: "a0 a1 a2 a3 ", 1: "b0 b1 b2 b3 ", 2: "c0 c1 c2 c3 "}
    found = chunks(answer.body)
    assert len({(each["id"], each["created"], each["model"]) for each in found}) == 1
    ends = [choice["index"] for each in found for choice in each["choices"] if choice["finish_reason"] == "stop"]
    roles = [choice["index"] for each in found for choice in each["choices"] if "role" in choice["delta"]]
    assert (sorted(ends), sorted(roles)) == ([0, 1, 2], [0, 1, 2])
    assert answer.body.endswith(b"data: [DONE]\n\n")
    assert [each["usage"]["total_tokens"] for each in found if "usage" in each] == ([11 + 12] if asks else [])
    (seen,) = fan.events
    assert (seen.prompt_tokens, seen.cached_tokens, seen.completion_tokens) == (11, 3, 12)
    assert (seen.outcome, seen.counted_by, seen.status) == (Outcome.OK, CountedBy.ENGINE, 200)
    assert fan.gateway.exchanges == set()


def test_without_a_stream_they_are_put_together(fan: Core) -> None:
    _, wire = asked(fan, seed=7)
    assert [request.json["seed"] for request in fan.asked] == [7, 8, 9]
    for word, engine in zip("abc", fan.dialled, strict=True):
        engine.send(HEAD + chunked(*chat_events([word])))
    (answer,) = answers(wire.out)
    assert [(c["index"], c["message"]["content"]) for c in answer.json["choices"]] == [(0, "a"), (1, "b"), (2, "c")]
    assert answer.json["usage"]["prompt_tokens"] == 11
    assert answer.json["usage"]["completion_tokens"] == 3
    assert len(fan.events) == 1


def test_every_prompt_counts_once(fan: Core) -> None:
    _, wire = asked(fan, "/v1/completions", prompt=["x", "y"], n=2)
    assert [request.json["prompt"] for request in fan.asked] == ["x", "x", "y", "y"]
    for engine in fan.dialled:
        engine.send(HEAD + chunked(*completion_events(["w", "v"])))
    (answer,) = answers(wire.out)
    assert [c["index"] for c in answer.json["choices"]] == [0, 1, 2, 3]
    assert [(e.prompt_tokens, e.completion_tokens) for e in fan.events] == [(10, 8)]


def test_one_that_fails_ends_all(fan: Core) -> None:
    _, wire = asked(fan, stream=True)
    first, second, third = fan.dialled
    events = chat_events(["a", "b"])
    first.send(HEAD + b"".join(b"%x\r\n%b\r\n" % (len(e), e) for e in events[:2]))
    second.upstream.lost()
    (answer,) = answers(wire.out)
    assert chunks(answer.body)[-1]["error"]["code"] == "upstream_unavailable"
    assert b"[DONE]" not in answer.body
    assert first.wire.aborted and third.wire.aborted
    (seen,) = fan.events
    assert (seen.outcome, seen.prompt_tokens, seen.completion_tokens) == (Outcome.UPSTREAM_ERROR, 11, 1)
    assert fan.gateway.exchanges == set()


def test_one_tries_elsewhere_while_nothing_of_it_has_come(fan: Core) -> None:
    _, wire = asked(fan, model="acme/pair", n=2)
    broken, well = fan.dialled
    broken.upstream.lost()
    assert len(fan.dialled) == 3
    for engine in (well, fan.dialled[2]):
        engine.send(HEAD + chunked(*chat_events(["a"])))
    (answer,) = answers(wire.out)
    assert [c["index"] for c in answer.json["choices"]] == [0, 1]
    assert len(fan.events) == 1


def test_what_the_engine_finds_wrong_is_400_and_free(fan: Core) -> None:
    _, wire = asked(fan)
    text = {
        "error": {"code": 400, "type": "exceed_context_size_error", "message": "x", "n_prompt_tokens": 9, "n_ctx": 5}
    }
    fan.dialled[1].send(plain(400, json.dumps(text).encode()))
    (answer,) = answers(wire.out)
    assert (answer.status, answer.code) == (400, "context_length_exceeded")
    assert [(e.outcome, e.completion_tokens) for e in fan.events] == [(Outcome.REJECTED, 0)]
    assert all(each.wire.aborted for each in (fan.dialled[0], fan.dialled[2]))


def test_who_leaves_pays_for_what_was_produced_of_all(fan: Core) -> None:
    client, _ = asked(fan, stream=True)
    events = chat_events(["a", "b", "c"])
    for count, engine in zip((2, 3, 4), fan.dialled, strict=True):
        engine.send(HEAD + b"".join(b"%x\r\n%b\r\n" % (len(e), e) for e in events[:count]))
    client.lost()
    assert all(engine.wire.aborted for engine in fan.dialled)
    (seen,) = fan.events
    assert (seen.outcome, seen.counted_by) == (Outcome.CLIENT_CLOSED, CountedBy.ENGINE_RUNNING)
    assert (seen.prompt_tokens, seen.completion_tokens) == (11, 1 + 2 + 3)


def test_late_and_cut(fan: Core) -> None:
    _, late = asked(fan)
    fan.pass_time(301)
    assert answers(late.out)[0].code == "request_timeout"
    asked(fan)
    fan.gateway.cut_all()
    assert [e.outcome for e in fan.events] == [Outcome.TIMEOUT, Outcome.INTERRUPTED]
    assert fan.gateway.exchanges == set()
    assert fan.gateway.router.load(fan.world.routes[0].replicas[0]) == 0


def test_the_sum_of_bills() -> None:
    parts = [Bill(Counts(10, 4, 5, 1), CountedBy.ENGINE), Bill(Counts(10, 0, 6, 0), CountedBy.ENGINE_RUNNING), NOTHING]
    assert sum_up(parts, 3) == Bill(Counts(10, 0, 11, 1), CountedBy.ENGINE_RUNNING)
    assert sum_up([NOTHING, NOTHING], 2) == NOTHING
    assert sum_up(parts[:2], 1).counts.prompt == 20


# --- the real engine


def test_the_real_engine_gives_more_choices_than_it_has_slots(
    tmp_path: Path, valkey: redis.Redis, valkey_server: Valkey
) -> None:
    llama = Llama(tmp_path)
    gateway: GatewayProcess | None = None
    try:
        llama.start()
        world = World()
        world.route("acme/model", llama.port, context_length=1024)
        world.publish(valkey)
        gateway = GatewayProcess(tmp_path, world, valkey_server.url).start()
        url = f"http://127.0.0.1:{gateway.port}/v1"
        with openai.OpenAI(api_key=world.token, base_url=url, max_retries=0) as client:
            whole = client.chat.completions.create(
                model="acme/model",
                messages=HELLO,
                n=4,
                max_tokens=6,
                temperature=1,
                seed=3,  # type: ignore[arg-type]
            )
            streamed: dict[int, str] = {}
            usage = None
            for chunk in client.chat.completions.create(
                model="acme/model",
                messages=HELLO,
                n=3,
                max_tokens=6,
                stream=True,
                stream_options={"include_usage": True},  # type: ignore[arg-type]
            ):
                usage = chunk.usage or usage
                for choice in chunk.choices:
                    streamed[choice.index] = streamed.get(choice.index, "") + (choice.delta.content or "")
        one = post(
            gateway.port,
            "/v1/chat/completions",
            {"model": "acme/model", "messages": HELLO, "max_tokens": 1},
            world.token,
        )
        assert sorted(choice.index for choice in whole.choices) == [0, 1, 2, 3]
        assert len({choice.message.content for choice in whole.choices}) > 1
        assert sorted(streamed) == [0, 1, 2] and all(streamed.values())
        prompt = one.json["usage"]["prompt_tokens"]
        assert whole.usage is not None and usage is not None
        assert (whole.usage.prompt_tokens, usage.prompt_tokens) == (prompt, prompt)
        events = Ingester(valkey).until(3)
        told = sorted([whole.usage.completion_tokens, usage.completion_tokens, 1])
        assert sorted(event.completion_tokens for event in events) == told
        assert {event.counted_by for event in events} == {CountedBy.ENGINE}
        assert get(gateway.port, "/healthz").status == 200
        gateway.check_log()
    finally:
        if gateway is not None:
            gateway.kill()
        llama.kill()
