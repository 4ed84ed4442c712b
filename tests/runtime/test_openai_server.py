"""Our OpenAI server for engines that are libraries: what it reads, refuses, writes, and whom it lets wait. The model is one of words."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth_runtime.servers.onnx_decoder import BadConfig, check
from berth_runtime.servers.openai.app import App
from berth_runtime.servers.openai.asks import decode_body, read_ask
from berth_runtime.servers.openai.decoder import Drawn, Refusal, Sampling, SequenceFailed
from berth_runtime.servers.openai.http import Server
from berth_runtime.servers.openai.stops import Stops
from berth_runtime.servers.openai.worker import Worker
from tests.runtime.agents import SECRET, call, eventually
from tests.runtime.fakes import Going, Words

TEXTS = st.text(alphabet="abc", max_size=30)
STOPS = st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=3).map(tuple)


@given(text=TEXTS, stops=STOPS, cuts=st.lists(st.integers(0, 30), max_size=6))
@settings(max_examples=300, deadline=None)
def test_an_answer_ends_before_the_first_stop_string_however_it_is_cut(
    text: str, stops: tuple[str, ...], cuts: list[int]
) -> None:
    edges = sorted({0, len(text), *(cut for cut in cuts if cut <= len(text))})
    pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
    reader = Stops(stops)
    shown = "".join(reader.push(piece) for piece in pieces)
    found = reader.found
    shown += "" if found else reader.finish()
    first = min((end for end in range(len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)), default=None)
    assert found == (first is not None)
    if first is None:
        assert shown == text
    else:
        assert text.startswith(shown)
        assert not any(stop in shown for stop in stops)
        assert any(text.startswith(shown + stop) for stop in stops)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"n": 2}, "n"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"presence_penalty": -1}, "presence_penalty"),
        ({"min_p": 0.1}, "min_p"),
        ({"logit_bias": {"1": 2}}, "logit_bias"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"stop": ["a"] * 9}, "stop"),
        ({"stop": ""}, "stop"),
        ({"messages": [{"role": "user"}]}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
    ],
)
def test_what_it_cannot_do_is_refused_and_named(body: dict[str, Any], param: str) -> None:
    asked = {"messages": [{"role": "user", "content": "CANARY"}], **body}
    with pytest.raises(Refusal) as refusal:
        read_ask(decode_body(json.dumps(asked).encode(), chat=True), Words(64))
    assert refusal.value.param == param
    assert "CANARY" not in refusal.value.message


@pytest.mark.parametrize(
    "raw", [b"", b"CANARY", b'{"prompt": "CANARY', b'{"prompt": "x", "CANARY": 1}', b"[" * 100_000, b"\xff"]
)
def test_what_is_no_request_is_refused_without_its_text(raw: bytes) -> None:
    with pytest.raises(Refusal) as refusal:
        decode_body(raw, chat=False)
    assert "CANARY" not in refusal.value.message
    assert refusal.value.__cause__ is None and refusal.value.__suppress_context__


@pytest.mark.parametrize(
    ("prompt", "refused"),
    [
        ("", True),
        ([], True),
        ([-1], True),
        ([1 << 40], True),
        ([1.5], True),
        (["a", "b"], True),
        ([[1, 2]], False),
        (["a"], False),
    ],
)
def test_a_prompt_is_one_text_or_one_list_of_its_own_tokens(prompt: Any, refused: bool) -> None:
    body = decode_body(json.dumps({"prompt": prompt}).encode(), chat=False)
    if refused:
        with pytest.raises(Refusal):
            read_ask(body, Words(64))
    else:
        assert read_ask(body, Words(64)).prompt


def test_an_answer_never_outgrows_the_context() -> None:
    def limit(**body: Any) -> int:
        asked = {"messages": [{"role": "user", "content": "a b"}], **body}
        return read_ask(decode_body(json.dumps(asked).encode(), chat=True), Words(64)).sampling.max_tokens

    room = 64 - len(["user", "a", "b", "assistant"])
    assert limit() == limit(max_tokens=1000) == room
    assert limit(max_tokens=5, max_completion_tokens=3) == 3
    with pytest.raises(Refusal) as refusal:
        limit(messages=[{"role": "user", "content": "a " * 64}])
    assert (refusal.value.code, refusal.value.facts["n_ctx"]) == ("context_length_exceeded", 64)


class Failing(Words):
    """Sequences whose prompt says so fail; others go on."""

    def start(self, prompt: Any, sampling: Sampling) -> Any:
        going = super().start(prompt, sampling)
        if self.show(prompt[-1]).strip() == "fail":
            return Fails()
        return going


class Fails:
    def step(self) -> Drawn:
        raise SequenceFailed

    def close(self) -> None:
        pass


class Served:
    def __init__(self, slots: int = 2, queue: int = 2) -> None:
        self.ended = threading.Event()
        self.worker = Worker(Failing(512), slots, self.ended.set, queue)
        threading.Thread(target=self.worker.run, daemon=True).start()
        ready = threading.Event()
        self.port = 0

        async def listen() -> None:
            app = App(self.worker, Failing(512), "m", SECRET, {})
            app._decoder = self.worker._decoder
            self.port = await Server(app.handle).listen("127.0.0.1", 0)
            ready.set()
            await asyncio.Event().wait()

        threading.Thread(target=lambda: asyncio.run(listen()), daemon=True).start()
        assert ready.wait(30)

    def ask(self, prompt: str, **body: Any) -> tuple[int, Any]:
        status, raw, _ = call(self.port, "POST", "/v1/completions", {"prompt": prompt, **body})
        return status, json.loads(raw)

    def open(self, tokens: int) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        body = json.dumps({"prompt": "x", "max_tokens": tokens})
        connection.request("POST", "/v1/completions", body, {"Authorization": f"Bearer {SECRET}"})
        return connection


@pytest.fixture
def served() -> Iterator[Served]:
    yield Served()


def test_more_than_may_wait_are_told_to_come_again(served: Served) -> None:
    working = [served.open(300) for _ in range(2)]
    eventually(lambda: served.worker.counters.running == 2, "both are worked on")
    waiting = [served.open(300) for _ in range(2)]
    eventually(lambda: served.worker.counters.queued == 2, "two wait")
    status, _, headers = call(served.port, "POST", "/v1/completions", {"prompt": "x"})
    assert (status, headers["retry-after"]) == (503, "1")
    for connection in (*working, *waiting):
        connection.close()
    eventually(lambda: (served.worker.counters.running, served.worker.counters.queued) == (0, 0), "all are gone")
    assert served.worker.counters.requests["abort"] == 4


def test_probabilities_of_a_completion_tell_where_each_token_begins(served: Served) -> None:
    _, body = served.ask("The capital of France is", max_tokens=3, logprobs=1)
    choice = body["choices"][0]
    assert choice["logprobs"]["tokens"] == [" Paris", " .", " It"]
    assert choice["logprobs"]["text_offset"] == [0, 6, 8]
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]


def test_a_sequence_that_fails_takes_nobody_with_it(served: Served) -> None:
    status, body = served.ask("fail")
    assert (status, body["error"]["code"]) == (500, "engine_failed")
    assert served.ask("x", max_tokens=2)[0] == 200
    raw = call(served.port, "POST", "/v1/completions", {"prompt": "fail", "stream": True})[1]
    assert b'"engine_failed"' in raw and b"[DONE]" not in raw
    assert not served.ended.is_set()


def test_when_all_fail_the_engine_ends(served: Served) -> None:
    for _ in range(4):
        served.ask("fail")
    assert served.ended.wait(30)


@pytest.mark.parametrize(
    "raw",
    [
        b"GARBAGE\r\n\r\n",
        b"GET / HTTP/3\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999999\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFF\r\n",
        b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nA: " + b"x" * 70_000 + b"\r\n\r\n",
    ],
)
def test_hostile_http_ends_its_connection_and_nothing_else(served: Served, raw: bytes) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=30) as connection:
        connection.sendall(raw)
        answer = connection.recv(100)
        assert answer == b"" or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 401"))
    assert served.ask("x", max_tokens=1)[0] == 200


@pytest.mark.threat("M6")
@pytest.mark.parametrize(
    "config",
    [
        {"model": {"decoder": {"filename": "../../x.onnx"}}},
        {"model": {"decoder": {"filename": "/etc/passwd"}}},
        {"model": {"encoder": {"config_filename": "a/b"}}},
        {"model": {"decoder": {"session_options": {"custom_ops_library": "x.so"}}}},
        {"model": {"decoder": {"session_options": {"provider_options": [{"evil": {}}]}}}},
        {"model": {"decoder": {"pipeline": [{"x": {"filename": "a\\..\\b"}}]}}},
        {"engine": {"register_custom_ops": "x"}},
    ],
)
def test_an_onnx_folder_that_names_paths_or_libraries_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(BadConfig):
        check(config)
    check({"model": {"decoder": {"filename": "model.onnx", "session_options": {"provider_options": [{"cuda": {}}]}}}})


def test_the_words_model_is_what_the_tests_think() -> None:
    words = Words(10)
    going = Going(words, "is", Sampling(max_tokens=1))
    assert words.show(going.step().token) == " Paris"
