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
    latent: bool = (
        False  # one compressed vector for all heads (MLA): every GPU of a tensor-parallel group keeps all of it
    )


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
    # What the header does not say is 0 or empty, and is planned with wider margins.
    tied_embeddings: bool = False  # one table serves as input embedding and output layer
    gated: bool = True  # three matrices in a feed-forward block (gate, up, down), not two
    query_heads_length: int = 0  # elements of all query heads together; 0: heads x the longest key
    experts: int = 0  # routed experts of a layer
    experts_per_token: int = 0
    expert_parameters: int = 0  # of all routed experts of all layers
    expert_layers: int = 0
    expert_feed_forward: int = 0
    tower_parameters: int = 0  # vision and audio towers: loaded, but no text token passes through them
    state_bytes: int = 0  # of a sequence's recurrent state (linear attention, Mamba), whatever its length
    native_dtype: str = ""  # "bfloat16"
    native_quantization: str = ""  # what the files themselves are quantized with: "fp8", "mxfp4", "gptq", "awq"
    tasks: tuple[str, ...] = ("generate",)
    pooling: str | None = (
        None  # of a model that gives vectors or relevances, as its header says it: "mean", "cls", "last", "rank"
    )
    assumed: tuple[str, ...] = ()  # what was concluded from tensor shapes or size instead of being read


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


def to_json(facts: ModelFacts | ArtefactFacts | AdapterFacts) -> dict[str, Any]:
    """For a JSON column."""
    plain: dict[str, Any] = msgspec.to_builtins(facts)
    return plain


def model_facts(stored: dict[str, Any]) -> ModelFacts:
    return msgspec.convert(stored, ModelFacts)


def artefact_facts(stored: dict[str, Any]) -> ArtefactFacts:
    return msgspec.convert(stored, ArtefactFacts)


class AdapterFacts(msgspec.Struct, frozen=True):
    """True of a LoRA adapter: a model that only works on top of another."""

    format: int
    rank: int  # the largest of its matrices
    alpha: float
    target_modules: tuple[str, ...]  # "q_proj" …, sorted
    base_name: str  # what its configuration calls its base; a name for people, never fetched or opened
    parameters: int
    layers: int  # of the base that it touches, the highest index and one
    engines: tuple[str, ...]  # those that can load it beside its base


def adapter_facts(stored: dict[str, Any]) -> AdapterFacts:
    return msgspec.convert(stored, AdapterFacts)
