"""How many bytes a replica needs: weights, key-value cache, and what the engine needs besides.

Weights are exact: the sizes of the tensors in the file. The cache follows from the layers' own geometry, so grouped-query
and multi-query heads, layers without attention and sliding windows each count as what they are. The rest was measured and
has a stated margin: see docs/planner.md.
"""

from __future__ import annotations

from typing import Final

import msgspec

from berth.catalog.facts import ArtefactFacts, ModelFacts

CACHE_BYTES: Final = 2  # an element of the cache: F16
PROCESS_BYTES: Final = 96 << 20  # Python, llama.cpp's code, its threads and tokenizer: 72 to 81 MiB were measured
SLOT_BYTES: Final = 1 << 20  # connections and buffers of one slot
BATCH: Final = 512  # tokens that llama.cpp computes at once
COMPUTE_BYTES: Final = 4  # an intermediate value: F32
MARGIN: Final = 20  # a twentieth of weights and cache on top, for what allocators lose


class MemoryNeed(msgspec.Struct, frozen=True):
    """Bytes. `total` is what admission counts."""

    weights: int
    kv: int
    overhead: int
    total: int
    available: int

    @property
    def fits(self) -> bool:
        return self.total <= self.available

    @property
    def short(self) -> int:
        """How many bytes are missing; 0 when it fits."""
        return max(0, self.total - self.available)


def rounded_context(context_length: int, step: int) -> int:
    """What the engine really sets aside for a request."""
    return -(-context_length // step) * step


def kv_per_token(model: ModelFacts) -> int:
    """Bytes of cache for one token, while no window is full."""
    return sum(
        group.layers * group.kv_heads * (group.key_length + group.value_length) * CACHE_BYTES
        for group in model.attention
    )


def kv_bytes(model: ModelFacts, context_length: int) -> int:
    """Bytes of cache for one request of this context. A sliding layer stops growing at its window and one batch."""
    total = 0
    for group in model.attention:
        tokens = context_length if group.window is None else min(context_length, group.window + BATCH)
        total += group.layers * group.kv_heads * (group.key_length + group.value_length) * CACHE_BYTES * tokens
    return total


def overhead_bytes(model: ModelFacts, slots: int, held: int, process_bytes: int = PROCESS_BYTES) -> int:
    """What comes besides weights and cache, which together are `held`."""
    width = model.vocabulary + 4 * model.embedding_length + 2 * model.feed_forward_length
    return process_bytes + slots * SLOT_BYTES + BATCH * COMPUTE_BYTES * width + held // MARGIN


def memory_need(
    model: ModelFacts,
    artefact: ArtefactFacts,
    *,
    context_length: int,
    slots: int,
    available: int,
    context_step: int = 256,
    process_bytes: int = PROCESS_BYTES,
    copies: int = 1,
) -> MemoryNeed:
    """For one replica with `slots` requests of `context_length` tokens side by side. The last three: see `EngineCapabilities`."""
    kv = slots * kv_bytes(model, rounded_context(context_length, context_step))
    weights = artefact.tensor_bytes
    overhead = overhead_bytes(model, slots, weights + kv, process_bytes) + (copies - 1) * weights
    return MemoryNeed(weights, kv, overhead, weights + kv + overhead, available)
