"""A stream of a form that is known is relayed as one that is read, however it is cut and whatever becomes of it."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth_gateway.fast_stream import FastStream
from berth_gateway.flat_stream import FlatStream
from tests.gateway.harness import World, event, plain, timings, usage
from tests.gateway.test_fast import STREAM, Way, _rounded, a_world, whole

BODY = {"model": "acme/model", "messages": [{"role": "user", "content": "x"}], "max_tokens": 64, "stream": True}
STYLES = ("vllm", "llamacpp", "joined")


def chunk_of(style: str, number: int, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """A chunk of the stream with this number."""
    if style == "llamacpp":
        return {
            "choices": choices, "created": 1_796_065_327 + number, "id": f"chatcmpl-{number:032x}", "model": "/srv/m.gguf",
            "system_fingerprint": "b0", "object": "chat.completion.chunk", **more,
        }  # fmt: skip
    begun = {"id": f"chatcmpl-{number:08d}", "object": "chat.completion.chunk", "created": 17 + number, "model": "m"}
    return {**begun, "choices": choices, **more}


def events_of(
    style: str, number: int, words: list[str], *, running: bool = False, reason: str = "stop", figure: int | None = None
) -> list[bytes]:
    """An answer's events as an engine writes them, without [DONE]."""

    def made(delta: dict[str, Any], finish: str | None, done: int, **choice: Any) -> bytes:
        more = (timings(11, done) if style == "llamacpp" else usage(11, done)) if running and done else {}
        one: dict[str, Any] = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, **choice}
        if style == "llamacpp":
            one = {"finish_reason": finish, "index": 0, "delta": delta}
        return event(chunk_of(style, number, [one], **more))

    if style == "joined":  # the first text comes with the role, the last with the reason
        out = [made({"role": "assistant", "content": words[0]}, None, 1)]
        out += [made({"content": word}, None, at) for at, word in enumerate(words[1:-1], 2)]
        out.append(made({"content": words[-1]}, reason, len(words)))
    else:
        out = [made({"role": "assistant", "content": "" if style == "vllm" else None}, None, 0)]
        out += [made({"content": word}, None, at) for at, word in enumerate(words, 1)]
        out.append(
            made({"content": ""}, reason, len(words), stop_reason=None) if style == "vllm" else made({}, reason, 0)
        )
    told = usage(11, len(words) if figure is None else figure, 3)
    return [*out, event(chunk_of(style, number, [], **told))]


def framed(events: list[bytes], *, done: bool = True) -> list[bytes]:
    """HTTP chunks of one event each, and the end of the body."""
    events = [*events, event("[DONE]")] if done else events
    return [b"%x\r\n%b\r\n" % (len(each), each) for each in events] + [b"0\r\n\r\n"]


