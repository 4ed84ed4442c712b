"""The likelihood of tokens in completions, from the form of a chat that llama.cpp gives."""

from __future__ import annotations

import json
from typing import Any

import pytest

from berth_gateway.logprobs import Rewriter, is_chats
from tests.gateway.core import Core, answers
from tests.gateway.harness import HEAD, completion_events, event


def token(text: str, probability: float, *others: tuple[str, float]) -> dict[str, Any]:
    tops = [{"id": 1, "token": name, "bytes": [1], "logprob": value} for name, value in others]
    return {"id": 1, "token": text, "bytes": [1], "logprob": probability, "top_logprobs": tops}


def test_tokens_their_likelihood_and_where_they_stand() -> None:
    rewriter = Rewriter()
    first = rewriter.rewrite({"content": [token("On", -0.5, ("On", -0.5), ("In", -1.5)), token("ce", -0.1)]})
    assert first == {
        "tokens": ["On", "ce"],
        "token_logprobs": [-0.5, -0.1],
        "top_logprobs": [{"On": -0.5, "In": -1.5}, {}],
        "text_offset": [0, 2],
    }
    assert rewriter.rewrite({"content": [token(" a", -2.0)]})["text_offset"] == [4], (
        "it goes on where the last piece ended"
    )


@pytest.mark.parametrize("odd", [{"content": [5, {"token": 7}, {"token": "a", "top_logprobs": "x"}]}, {"content": []}])
def test_what_is_no_token_is_left_out(odd: dict[str, Any]) -> None:
    found = Rewriter().rewrite(odd)
    assert {len(each) for each in found.values()} == {len(found["tokens"])}


@pytest.mark.parametrize("theirs", [None, 5, {}, {"content": None}, {"tokens": ["a"], "token_logprobs": [-1.0]}])
def test_every_other_form_stays_as_it_is(theirs: object) -> None:
    assert not is_chats(theirs)


def pieces(words: list[str]) -> list[bytes]:
    """As llama.cpp streams a completion with `logprobs`."""
    made = []
    for each in completion_events(words):
        data = each[6:-2]
        if data == b"[DONE]":
            made.append(each)
            continue
        chunk = json.loads(data)
        choice = chunk["choices"][0]
        if choice["text"]:
            choice["logprobs"] = {"content": [token(choice["text"], -1.0, (choice["text"], -1.0), ("other", -2.0))]}
        made.append(event(chunk))
    return made


@pytest.mark.parametrize("stream", [True, False])
def test_a_completion_has_the_form_of_completions(core: Core, stream: bool) -> None:
    words = ["one", " two", " three", " four"]
    asked = {"model": "acme/model", "prompt": "x", "logprobs": 2, "stream": stream}
    _, wire = core.ask(json.dumps(asked).encode(), "/v1/completions")
    assert core.asked[0].json["logprobs"] == 2
    core.engine.send(HEAD + b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in pieces(words)) + b"0\r\n\r\n")
    (answer,) = answers(wire.out)
    found: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    chunks = [each for each in answer.events if each != "[DONE]"] if stream else [json.loads(answer.body)]
    for chunk in chunks:
        for name, values in (chunk["choices"][0]["logprobs"] or {}).items():
            found[name] += values
    assert found["tokens"] == words
    assert found["token_logprobs"] == [-1.0] * 4
    assert found["top_logprobs"] == [{word: -1.0, "other": -2.0} for word in words]
    assert found["text_offset"] == [0, 3, 7, 13]
