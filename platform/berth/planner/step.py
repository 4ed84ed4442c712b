"""How long one step of a replica takes. Seconds; pure arithmetic; the numbers come from the coefficients.

A decode step reads every weight it touches once and each sequence's cache once, multiplies, and pays a fixed price for each layer, each
step, each sequence and each collective. A prefill multiplies prompt tokens with the weights and attends over the prompt.
"""

from __future__ import annotations

from berth.planner.placement import Placement, kv_read_bytes
from berth.planner.weights import read_bytes

MICRO = 1e-6


def decode_step(place: Placement, batch: float, context: float) -> float:
    """One token for each of `batch` sequences, whose contexts are `context` tokens on average. With pipeline parallelism: the time in which
    every sequence gets a token while all stages are busy."""
    stages = place.pipeline_parallel
    each = batch / stages
    model, gpu, shards = place.model, place.gpu, place.tensor_parallel
    reading = read_bytes(model, place.held, each) / (shards * stages) / (gpu.bandwidth * place.value("weights_efficiency"))
    multiplying = 2.0 * model.active_parameters * each / (shards * stages) / (gpu.peak(place.compute) * place.value("decode_mfu"))
    weights = smooth_max(reading, multiplying, place.value("overlap"))
    cache = each * kv_read_bytes(model, context, place.kv_bits) / (place.kv_shares * stages)
    attending = cache / (gpu.bandwidth * place.value("kv_efficiency"))
    layers = model.layers / stages
    fixed = MICRO * (place.value("layer_us") * layers + place.value("step_us") + place.value("sequence_us") * each)
    if model.experts:
        fixed += MICRO * place.value("expert_layer_us") * model.expert_layers / stages
    stage = weights + attending + fixed + collectives(place, each) / stages
    if place.split_layers > 1:
        stage += MICRO * place.value("split_us") * (place.split_layers - 1)
    if stages > 1:
        stage += MICRO * place.value("stage_us")
    return stage * stages


def collectives(place: Placement, tokens: float) -> float:
    """Two all-reduces a layer over the tensor-parallel group."""
    n = place.tensor_parallel
    if n == 1:
        return 0.0
    size = tokens * place.model.embedding_length * 2.0
    link = place.gpu.link_bandwidth or 10e9
    moving = 2.0 * (n - 1) / n * size / (link * place.value("link_efficiency"))
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
    rate = gpu.peak(place.compute) * place.value("prefill_mfu") * shards * place.pipeline_parallel
    attention_rate = gpu.peak("fp16") * place.value("attention_mfu") * shards * place.pipeline_parallel
    if model.experts:
        rate *= place.value("expert_mfu")
    return linear / rate + attention / attention_rate + collectives(place, tokens) * place.value("prefill_collectives")


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
