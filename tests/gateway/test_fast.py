"""The short way of usual requests gives what the long way gives: to the engine, to the client, on disk, in limits, budgets and figures."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth_gateway import fast
from berth_gateway.contract import Budget, BudgetScope, Limits, Period, Price
from berth_gateway.fast import FastExchange
from tests.gateway.core import Core, Dialled, Wire, answers, unpacked
from tests.gateway.harness import World, chat, chat_chunk, chunked, event, plain, raw_post, usage

SECOND = "bth_sk_" + "c" * 43  # another key of the same organisation
IDS = re.compile(rb"[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def a_world(engine: str = "vllm", *, replicas: int = 1, slots: int | None = None, limited: bool = True) -> World:
    """acme/model, with limits of every kind, a price that rises, and two budgets."""
    world = World()
    world.route("acme/model", *range(7001, 7001 + replicas), engine=engine)
    route = world.routes[0]
    replicas = tuple(msgspec.structs.replace(each, slots=slots) for each in route.replicas)
    adapter = 3 if engine == "llamacpp" else None
    prices = (Price(0, 150, 15, 600), Price(1_800_001_030, 300, 30, 1200))
    limits = Limits(rpm=50, tpm=400_000, concurrency=6) if limited else None
    world.routes[0] = msgspec.structs.replace(route, replicas=replicas, prices=prices, limits=limits, adapter=adapter)
    if limited:
        key = world.keys[0]
        world.keys[0] = msgspec.structs.replace(key, limits=Limits(rpm=40, concurrency=5))
        org = key.org_id
        world.keys.append(world.key(SECOND, world.org, limits=Limits(rpm=30, tpm=300_000)))
        world.orgs[0] = msgspec.structs.replace(world.org, limits=Limits(rpm=60, tpm=500_000, concurrency=7))
        periods = (Period("total", 0.0, 4e9),)
        world.budgets = [
            Budget("b1", org, BudgetScope.ORG, org, 40_000_000, 1, periods),
            Budget("b2", org, BudgetScope.KEY, key.key_id, 30_000_000, 1, periods),
        ]
    return world


class Way:
    """A gateway whose requests come the short way, or all the long one."""

    def __init__(self, folder: Path, world: World, *, fast: bool) -> None:
        self.core = core = Core(folder, world)
        gateway = core.gateway
        gateway.gate.alone = True
        if not fast:

            def closed() -> None:
                gateway.fast.open = False

            gateway.fast.look = closed  # type: ignore[method-assign]
        gateway.limits_changed()
        gateway.fast.look()
        self.clients: list[tuple[Any, Wire]] = []
        self.short = 0

    def warm(self, count: int, form: bytes) -> None:
        """Connections of clients whose head is known, connections to the engine that are idle, and the form of its answers."""
        for at in range(count):
            client, wire = self.core.client()
            client.received(raw_post("/v1/chat/completions", json.dumps(chat(max_tokens=5)).encode(), self.token(at)))
            self.clients.append((client, wire))
        for each in self.core.dialled:
            each.send(form)
        # Once more, so that requests and answers of the usual form are known by it.
        for at in range(count if b"chunked" not in form else 0):
            self.ask(at, {"model": "acme/model", "messages": [{"role": "user", "content": "x"}], "max_tokens": 7})
            self.answer(0, (form, b""), [])
        self.short = 0
        for _, wire in self.clients:
            wire.out = b""

    def token(self, at: int) -> str:
        """The third client's key is another."""
        known = len(self.core.world.keys) > 2
        return SECOND if known and at == 2 else self.core.world.token

    def ask(self, at: int, body: dict[str, Any], cut: int = 0) -> None:
        client, wire = self.clients[at]
        data = raw_post("/v1/chat/completions", json.dumps(body, ensure_ascii=False).encode(), self.token(at))
        for piece in [data[:cut], data[cut:]] if cut else [data]:
            if wire.open:
                client.received(piece)
        self.short += isinstance(client._exchange, FastExchange)

    def answer(self, number: int, answer: tuple[bytes, bytes], cuts: list[int]) -> None:
        """The engine answers one of the requests that run: with the first if it asks for no stream, with the second if it does."""
        busy = self.busy()
        if busy:
            self.say(busy[number % len(busy)], answer, cuts)

    def busy(self) -> list[Dialled]:
        """Connections on which the engine is asked."""
        return [each for each in self.core.dialled if each.upstream.fast or each.upstream._asker]

    def say(self, each: Dialled, answer: tuple[bytes, bytes], cuts: list[int]) -> None:
        data = answer[b'"stream":true' in each.wire.out[each.wire.out.rfind(b"POST ") :]]
        for a, b in itertools.pairwise([0, *sorted({cut for cut in cuts if cut < len(data)}), len(data)]):
            each.send(data[a:b])

    def asks(self, _: int, asked: list[tuple[int, dict[str, Any], int]]) -> None:
        """Several requests come before the event loop waits again, some of them one behind the other from the same client."""
        with self.together():
            for at, body, cut in asked:
                self.ask(at, body, cut)
        self.short += sum(isinstance(client._exchange, FastExchange) for client, _ in self.clients)

    def answers(self, _: int, told: list[tuple[tuple[bytes, bytes], list[int]]]) -> None:
        """The same for the answers to requests that run. Where a client's next request waits behind one, it goes on before the connection
        to the engine is free again, or behind it, by the way that it takes: so those come one by one."""
        busy, waits = self.busy(), any(client._buffer for client, _ in self.clients)
        with contextlib.nullcontext() if waits else self.together():
            for each, (answer, cuts) in zip(busy, told, strict=False):
                self.say(each, answer, cuts)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """What comes is taken in at the end, as when the event loop waits again."""
        path, due = self.core.gateway.fast, list[Any]()
        at_once, path.soon = path.soon, due.append
        yield
        while due:
            due.pop(0)()
        path.soon = at_once

    def leave(self, at: int, _: float) -> None:
        client, wire = self.clients[at]
        if wire.open:
            wire.closed = True
            client.lost()

    def wait(self, _: int, seconds: float) -> None:
        self.core.pass_time(seconds)

    def drop(self, number: int, _: float) -> None:
        """The engine closes a connection."""
        if number < len(self.core.dialled):
            self.core.dialled[number].upstream.lost()

    def snapshot(self, _: int, __: float) -> None:
        self.core.gateway.offer_snapshot(self.core.world.next().signed())

    def full(self, at: int, _: float) -> None:
        client, wire = self.clients[at]
        if wire.open:
            client.full()
            client.drained()

    def cut(self, _: int, __: float) -> None:
        for exchange in list(self.core.gateway.exchanges):
            if len(self.core.gateway.exchanges) == 1:
                exchange.cut("service_unavailable", "The gateway is stopping.")

    def state(self) -> dict[str, Any]:
        core, gateway = self.core, self.core.gateway
        now = gateway.now()
        gateway.tick()
        pools = {
            pool.name: (pool.remaining(now, connected=False), pool.in_use, pool.own.used) for pool in gateway.gate.pools
        }
        core.log.flush()
        lines = [json.loads(IDS.sub(b"ID", line)) for line in core.log.written if b'"request"' in line]
        for line in lines:
            del line["at"]
        loads, _ = gateway.loads.take()
        return {
            "engine": [IDS.sub(b"ID", each.wire.out) for each in core.dialled],
            "client": [IDS.sub(b"ID", as_read(wire.out)) for _, wire in self.clients],
            "closed": [(wire.open, wire.paused) for _, wire in self.clients],
            "events": sorted((msgspec.structs.replace(each, event_id="") for each in core.events), key=str),
            "pools": pools,
            "purses": {p.name: (p.claim, p.spent, p.reserved) for p in gateway.gate.purses},
            "loads": {name: msgspec.msgpack.decode(load) for name, load in loads.items()},
            "running": (len(gateway.exchanges), gateway.router.in_flight(), len(gateway.spool.running())),
            "metrics": gateway.metrics(),
            "log": sorted(lines, key=str),
        }


