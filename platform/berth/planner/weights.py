"""How many bytes a model's weights are, and how many of them a step reads."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from berth.catalog.facts import ModelFacts
from berth.planner.gguf_layout import BITS, tensors
from berth.planner.quantization import Scheme


class Weights(msgspec.Struct, frozen=True):
    """Bytes, of the whole model."""

    dense: int  # read once a step, whatever the batch
    experts: int  # all routed experts
    table: int  # the input embedding, where it is not also the output layer: one row a token is read
    tower: int  # vision and audio
    positions: int = 0

    @property
    def total(self) -> int:
        return self.dense + self.experts + self.table + self.tower + self.positions


@lru_cache(maxsize=4096)
def weights(model: ModelFacts, scheme: Scheme) -> Weights:
    if scheme.gguf:
        return _gguf_weights(model, scheme.gguf)
    table = model.vocabulary * model.embedding_length
    linear = (
        model.parameters
        - model.tower_parameters
        - model.expert_parameters
        - table * (1 if model.tied_embeddings else 2)
    )
    embedding_bits = scheme.embedding_bits
    if scheme.name.startswith("EXL2"):  # the head has 6 bits, the table stays on the host or in half precision
        embedding_bits = 16
    dense = linear * scheme.linear_bits / 8 + table * scheme.embedding_bits / 8
    return Weights(
        dense=int(dense),
        experts=int(model.expert_parameters * scheme.routed_bits / 8),
        table=0 if model.tied_embeddings else int(table * embedding_bits / 8),
        tower=int(model.tower_parameters * 2),
    )


def _gguf_weights(model: ModelFacts, mixture: str) -> Weights:
    dense = experts = table = 0.0
    for name, elements, kind in tensors(model, mixture):
        size = elements * BITS[kind] / 8
        if name == "token_embd":
            table += size
        elif name.endswith("_exps"):
            experts += size
        else:
            dense += size
    return Weights(int(dense), int(experts), int(table), 0)


def covered_experts(experts: int, per_token: int, tokens: float) -> float:
    """How many of a layer's experts `tokens` tokens touch together, when each picks `per_token` of them independently."""
    if not experts:
        return 0.0
    return float(experts * (1.0 - (1.0 - per_token / experts) ** tokens))


def read_bytes(model: ModelFacts, held: Weights, tokens: float) -> float:
    """Bytes of weights that a step over `tokens` tokens reads."""
    share = covered_experts(model.experts, model.experts_per_token, tokens) / model.experts if model.experts else 0.0
    return float(held.dense + held.experts * share)
