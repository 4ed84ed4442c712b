"""What engines find wrong about a request is the client's fault, whatever status they give it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from berth_gateway.contract import CountedBy, Outcome
from tests.gateway.core import Core, answers
from tests.gateway.harness import HEAD, SECRET, chat, chat_events, chunked, plain

PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
SOUND = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
HINT = "input is not supported - hint: if this is unexpected, you may need to provide the mmproj"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("part", "status", "said", "told"),
    [
        (PICTURE, 500, f"image {HINT} {SECRET}", "images"),
        (SOUND, 500, f"audio {HINT} {SECRET}", "audio"),
        (PICTURE, 400, f"At most 0 image(s) may be provided in one prompt. {SECRET}", "images"),
    ],
)
def test_a_picture_for_a_model_of_texts_is_400_and_no_failure_of_its_replica(
    core: Core, part: Any, status: int, said: str, told: str, stream: bool
) -> None:
    """Otherwise clients would try it again and again, and one of them could make a good replica look ill to all others."""
    asked = chat(messages=[{"role": "user", "content": [{"type": "text", "text": "x"}, part]}], stream=stream)
    _, wire = core.ask(json.dumps(asked).encode())
    error = {"code": status, "message": said, "type": "server_error"}
    core.engine.send(plain(status, json.dumps({"error": error}).encode()))
    (answer,) = answers(wire.out)
    assert (answer.status, answer.code, answer.error["param"]) == (400, "unsupported_value", "messages")
    assert answer.error["message"] == f"This model does not take {told}."
    assert (core.events[0].outcome, core.events[0].counted_by) == (Outcome.REJECTED, CountedBy.NONE)
    # The next request goes there at once.
    _, wire = core.ask(stream=True)
    core.engine.send(HEAD + chunked(*chat_events(["one"])))
    assert answers(wire.out)[0].status == 200