def as_read(data: bytes) -> bytes:
    """What a client reads: which events share a chunk is all the same to it."""
    out = []
    while data:
        head, mark, data = data.partition(b"\r\n\r\n")
        out.append(head + mark)
        if b"transfer-encoding: chunked" not in head:
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
            out.append(data[:length])
            data = data[length:]
            continue
        while data:
            size, mark, data = data.partition(b"\r\n")
            assert mark and 0 <= int(size, 16) <= len(data) - 2, "half a chunk"
            chunk, data = data[: int(size, 16)], data[int(size, 16) :]
            assert data[:2] == b"\r\n"
            out.append(chunk)
            data = data[2:]
            if not chunk:
                out.append(b"END")
                break
    return b"".join(out)


def whole(
    words: int,
    cached: int | None = None,
    prompt: int = 11,
    *,
    text: str | None = None,
    reason: str = "stop",
    **more: Any,
) -> bytes:
    """A plain answer as an engine writes it."""
    message = {"role": "assistant", "content": "w " * words if text is None else text}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason, "stop_reason": None}
    figures: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": words, "total_tokens": prompt + words}
    if cached is not None:
        figures["prompt_tokens_details"] = {"cached_tokens": cached}
    whole = {"id": "e", "created": 1, "model": "m", "choices": [choice], "usage": figures, **more}
    return json.dumps(whole, separators=(",", ":")).encode()


