"""What a process keeps on its devices with engines that do not fill them: llama.cpp, transformers and their like. Bytes in total."""

from __future__ import annotations

from berth.planner.hardware import GIB
from berth.planner.placement import Placement, group_token_bytes

LLAMA_BATCH = 512  # tokens that llama.cpp computes at once
LLAMA_COMPUTE = 4  # bytes of an intermediate value


def resident(place: Placement, *, batch: int, prompt: int, length: int) -> float:
    """`batch` sequences of `length` tokens, of which `prompt` came first."""
    if place.engine.startswith(("llamacpp", "ollama")):
        return _llamacpp(place, batch, length)
    cache = batch * _cache(place, length) * place.value("kv_copies")
    model = place.model
    width = model.feed_forward_length if not model.experts else model.expert_feed_forward * model.experts_per_token
    a_token = 2.0 * (place.value("block_copies") * width + place.value("block_hidden_copies") * model.embedding_length)
    peak = batch * max(1, prompt) * a_token * place.value("peak_activations")
    logits = batch * max(1, prompt) * model.vocabulary * place.value("prompt_logit_bytes")
    return place.held.total + cache + max(peak, logits) + place.value("process_gib") * GIB * place.devices


def _cache(place: Placement, length: int) -> float:
    return sum(
        group_token_bytes(group, place.kv_bits)
        * (length if group.window is None else min(length, group.window + LLAMA_BATCH))
        for group in place.model.attention
    )


def _llamacpp(place: Placement, batch: int, length: int) -> float:
    """The input embedding stays with the CPU; every device has its own buffers and context."""
    model = place.model
    width = model.vocabulary + 4 * model.embedding_length + 2 * model.feed_forward_length
    buffers = LLAMA_BATCH * LLAMA_COMPUTE * width + place.value("process_gib") * GIB
    return place.held.total - place.held.table + batch * _cache(place, length) + buffers * place.devices
