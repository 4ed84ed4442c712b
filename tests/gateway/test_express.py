"""The short way of chunks gives what the long way gives, whatever comes and however it is cut."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from berth_gateway.contract import CountedBy, UsageEvent
from tests.gateway.core import ENGINE_HEAD, Core, answers
from tests.gateway.harness import World, chat_chunk, chat_events, event, timings, usage

TEXT = st.one_of(
    st.text(max_size=12),
    st.sampled_from(['"finish_reason":null', '],"usage":{', "}\n\n", '"finish_reason":"', "\\", "\u2028", "data: "]),
)


def plain_chunk(word: str, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """As vLLM and most others write it: what is constant comes first, nothing behind the choices."""
    choice = {"index": 0, "delta": {"content": word}, "logprobs": None, "finish_reason": finish}
    return {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice], **more}


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """HTTP chunks of one answer: mostly one event each, sometimes several, or half of one."""
    words = draw(st.lists(TEXT, min_size=1, max_size=12))
    llama = draw(st.booleans())
    events = []
    for n, word in enumerate(words, 1):
        chunk = chat_chunk({"content": word}, **timings(5, n)) if llama else plain_chunk(word)
        if draw(st.integers(0, 9)) == 0:
            chunk = draw(st.sampled_from([{**chunk, "model": "other"}, plain_chunk(word, **usage(5, n))]))
        events.append(event(chunk))
    events += [event(plain_chunk("", "stop")), event({**plain_chunk(""), "choices": [], **usage(5, len(words))})]
    data = b"".join([*events, event("[DONE]")])
    if draw(st.booleans()):
        return [*events, event("[DONE]")]
    cuts = sorted(draw(st.sets(st.integers(1, len(data) - 1), max_size=6)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def told(chunks: list[bytes], pieces: list[bytes]) -> tuple[list[Any], UsageEvent]:
    """What the client read, and the event, when the engine's bytes come in these pieces."""
    with tempfile.TemporaryDirectory() as folder:
        world = World()
        world.route("acme/model", 7001, engine="vllm")
        core = Core(Path(folder), world)
        try:
            _, wire = core.ask(stream=True, stream_options={"include_usage": True})
            for piece in pieces:
                core.engine.send(piece)
            body = answers(wire.out)[0].body.decode()
            return [_without_ids(line) for line in body.split("\n\n") if line], core.events[0]
        finally:
            core.close()


def _without_ids(line: str) -> Any:
    data = line.removeprefix("data: ")
    return data if data == "[DONE]" else {k: v for k, v in json.loads(data).items() if k not in ("id", "error")}


@settings(max_examples=60, deadline=None)
@given(streams(), st.data())
def test_the_short_way_and_the_long_way_are_the_same(chunks: list[bytes], data: st.DataObject) -> None:
    framed = [b"%x\r\n%b\r\n" % (len(c), c) for c in chunks] + [b"0\r\n\r\n"]
    whole = b"".join(framed)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(whole) - 1), max_size=8)))
    torn = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    bytewise = [bytes([byte]) for byte in whole]
    by_chunk, first = told(chunks, [ENGINE_HEAD, *framed])
    by_cut, second = told(chunks, [ENGINE_HEAD, *torn])
    by_byte, third = told(chunks, [ENGINE_HEAD, *bytewise])
    assert by_chunk == by_cut == by_byte
    figures = {
        (e.outcome, e.counted_by, e.prompt_tokens, e.completion_tokens, e.status) for e in (first, second, third)
    }
    assert len(figures) == 1


def test_figures_before_the_finish_count_when_the_client_leaves_behind_it(tmp_path: Path) -> None:
    core = Core(tmp_path)
    client, _ = core.ask(stream=True)
    events = chat_events(["a", "b"])
    core.engine.send(ENGINE_HEAD)
    for each in events[:-2]:
        core.engine.send(b"%x\r\n%b\r\n" % (len(each), each))
    client.lost()
    (found,) = core.events
    assert (found.counted_by, found.prompt_tokens, found.completion_tokens) == (CountedBy.ENGINE_RUNNING, 11, 2)
    core.close()