def streamed(words: list[str], running: bool, *, done: bool = True, figure: int | None = None) -> list[bytes]:
    """An answer's events, each in a chunk of its own, and the end of the body."""
    events = [event(chat_chunk({"role": "assistant", "content": ""}))]
    for number, word in enumerate(words, 1):
        events.append(event(chat_chunk({"content": word}, **(usage(11, number) if running else {}))))
    events.append(event(chat_chunk({}, "stop")))
    events.append(event({**chat_chunk({}), "choices": [], **usage(11, len(words) if figure is None else figure, 3)}))
    if done:
        events.append(event("[DONE]"))
    return [b"%x\r\n%b\r\n" % (len(each), each) for each in events] + [b"0\r\n\r\n"]


BODIES = st.fixed_dictionaries(
    {"model": st.sampled_from(["acme/model"] * 9 + ["acme/other"])},
    optional={
        "max_tokens": st.sampled_from([1, 7, 64, 5000, 10**9]),
        "max_completion_tokens": st.sampled_from([3, 80]),
        "temperature": st.sampled_from([0, 0.5, 1]),
        "top_p": st.just(0.9),
        "stop": st.sampled_from(["x", ["a", "b"]]),
        "seed": st.just(4),
        "user": st.just("u"),
        "n": st.just(1),
        "logprobs": st.just(True),
    },
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "system", "assistant"]), "content": st.text(max_size=30)},
        optional={"name": st.just("bob")},
    ),
    min_size=1,
    max_size=3,
)


