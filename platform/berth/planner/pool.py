"""Memory of a device with an engine that fills it: weights, activations, runtime, CUDA graphs, and the key-value pool that is left.

Bytes per device. vLLM sizes its pool from a trial run with as many tokens as it may batch: the largest intermediate result decides,
which is the logits of all sequences where the vocabulary is large, else the feed-forward block of a full batch.
"""

from __future__ import annotations

import msgspec

from berth.catalog.facts import ModelFacts
from berth.planner.hardware import GIB, Gpu
from berth.planner.placement import Placement, group_token_bytes, kv_token_bytes

BLOCK: int = 16  # tokens of a cache page


class Limits(msgspec.Struct, frozen=True):
    sequences: int
    batched_tokens: int


class Parts(msgspec.Struct, frozen=True):
    """Bytes per device."""

    weights: int
    activations: int
    runtime: int
    graphs: int

    @property
    def total(self) -> int:
        return self.weights + self.activations + self.runtime + self.graphs


def vllm_limits(gpu: Gpu) -> Limits:
    """vLLM's own defaults for a server: larger where the device has 70 GiB and is no A100."""
    large = gpu.usable >= 70 * GIB and gpu.capability != 8.0
    return Limits(1024, 8192) if large else Limits(256, 2048)


def parts(place: Placement, limits: Limits) -> Parts:
    model, shards = place.model, place.tensor_parallel * place.pipeline_parallel
    held = place.held
    weights = held.total / shards
    if (
        place.pipeline_parallel > 1
    ):  # the first stage has the embedding besides its layers, the last one the output layer
        end = 2.0 * model.vocabulary * model.embedding_length / place.tensor_parallel
        ends = end * (1 if model.tied_embeddings else 2)
        weights += end - ends / place.pipeline_parallel
    if place.attention_replicas > 1:  # only experts are spread
        weights += (held.total - held.experts) * (1.0 - 1.0 / shards)
    elif place.kv_shares < place.tensor_parallel:
        weights += _copied_kv_projections(place) / shards
    if place.held.tower and shards > 1:
        weights += place.held.tower * (1 - 1 / shards) * place.value("tower_copied")
    weights += model.context_length * _rotary_width(model) * 2 + place.value("weights_extra_gib") * GIB
    runtime = place.value("runtime_gib") if place.tensor_parallel == 1 else place.value("runtime_parallel_gib")
    if place.pipeline_parallel > 1 and place.tensor_parallel == 1:
        runtime = place.value("runtime_pipeline_gib")
    return Parts(
        int(weights),
        int(activations(place, limits)),
        int(runtime * GIB),
        int(place.value("graphs_in_pool") * place.value("graph_gib") * GIB),
    )


def activations(place: Placement, limits: Limits) -> float:
    """The peak of the trial run. The last stage of a pipeline computes the logits; the first one decides what all may keep. The buffers
    in which tokens are sorted by expert stay."""
    model = place.model
    logits = place.value("logit_bytes") * limits.sequences * model.vocabulary
    hidden = place.value("hidden_copies") * 2.0 * limits.batched_tokens * model.embedding_length
    width = place.value("block_copies") * (0 if model.experts else model.feed_forward_length)
    block = 2.0 * limits.batched_tokens * (width + place.value("block_hidden_copies") * model.embedding_length)
    routed = 2.0 * limits.batched_tokens * model.experts_per_token
    sorting = routed * (model.expert_feed_forward + place.value("expert_hidden_copies") * model.embedding_length)
    return max(hidden + (logits if place.pipeline_parallel == 1 else 0.0), block) + sorting


def _copied_kv_projections(place: Placement) -> float:
    """Where there are fewer KV heads than devices, each device keeps a whole one."""
    model = place.model
    copies = place.tensor_parallel / place.kv_shares - 1
    sizes = sum(
        model.embedding_length * g.kv_heads * (g.key_length + g.value_length) * g.layers
        for g in model.attention
        if not g.latent
    )
    return copies * sizes * place.scheme.linear_bits / 8


def _rotary_width(model: ModelFacts) -> int:
    return max((group.key_length for group in model.attention if not group.latent), default=64)


def kv_pool(place: Placement, limits: Limits, utilisation: float) -> int:
    """Bytes per device that are left for the cache; 0 or less: it does not start."""
    return int(utilisation * place.gpu.usable - parts(place, limits).total)


def kv_token_bytes_per_device(place: Placement) -> float:
    """Of one token, with what vLLM's paging pads where layers of several kinds share pages."""
    return _padded(place.model, place.kv_bits) / place.kv_shares / place.pipeline_parallel


def _padded(model: ModelFacts, kv_bits: int) -> float:
    kinds: dict[int | None, int] = {}
    for group in model.attention:
        kinds[group.window] = kinds.get(group.window, 0) + group.layers
    if len(kinds) < 2:
        return kv_token_bytes(model, kv_bits)
    size = page_layers(model)
    one_layer = max(group_token_bytes(group, kv_bits) / group.layers for group in model.attention)
    return one_layer * size * sum(-(-count // size) for count in kinds.values())


def page_layers(model: ModelFacts) -> int:
    """How many layers share a page: as many as the rarest kind of layer has, or the most common one where they are nearly as many."""
    counts: dict[int | None, int] = {}
    for group in model.attention:
        counts[group.window] = counts.get(group.window, 0) + group.layers
    low, high = min(counts.values()), max(counts.values())
    return high if high < low * 1.25 else low


def cache_tokens(place: Placement, pool: float) -> int:
    """Tokens that the pool holds, in whole pages."""
    per_page = kv_token_bytes_per_device(place) * BLOCK
    return max(0, int(pool // per_page)) * BLOCK if per_page else 1 << 40


def sequence_tokens(place: Placement, length: float, batched: int) -> float:
    """What one sequence of this length takes of `cache_tokens`: layers with a window keep the window and one batch."""
    model = place.model
    full = _padded(model, place.kv_bits)
    if not full:
        return 0.0
    size = page_layers(model) if len({group.window for group in model.attention}) > 1 else model.layers
    total = 0.0
    counts: dict[int | None, int] = {}
    for group in model.attention:
        counts[group.window] = counts.get(group.window, 0) + group.layers
    one_layer = max(group_token_bytes(group, place.kv_bits) / group.layers for group in model.attention)
    for window, count in counts.items():
        kept = length if window is None else min(length, window + batched)
        slots = -(-count // size) * size if len(counts) > 1 else count
        total += one_layer * slots * kept
    return total / full
