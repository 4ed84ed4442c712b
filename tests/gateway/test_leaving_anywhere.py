"""A client that leaves at any byte of an answer: what was produced is counted by the engine's own figures, on both ways."""

from __future__ import annotations

from pathlib import Path

import pytest

from berth_gateway.contract import CountedBy, Outcome
from tests.gateway.core import Core
from tests.gateway.harness import HEAD, chat_events, chunked

WORDS = ["one ", "two ", "three"]


@pytest.mark.threat("B4")
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("usual", [True, False])
def test_what_was_produced_is_never_guessed(tmp_path: Path, stream: bool, usual: bool) -> None:
    """`usual`: the connection's second request, which comes the short way. However the engine's bytes were cut before the client
    left, its running figures are known as soon as anything of the answer is."""
    core = Core(tmp_path)
    events = chat_events(WORDS)
    pieces = [HEAD, *(b"%x\r\n%b\r\n" % (len(each), each) for each in events), b"0\r\n\r\n"]
    answer = b"".join(pieces)
    whole = len(answer) - len(pieces[-1]) - len(pieces[-2])  # [DONE] has not come
    for at in range(len(HEAD), whole, 2):
        client, _ = core.client()
        if usual:
            client.received(core.request(stream=True))
            core.engine.send(HEAD + chunked(*events))
            core.events.clear()
        client.received(core.request(stream=stream))
        core.engine.send(answer[:at])
        client.lost()
        (event,) = core.events
        core.events.clear()
        produced = sum(at >= len(b"".join(pieces[: 3 + n])) for n in range(len(WORDS)))
        assert event.outcome is Outcome.CLIENT_CLOSED
        figures = (CountedBy.ENGINE, CountedBy.ENGINE_RUNNING)
        assert event.counted_by in (figures if event.completion_tokens else (CountedBy.NONE,)), at
        assert event.completion_tokens in (produced, produced + 1), (
            at
        )  # a chunk whose last CRLF is still to come counts
        assert event.prompt_tokens == (11 if event.completion_tokens else 0), at
    core.close()