class Forms:
    """What streams were taken as: the classes of the first states, by way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.flat = self.thawed = 0
        begins, thawed = FlatStream._begins, FlatStream.thawed

        def watch_begin(stream: FlatStream, data: bytes) -> bytes:
            left = begins(stream, data)
            self.flat += len(left) < len(data)
            return left

        def watch_thaw(stream: FlatStream) -> FastStream:
            self.thawed += 1
            return thawed(stream)

        monkeypatch.setattr(FlatStream, "_begins", watch_begin)
        monkeypatch.setattr(FlatStream, "thawed", watch_thaw)


@pytest.fixture
def forms(monkeypatch: pytest.MonkeyPatch) -> Iterator[Forms]:
    yield Forms(monkeypatch)


def send(way: Way, pieces: list[bytes]) -> None:
    busy = [each for each in way.core.dialled if each.upstream.fast or each.upstream._asker]
    for piece in pieces:
        if piece and busy[0].wire.open:
            busy[0].send(piece)


def teach(way: Way, style: str, *, running: bool) -> None:
    way.ask(0, BODY)
    send(way, [STREAM, *framed(events_of(style, 0, ["four"] * 4, running=running))])


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("running", [False, True])
def test_the_second_stream_is_taken_by_its_form(tmp_path: Path, forms: Forms, style: str, running: bool) -> None:
    way = Way(tmp_path, a_world(), fast=True)
    way.warm(1, plain(200, whole(3)))
    teach(way, style, running=running)
    assert not forms.flat
    for number, reason in enumerate(("stop", "length", "stop"), 1):
        client, wire = way.clients[0]
        wire.out = b""
        way.ask(0, {**BODY, "stream_options": {"include_usage": number > 1}})
        send(way, [STREAM, *framed(events_of(style, number, ["w", "ord", "s", "!"], running=running, reason=reason))])
        assert forms.flat == number and not forms.thawed
        assert wire.out.count(b"data: {") == (6 if style != "joined" else 4) + (number > 1)
        assert wire.out.count(b'"finish_reason":"%b"' % reason.encode()) == 1 and b'"stop_reason"' not in wire.out
        assert b"chatcmpl-00" not in wire.out, "what is the engine's own stays here"
        assert wire.out.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert (b'"total_tokens"' in wire.out) is (number > 1)
        assert not client._exchange and len(way.core.dialled) == 1
    assert [(each.prompt_tokens, each.cached_tokens, each.completion_tokens) for each in way.core.events[-3:]] == [
        (11, 3, 4)
    ] * 3
    way.core.close()


WORDS = st.lists(
    st.one_of(
        st.text(max_size=5), st.sampled_from(["a", " b", '"', "\\", "\n", "é", "x" * 300, '"finish_reason":"stop"', ""])
    ),
    min_size=2,
    max_size=6,
)
ODDITIES = st.sampled_from(
    [
        "",
        "",
        "",
        "",
        "other style",
        "no done",
        "fault",
        "more choices",
        "too much",
        "no usage",
        "leave",
        "lost",
        "tool_calls",
        "wait",
        "cut",
        "snapshot",
        "full",
    ]
)


@st.composite
def streams(draw: st.DrawFn) -> list[tuple[str, list[bytes], str]]:
    """Three streams behind one that was learned from: pieces, and what happens behind the second half of them."""
    style, running = draw(st.sampled_from(STYLES)), draw(st.booleans())
    out = []
    for number in range(1, 4):
        odd = draw(ODDITIES)
        words = draw(WORDS)
        what = draw(st.sampled_from(STYLES)) if odd == "other style" else style
        events = events_of(
            what, number, words, running=running, figure=len(words) - 1 if odd == "too much" else None,
            reason=odd if odd == "tool_calls" else draw(st.sampled_from(["stop", "length"])),
        )  # fmt: skip
        at = draw(st.integers(0, len(events)))
        if odd == "fault":
            events.insert(at, event({"error": {"message": "secret"}}))
        if odd == "more choices":
            events.insert(
                at, event(chunk_of(style, number, [{"index": 1, "delta": {"content": "x"}, "finish_reason": None}]))
            )
        if odd == "no usage":
            events.pop()
        pieces = [STREAM, *framed(events, done=odd != "no done")]
        data = b"".join(pieces)
        how = draw(st.integers(0, 2))
        if how == 1:
            cuts = sorted(draw(st.sets(st.integers(1, len(data) - 1), max_size=5)))
            pieces = [data[a:b] for a, b in itertools.pairwise([0, *cuts, len(data)])]
        elif how == 2:  # whole chunks, several in a piece
            joins = draw(st.lists(st.booleans(), min_size=len(pieces), max_size=len(pieces)))
            joined: list[bytes] = []
            for piece, join in zip(pieces, joins, strict=True):
                if join and joined:
                    joined[-1] += piece
                else:
                    joined.append(piece)
            pieces = joined
        out.append((style, pieces, odd))
    return [("running" if running else style, [], style), *out]


def played(script: list[tuple[str, list[bytes], str]], world: World, *, fast: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        way = Way(Path(folder), world, fast=fast)
        way.warm(2, plain(200, whole(3)))
        teach(way, script[0][2], running=script[0][0] == "running")
        for number, (_, pieces, odd) in enumerate(script[1:]):
            way.core.clock += 0.02
            at = 1 if not way.clients[0][1].open else 0
            if not way.clients[at][1].open:
                break
            way.ask(at, {**BODY, "stream_options": {"include_usage": number % 2 == 0}})
            half = len(pieces) // 2
            busy = [each for each in way.core.dialled if each.upstream.fast or each.upstream._asker]
            send(way, pieces[:half])
            if odd == "leave":
                way.leave(at, 0)
            elif odd == "lost" and busy:
                busy[0].upstream.lost()
                continue
            elif odd == "wait":
                way.core.pass_time(1.5)
            elif odd in ("cut", "snapshot", "full"):
                getattr(way, odd)(at, 0)
            if busy and busy[0].upstream in [
                each.upstream for each in way.core.dialled if each.upstream.fast or each.upstream._asker
            ]:
                send(way, pieces[half:])
        state = way.state()
        way.core.close()
        return state


@settings(max_examples=60, deadline=None)
@given(streams())
def test_a_known_form_changes_nothing(script: list[tuple[str, list[bytes], str]]) -> None:
    world = a_world()
    before = world.version, world.issued_at
    short = played(script, world, fast=True)
    world.version, world.issued_at = before
    long = played(script, world, fast=False)
    for name, one in short.items():
        assert _rounded(one) == _rounded(long[name]), name
