"""What is true of a model and of a file of it, as read from the file's header. Pure data: no Django, no I/O.

The catalogue writes these facts, the planner thinks with them. They are stored as JSON with a format number.
"""

from __future__ import annotations

from typing import Any

import msgspec

FACTS_FORMAT = 1


class AttentionGroup(msgspec.Struct, frozen=True):
    """Layers that keep keys and values in the same way. Layers without attention are in no group."""

    layers: int
    kv_heads: int
    key_length: int  # elements of a key, per head
    value_length: int
    window: int | None = None  # tokens after which the layer's cache stops growing; None: it never does


class ModelFacts(msgspec.Struct, frozen=True):
    """True of the model whatever its quantization."""

    format: int
    architecture: str
    name: str | None
    parameters: int  # all of them
    active_parameters: int  # those that one token passes through; fewer than `parameters` with experts
    layers: int
    embedding_length: int
    feed_forward_length: int  # the widest layer's
    heads: int
    context_length: int  # tokens the model was trained for
    vocabulary: int
    attention: tuple[AttentionGroup, ...]
    sliding_window: int | None  # as the header says it; `attention` says which layers obey
    recurrent: bool  # has layers whose state is no key-value cache
    has_chat_template: bool


class ArtefactFacts(msgspec.Struct, frozen=True):
    """True of these files only."""

    format: int
    quantization: str  # "Q4_1"
    tensors: int
    tensor_bytes: int  # exact, without padding
    token_bytes: int  # of these, what must be read from memory to produce one token
    alignment: int
    chat_template_bytes: int = 0
    chat_template_accepts: tuple[str, ...] = ()  # "user", "system", "tools" …: what the template was seen to render


def to_json(facts: ModelFacts | ArtefactFacts) -> dict[str, Any]:
    """For a JSON column."""
    plain: dict[str, Any] = msgspec.to_builtins(facts)
    return plain


def model_facts(stored: dict[str, Any]) -> ModelFacts:
    return msgspec.convert(stored, ModelFacts)


def artefact_facts(stored: dict[str, Any]) -> ArtefactFacts:
    return msgspec.convert(stored, ArtefactFacts)