TEXTS = st.lists(st.one_of(st.text(max_size=5), st.sampled_from(["a", '"', "\\", "w "])), min_size=1, max_size=5)
GOOD = st.tuples(
    st.builds(
        lambda words, cached, text, reason, id_: plain(200, whole(words, cached, text=text, reason=reason, id=id_)),
        st.integers(1, 5),
        st.sampled_from([None, 0, 5]),
        st.one_of(st.none(), st.text(max_size=20), st.sampled_from(['say "f"', "\\", 'x"},"logprobs":null', "é", ""])),
        st.sampled_from(["stop", "stop", "stop", "length"]),
        st.sampled_from(["e", "chatcmpl-" + "7" * 32, 'o"dd', "\n"]),
    ),
    st.builds(lambda words, running: STREAM + b"".join(streamed(words, running)), TEXTS, st.booleans()),
)
ODD = st.tuples(
    st.one_of(
        st.builds(lambda words, cached: plain(200, whole(words, cached)), st.integers(0, 70), st.sampled_from([0, 50])),
        st.builds(
            lambda odd, text: plain(200, whole(2, text="<>").replace(*odd).replace(b"<>", text)),
            st.sampled_from(
                [
                    (b"", b""),
                    (b'"e"', b'"e\n"'),
                    (b'"e"', b'"\xff"'),
                    (b'"stop"', b'"abort"'),
                    (b'"stop"', b"null"),
                    (b":11", b":011"),
                    (b":2,", b":-2,"),
                    (b":2,", b":2.0,"),
                    (b'"created":1', b'"created":01'),
                    (b"}}", b'},"error":{}}'),
                    (b'"usage":{', b'"usage":{"x":"\xff",'),
                    (b"}}", b',"completion_tokens":3}}'),
                    (b"}}", b"}} "),
                    (b"}}", b"}"),
                    (b'"index":0', b'"index":1'),
                    (b'"message":{', b'"message":{"refusal":"no",'),
                    (b'"usage"', b'"used"'),
                ]
            ),
            st.sampled_from(
                [
                    b"w",
                    b"",
                    b"\n",
                    b"\x00",
                    b"\x7f",
                    b"\xff",
                    b"\xc3\xa9",
                    b"\\",
                    b"\\u12",
                    b"\\ud800",
                    b'\\"',
                    b'"',
                    b'","content":"y',
                    b'"},"logprobs":null,"finish_reason":"stop","stop_reason":null}],"usage":{"prompt_tokens":1,"completion_tokens":1}}',
                    b'"},"finish_reason":"stop"},{"index":1,"message":{"role":"assistant","content":"',
                ]
            ),
        ),
        st.sampled_from(
            [plain(200, b"{}"), plain(500, b"{}"), plain(400, b'{"error":{"message":"x"}}'), plain(429, b"{}")]
        ),
    ),
    st.one_of(
        st.builds(
            lambda words, figure: STREAM + b"".join(streamed(words, True, figure=figure)), TEXTS, st.integers(0, 9)
        ),
        st.builds(lambda words: STREAM + b"".join(streamed(words, False, done=False)), TEXTS),
        st.builds(lambda words: STREAM + b"".join(streamed(words, False)[:-4]), TEXTS),
        st.sampled_from([plain(200, b"{}"), plain(500, b"{}"), plain(400, b'{"error":{"message":"x"}}')]),
    ),
)
LIKE = [
    "a",
    "bc",
    "",
    "d e",
    'say "f"',
    "\\\\",
    "é",
    "7",
    "x" * 40,
]  # texts of which most need no reading once one was read
CUTS = st.one_of(st.just([]), st.lists(st.integers(1, 1500), max_size=4))


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    usual = draw(st.integers(0, 4)) > 0
    body: dict[str, Any] = {
        "model": "acme/model",
        "messages": [{"role": "user", "content": draw(st.one_of(st.sampled_from(LIKE), st.text(max_size=9)))}],
    }
    body.update({"max_tokens": draw(st.sampled_from([7, 7, 64]))} if usual else draw(BODIES))
    if not usual:
        body["messages"] = draw(MESSAGES)
    if draw(st.booleans()):
        body["stream"] = True
        if draw(st.booleans()):
            body["stream_options"] = {"include_usage": draw(st.booleans())}
    return body


REQUESTS = st.tuples(st.integers(0, 2), bodies(), st.sampled_from([0, 0, 0, 40, 230]))


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    """What three clients, the engine, the clock and the control plane do, one after the other."""
    out: list[tuple[Any, ...]] = []
    for _ in range(draw(st.integers(2, 9))):
        kind = draw(
            st.sampled_from(
                ["ask", "asks"] * 4 + ["answer", "answers"] * 4 + ["leave", "wait", "drop", "snapshot", "full", "cut"]
            )
        )
        if kind == "ask":
            out.append((kind, *draw(REQUESTS)))
        elif kind == "asks":
            out.append((kind, 0, draw(st.lists(REQUESTS, min_size=2, max_size=4))))
        elif kind == "answers":
            answer = st.tuples(GOOD if draw(st.integers(0, 3)) else ODD, CUTS)
            out.append((kind, 0, draw(st.lists(answer, min_size=1, max_size=3))))
        elif kind == "answer":
            answer = draw(GOOD if draw(st.integers(0, 4)) else ODD)
            out.append((kind, draw(st.integers(0, 2)), answer, draw(CUTS)))
        else:
            out.append((kind, draw(st.integers(0, 2)), draw(st.sampled_from([0.05, 0.3, 20.0]))))
    return out


