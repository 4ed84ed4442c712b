"""A model that gives vectors instead of text, on the real engine."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import pytest

from berth_runtime.engines.catalogue import engine_named
from tests.runtime.agents import Agent, a_spec, call


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """The sample model writes text, but any model's last layer can be pooled."""
    with Agent(a_spec(tmp_path_factory.mktemp("pooled"), pooling="mean", context_length=768)) as agent:
        agent.ready()
        yield agent


def vectors(agent: Agent, *texts: str) -> list[list[float]]:
    status = agent.ready()
    assert status.port is not None
    code, raw, _ = call(status.port, "POST", "/v1/embeddings", {"input": list(texts)})
    assert code == 200
    return [item["embedding"] for item in sorted(json.loads(raw)["data"], key=lambda item: item["index"])]


def alike(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True)) / (math.hypot(*one) * math.hypot(*other))


def test_texts_of_one_meaning_are_nearer(agent: Agent) -> None:
    cat, kitten, invoice = vectors(
        agent, "A cat sleeps on the sofa.", "A kitten is asleep on the couch.", "Invoice 4711 is overdue: 300 EUR."
    )
    assert alike(cat, kitten) > alike(cat, invoice)


def test_a_text_as_long_as_the_context_is_read_in_one_batch(agent: Agent) -> None:
    (long,) = vectors(agent, "word " * 600)
    assert len(long) == len(vectors(agent, "word")[0])


@pytest.mark.parametrize(
    ("pooling", "path", "answer", "tokens"),
    [
        (None, "/v1/completions", {"usage": {"completion_tokens": 1, "prompt_tokens": 1}}, 1),
        (None, "/v1/completions", {"usage": {"completion_tokens": 0, "prompt_tokens": 1}}, 0),
        ("cls", "/v1/embeddings", {"usage": {"prompt_tokens": 3, "total_tokens": 3}}, 3),
        ("rank", "/v1/rerank", {"usage": {"prompt_tokens": 4, "total_tokens": 4}}, 4),
        ("rank", "/v1/rerank", {"error": {"code": 501}}, 0),
    ],
)
def test_a_first_token_is_what_the_model_is_for(tmp_path, pooling, path, answer, tokens) -> None:  # type: ignore[no-untyped-def]
    engine = engine_named("llamacpp")
    assert engine is not None
    spec = a_spec(tmp_path, pooling=pooling)
    assert engine.first_token(spec).path == path
    assert engine.tokens_in(json.dumps(answer).encode()) == tokens
    assert ("--reranking" in engine.command(spec)) == (pooling == "rank")
    assert ("--embeddings" in engine.command(spec)) == (pooling == "cls")
