"""How long one step of a replica takes. Seconds; pure arithmetic; the numbers come from the coefficients.

A decode step reads every weight it touches once and each sequence's cache once, multiplies, and pays a fixed price for each layer, each
step, each sequence and each collective. A prefill multiplies prompt tokens with the weights and attends over the prompt.
"""

from __future__ import annotations

from berth.planner.placement import Placement, kv_read_bytes
from berth.planner.weights import read_bytes

MICRO = 1e-6
MICRO_BATCH = 512.0  # tokens that llama.cpp computes at once


def decode_step(place: Placement, batch: float, context: float) -> float:
    """One token for each of `batch` sequences, whose contexts are `context` tokens on average. With pipeline parallelism: the time in which
    every sequence gets a token while all stages are busy."""
    stages = place.pipeline_parallel
    each = batch / stages
    model, gpu = place.model, place.gpu
    reading = _read_per_device(place, each) / stages / (gpu.bandwidth * place.value("weights_efficiency"))
    multiplying = _multiplied_per_device(place, each) / stages / (gpu.peak(place.compute) * place.value("decode_mfu"))
    weights = smooth_max(reading, multiplying, place.value("overlap"))
    cache = each * _cache_read(place, context) / (place.kv_shares * stages)
    attending = cache / (gpu.bandwidth * place.value("kv_efficiency"))
    layers = model.layers / stages
    fixed = MICRO * (place.value("layer_us") * layers + place.value("step_us") + place.value("sequence_us") * each / place.attention_replicas)
    if model.experts:
        fixed += MICRO * place.value("expert_layer_us") * model.expert_layers / stages
    stage = weights + attending + fixed + collectives(place, each) / stages
    if place.split_layers > 1:
        stage += MICRO * place.value("split_us") * (place.split_layers - 1)
    if stages > 1:
        stage += MICRO * place.value("stage_us")
    return stage * stages


def _read_per_device(place: Placement, batch: float) -> float:
    """Bytes of weights. With attention data-parallel every device reads all that is not an expert."""
    shards, held = place.tensor_parallel, place.held
    if place.attention_replicas == 1:
        return read_bytes(place.model, held, batch) / shards
    return held.dense + (read_bytes(place.model, held, batch) - held.dense) / shards


def _multiplied_per_device(place: Placement, batch: float) -> float:
    """Operations. Experts get few tokens each, so their multiplications use the hardware less well."""
    model = place.model
    routed = active_expert_parameters(place)
    return 2.0 * batch * (model.active_parameters - routed + routed / place.value("expert_decode")) / place.tensor_parallel


def active_expert_parameters(place: Placement) -> float:
    model = place.model
    return model.expert_parameters * model.experts_per_token / model.experts if model.experts else 0.0


def _cache_read(place: Placement, context: float) -> float:
    """Bytes of one sequence's cache. Engines without grouped-query kernels copy every KV head for each of its query heads."""
    size = kv_read_bytes(place.model, context, place.kv_bits)
    heads = max((group.kv_heads for group in place.model.attention), default=1)
    return size * (place.model.heads / heads) ** place.value("kv_expanded")


def collectives(place: Placement, tokens: float) -> float:
    """Two all-reduces a layer over the tensor-parallel group."""
    n = place.tensor_parallel
    if n == 1:
        return 0.0
    size = tokens * place.model.embedding_length * 2.0
    link = place.gpu.link_bandwidth or 10e9
    moving = 2.0 * (n - 1) / n * size / (link * place.value("link_efficiency"))
    if place.attention_replicas > 1:  # tokens go to the devices of their experts and back, once a layer
        moving *= 0.5
    waiting = MICRO * place.value("collective_us") * (1.0 + place.value("collective_growth") * (n - 2))
    if place.gpu.link not in ("nvlink", "xgmi"):
        waiting *= place.value("collective_pcie")
    return 2.0 * place.model.layers * (moving + waiting)


def prefill(place: Placement, tokens: float, context: float = 0.0) -> float:
    """`tokens` prompt tokens of one sequence after `context` that are already there (a cached prefix)."""
    fixed = MICRO * (place.value("prefill_layer_us") * place.model.layers + place.value("step_us"))
    busy = prefill_work(place, tokens, context)
    reading = read_bytes(place.model, place.held, tokens) / place.devices / (place.gpu.bandwidth * place.value("weights_efficiency"))
    if place.split_layers > 1:
        reading *= place.split_layers
    return smooth_max(busy, reading, place.value("overlap")) + fixed


def prefill_work(place: Placement, tokens: float, context: float = 0.0) -> float:
    """The arithmetic alone: what a prefill adds to steps that run anyway."""
    model, gpu = place.model, place.gpu
    linear = 2.0 * body_parameters(place) * tokens
    attention = 0.0
    query = model.query_heads_length or model.embedding_length
    for group in model.attention:
        reach = context + tokens / 2.0
        if group.window is not None:
            reach = min(reach, group.window)
        attention += 4.0 * tokens * reach * query * group.layers
    shards = place.tensor_parallel
    devices = shards * place.pipeline_parallel * _stages_at_once(place, tokens)
    rate = gpu.peak(place.compute) * place.value("prefill_mfu") * devices
    attention_rate = gpu.peak("fp16") * place.value("attention_mfu") * devices
    if model.experts:
        rate *= place.value("expert_mfu")
    return linear / rate + attention / attention_rate + collectives(place, tokens) * place.value("prefill_collectives")


def _stages_at_once(place: Placement, tokens: float) -> float:
    """How many of the devices that hold a share of the layers each work at the same time on a prompt's micro-batches."""
    n = place.split_layers
    if n == 1:
        return 1.0
    pieces = max(1.0, tokens / MICRO_BATCH)
    return 1.0 + place.value("split_prefill") * (n * pieces / (n + pieces - 1.0) - 1.0)


def body_parameters(place: Placement) -> float:
    """What every prompt token is multiplied with: all but the output layer, which only the last one needs."""
    model = place.model
    return max(1.0, model.active_parameters - model.vocabulary * model.embedding_length)


def smooth_max(a: float, b: float, power: float) -> float:
    """Between the larger (large powers: the two overlap) and the sum (power 1: one waits for the other)."""
    if a <= 0 or b <= 0:
        return max(a, b)
    high, low = (a, b) if a >= b else (b, a)
    return float(high * (1.0 + (low / high) ** power) ** (1.0 / power))