def play(way: Way, script: list[tuple[Any, ...]]) -> None:
    for kind, number, what, *more in script:
        way.core.clock += 0.013
        getattr(way, kind)(number, what, *more)


def run(script: list[tuple[Any, ...]], world: World, engine: str, *, fast: bool) -> tuple[dict[str, Any], int]:
    """What is there at the end, and how many requests came the short way."""
    with tempfile.TemporaryDirectory() as folder:
        way = Way(Path(folder), world, fast=fast)
        form = plain(200, whole(3)) if engine != "llamacpp" else STREAM + chunked(*streamed_events(["a"]))
        way.warm(3, form)
        play(way, script)
        state = way.state()
        way.core.close()
        return state, way.short


def _rounded(value: Any) -> Any:
    """Sums of seconds depend on the order in their last digits."""
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(each) for each in value]
    return round(value, 9) if isinstance(value, float) else value


@settings(max_examples=150, deadline=None)
@given(
    steps(),
    st.sampled_from(["vllm", "llamacpp", "openai"]),
    st.booleans(),
    st.sampled_from([(1, None), (1, 2), (3, 2)]),
)
def test_both_ways_are_the_same(
    script: list[tuple[Any, ...]], engine: str, limited: bool, replicas: tuple[int, int | None]
) -> None:
    world = a_world(engine, replicas=replicas[0], slots=replicas[1], limited=limited)
    before = world.version, world.issued_at
    short, _ = run(script, world, engine, fast=True)
    world.version, world.issued_at = before
    long, none = run(script, world, engine, fast=False)
    assert none == 0
    for name, one in short.items():
        assert _rounded(one) == _rounded(long[name]), name


def streamed_events(words: list[str]) -> list[bytes]:
    return [each.partition(b"\r\n")[2][:-2] for each in streamed(words, False)[:-1]]


# --- what a script cannot bring about


BODY = {"model": "acme/model", "messages": [{"role": "user", "content": "x"}], "max_tokens": 7}


@pytest.fixture
def way(tmp_path: Path) -> Iterator[Way]:
    """Two clients and two idle connections to the engine."""
    made = Way(tmp_path, a_world(), fast=True)
    made.warm(2, plain(200, whole(3)))
    made.core.events.clear()
    yield made
    made.core.close()


def is_empty(way: Way) -> bool:
    gateway = way.core.gateway
    held = [pool.in_use for pool in gateway.gate.pools] + [purse.reserved for purse in gateway.gate.purses]
    return not (gateway.exchanges or gateway.router.in_flight() or gateway.spool.running() or any(held))


def test_records_of_several_requests_are_one_write_and_come_before_their_bytes(way: Way) -> None:
    due: list[Any] = []
    way.core.gateway.fast.soon = due.append
    for each in way.core.dialled:
        each.wire.out = b""
    way.ask(0, BODY)
    way.ask(1, BODY)
    assert len(due) == 1
    written: list[bytes] = []
    write = way.core.gateway.spool.write

    def watch(records: bytes, settled: int = 0) -> None:
        assert [each.wire.out for each in way.core.dialled] == [b"", b""], "nothing goes out before it is on record"
        write(records, settled)
        written.append(records)

    way.core.gateway.spool.write = watch  # type: ignore[method-assign]
    due.pop()()
    way.core.gateway.spool.write = write  # type: ignore[method-assign]
    assert len(written) == 1 and len(unpacked(written[0])) == 2
    assert all(isinstance(client._exchange, FastExchange) for client, _ in way.clients)
    assert all(len(each.requests) == 1 for each in way.core.dialled)
    for number in (1, 0):
        way.answer(number, (plain(200, whole(2)), b""), [])
    assert [wire.out for _, wire in way.clients] == [b"", b""] and not way.core.events
    due.pop()()
    assert len(way.core.events) == 2 and all(b" 200 OK" in wire.out for _, wire in way.clients)
    assert is_empty(way)


@pytest.mark.parametrize(
    "limits", [None, Limits(rpm=1000), Limits(tpm=400_000), Limits(rpm=1000, tpm=400_000)], ids=str
)
def test_requests_and_answers_that_are_alike_are_taken_without_being_read(
    limits: Limits | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = a_world(limited=False)
    world.routes[0] = msgspec.structs.replace(world.routes[0], limits=limits)
    way = Way(tmp_path, world, fast=True)
    way.warm(2, plain(200, whole(3)))
    way.core.events.clear()

    def read(*_: Any) -> None:
        raise AssertionError("it was read")

    monkeypatch.setattr(FastExchange, "take", read)
    monkeypatch.setattr(FastExchange, "take_in", read)
    texts = ["one", "another", "", "a third that is longer", "x" * 900]
    replies = ["yes", 'he said "no"', "line\nfeed", "é", ""]
    for text, reply in zip(texts, replies, strict=True):
        body = {**BODY, "messages": [{"role": "user", "content": text}]}
        way.asks(0, [(0, body, 0), (1, body, 0)])
        answer = plain(200, whole(2, text=reply)), b""
        way.answers(0, [(answer, []), (answer, [])])
    asked = [json.loads(each.body)["messages"][0]["content"] for each in way.core.asked]
    assert all(asked.count(text) == 2 for text in texts)
    for _, wire in way.clients:
        assert [each.json["choices"][0]["message"]["content"] for each in answers(wire.out)] == replies
    way.core.gateway.fast.work()
    assert len(way.core.events) == 10 and is_empty(way)
    way.core.close()


def test_a_request_that_cannot_be_taken_in_ends_its_own_connection_alone(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    due: list[Any] = []
    way.core.gateway.fast.soon = due.append
    take = FastExchange.take

    def fails(exchange: FastExchange, data: bytes, body: bytes | None = None) -> bool:
        if b"fault" in data:
            raise ZeroDivisionError
        return take(exchange, data, body)

    monkeypatch.setattr(FastExchange, "take", fails)
    way.ask(0, {**BODY, "user": "fault"})
    way.ask(1, BODY)
    with pytest.raises(ZeroDivisionError):
        due.pop(0)()
    for call in due:
        call()
    assert way.clients[0][1].aborted and not way.clients[1][1].aborted
    assert len(way.busy()) == 1 and len(way.core.gateway.exchanges) == 1


def test_a_client_that_leaves_behind_its_request_is_noticed_with_it(way: Way) -> None:
    with way.together():
        way.ask(0, BODY)
        way.leave(0, 0)
        way.ask(1, BODY)
    assert [event.outcome for event in way.core.events] == ["client_closed"]
    with way.together():
        way.say(way.busy()[0], (plain(200, whole(2)), b""), [])
        way.leave(1, 0)
    assert [event.outcome for event in way.core.events] == ["client_closed", "ok"], "its answer had come"
    assert is_empty(way)


def test_a_connection_that_ends_behind_the_answer_has_answered(way: Way) -> None:
    way.ask(0, BODY)
    with way.together():
        (each,) = way.busy()
        way.say(each, (plain(200, whole(2)), b""), [])
        each.upstream.lost()
    assert [event.outcome for event in way.core.events] == ["ok"] and b" 200 OK" in way.clients[0][1].out
    assert len(way.core.dialled) == 2 and is_empty(way)


def test_bytes_behind_an_answer_end_the_connection(way: Way) -> None:
    way.ask(0, BODY)
    with way.together():
        (each,) = way.busy()
        way.say(each, (plain(200, whole(2)), b""), [])
        each.send(b"HTTP/1.1 200 OK\r\n")
    assert each.wire.aborted and b" 200 OK" in way.clients[0][1].out
    way.ask(1, BODY)
    assert each not in way.busy() and len(way.busy()) == 1


def test_a_connection_that_ends_before_the_request_goes_out_is_no_loss(way: Way) -> None:
    due: list[Any] = []
    way.core.gateway.fast.soon = due.append
    way.ask(0, BODY)
    way.ask(1, BODY)

    def closed(data: bytes) -> None:
        raise RuntimeError("the transport is closed")

    stays, gone = way.core.dialled
    before = len(stays.requests)
    gone.wire.write = closed  # type: ignore[method-assign]
    due.pop()()
    assert len(stays.requests) == before + 1, "the other went out"
    gone.upstream.lost()
    assert len(way.core.dialled) == 3 and len(way.core.engine.requests) == 1, (
        "it was asked anew, on a connection of its own"
    )
    for each in way.busy():
        way.say(each, (plain(200, whole(2)), b""), [])
    for call in due:
        call()
    assert [event.outcome for event in way.core.events] == ["ok", "ok"] and is_empty(way)


def test_without_room_on_the_disk_nothing_is_sent_and_nothing_stays_taken(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = [len(each.requests) for each in way.core.dialled]
    monkeypatch.setattr(os, "write", lambda fd, data: 0)
    way.ask(0, BODY)
    monkeypatch.undo()
    assert b" 503 " in way.clients[0][1].out
    assert [len(each.requests) for each in way.core.dialled if each.wire.open] <= sent
    assert not way.core.events and is_empty(way)


def test_an_answer_whose_record_has_no_room_is_given_and_recorded_later(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    way.ask(0, BODY)
    monkeypatch.setattr(os, "write", lambda fd, data: 0)
    way.answer(0, (plain(200, whole(2)), b""), [])
    assert b" 200 OK" in way.clients[0][1].out and way.core.gateway.spool.late == 1
    monkeypatch.undo()
    way.core.gateway.spool.retry()
    assert way.core.gateway.spool.late == 0 and is_empty(way)


def test_a_body_that_differs_from_the_last_in_plain_text_alone_need_not_be_read(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[bytes] = []
    decode = fast.decode

    def watch(body: bytes) -> Any:
        read.append(body)
        return decode(body)

    monkeypatch.setattr(fast, "decode", watch)
    texts = ["one", "two", "three", 'a "quoted" word', "tab\t", "\u00e9", "\\", "four", ""]
    for text in texts:
        way.ask(0, {**BODY, "messages": [{"role": "user", "content": text}]})
        way.answer(0, (plain(200, whole(2)), b""), [])
    asked = [json.loads(each.body)["messages"][0]["content"] for each in way.core.asked][-len(texts) :]
    assert asked == texts
    found = [json.loads(body)["messages"][0]["content"] for body in read]
    assert [text for text in found if text not in texts[:2]] == texts[3:7]


def test_a_text_that_closes_itself_is_read_as_what_it_is(way: Way) -> None:
    """What stands between the quotes of a sample decides nothing but that text."""
    good = {**BODY, "messages": [{"role": "user", "content": "PLACE"}]}
    template = json.dumps(good)
    for text in ["one", "two"]:
        way.ask(0, {**BODY, "messages": [{"role": "user", "content": text}]})
        way.answer(0, (plain(200, whole(2)), b""), [])
    client, wire = way.clients[0]
    before = len(way.core.asked)
    for injected in ['x", "name": "y', 'x"}], "chat_template": "y', "x\ny", "\x7f", "x\\"]:
        if wire.open:
            data = template.replace("PLACE", injected).encode()
            client.received(raw_post("/v1/chat/completions", data, way.core.world.token))
            for each in [x for x in way.core.dialled if x.upstream.fast or x.upstream._asker]:
                each.send(plain(200, whole(2)))
    sent = [each.body for each in way.core.asked[before:]]
    assert all(b"chat_template" not in each for each in sent)
    for body in sent:
        content = json.loads(body)["messages"][0]["content"]
        assert content in {"x", "\x7f"}
