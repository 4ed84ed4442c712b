"""How long one step of a replica takes. Seconds; pure arithmetic; the numbers come from the coefficients.

A decode step reads every weight it touches once and each sequence's cache once, multiplies, and pays a fixed price for each layer, each
step, each sequence and each collective. A prefill multiplies prompt tokens with the weights and attends over the prompt.
"""

from __future__ import annotations

from typing import NamedTuple

from berth.planner.placement import Placement, kv_read_bytes
from berth.planner.weights import read_bytes

MICRO = 1e-6
MICRO_BATCH = 512.0  # tokens that llama.cpp computes at once


def decode_step(place: Placement, batch: float, context: float) -> float:
    """One token for each of `batch` sequences, whose contexts are `context` tokens on average. With pipeline parallelism: the time in which
    every sequence gets a token while all stages are busy."""
    rates: _Decode = place.derived("decode", _decode_rates)
    each = batch / place.pipeline_parallel
    reading = rates.read if not place.model.experts else _read_per_device(place, each) * rates.read_second
    stage = smooth_max(reading, rates.multiply * each, rates.overlap)
    stage += each * (_cache_read(place, context) * rates.cache_second + rates.sequence)
    if place.tensor_parallel > 1:
        stage += collectives(place, each) / place.pipeline_parallel
    return float((stage + rates.fixed) * place.pipeline_parallel)


class _Decode(NamedTuple):
    """Seconds: of a step, for a byte of weights, a sequence's multiplications, a byte of its cache, its bookkeeping."""

    fixed: float
    read: float
    read_second: float
    multiply: float
    cache_second: float
    sequence: float
    overlap: float


def _decode_rates(place: Placement) -> _Decode:
    stages, model, gpu = place.pipeline_parallel, place.model, place.gpu
    fixed = place.value("layer_us") * model.layers / stages + place.value("step_us")
    if model.experts:
        fixed += place.value("expert_layer_us") * model.expert_layers / stages
    if place.split_layers > 1:
        fixed += place.value("split_us") * (place.split_layers - 1)
    if stages > 1:
        fixed += place.value("stage_us")
    read_second = 1.0 / (stages * read_rate(place))
    return _Decode(
        fixed=MICRO * fixed,
        read=0.0 if model.experts else _read_per_device(place, 1.0) * read_second,
        read_second=read_second,
        multiply=_multiplied_per_device(place, 1.0) / stages / (gpu.peak(place.compute) * place.value("decode_mfu")),
        cache_second=_expansion(place) / (place.kv_shares * stages * gpu.bandwidth * place.value("kv_efficiency")),
        sequence=MICRO * place.value("sequence_us") / place.attention_replicas,
        overlap=place.value("overlap"),
    )


def read_rate(place: Placement) -> float:
    """Bytes a second at which a device streams weights: its memory's share, or what its multiprocessors can ask for, where kernels keep few
    requests in flight. That is why llama.cpp reads an A100 or H100 at half of its bandwidth and a 4090 at nine tenths."""
    memory = place.gpu.bandwidth * place.value("weights_efficiency")
    asked, clocks = place.value("clock_bytes"), place.gpu.clocks
    if not asked or clocks is None:
        return float(memory)
    return 1.0 / smooth_max(1.0 / memory, 1.0 / (clocks * asked), 4.0)


def _read_per_device(place: Placement, batch: float) -> float:
    """Bytes of weights. With attention data-parallel every device reads all that is not an expert."""
    shards, held = place.tensor_parallel, place.held
    if not held.experts:
        return held.dense / shards
    # Scattered experts are read at a smaller share of the bandwidth than one large matrix.
    experts = (read_bytes(place.model, held, batch) - held.dense) / place.value("expert_bandwidth")
    if place.attention_replicas == 1:
        return (held.dense + experts) / shards
    return held.dense + experts / shards


def _multiplied_per_device(place: Placement, batch: float) -> float:
    """Operations. Experts get few tokens each, so their multiplications use the hardware less well."""
    model = place.model
    routed = active_expert_parameters(place)
    return (
        2.0 * batch * (model.active_parameters - routed + routed / place.value("expert_decode")) / place.tensor_parallel
    )


def active_expert_parameters(place: Placement) -> float:
    model = place.model
    return model.expert_parameters * model.experts_per_token / model.experts if model.experts else 0.0


def _cache_read(place: Placement, context: float) -> float:
    """Bytes of one sequence's cache."""
    known = place.derived("cache", dict)
    if context not in known:
        if len(known) > 512:
            known.clear()
        known[context] = kv_read_bytes(place.model, context, place.kv_bits)
    return float(known[context])


def _expansion(place: Placement) -> float:
    """Engines without grouped-query kernels copy every KV head for each of its query heads."""
    heads = max((group.kv_heads for group in place.model.attention), default=1)
    return float((place.model.heads / heads) ** place.value("kv_expanded"))


def collectives(place: Placement, tokens: float) -> float:
    """Two all-reduces a layer over the tensor-parallel group."""
    if place.tensor_parallel == 1:
        return 0.0
    waiting, moving = place.derived("collectives", _collective_rates)
    return float(waiting + moving * tokens)


def _collective_rates(place: Placement) -> tuple[float, float]:
    """Seconds of all layers: for one step, and for each token."""
    n = place.tensor_parallel
    size = place.model.embedding_length * 2.0
    link = place.gpu.link_bandwidth or 10e9
    moving = 2.0 * (n - 1) / n * size / (link * place.value("link_efficiency"))
    if place.attention_replicas > 1:  # tokens go to the devices of their experts and back, once a layer
        moving *= 0.5
    waiting = MICRO * place.value("collective_us") * (1.0 + place.value("collective_growth") * (n - 2))
    if place.gpu.link not in ("nvlink", "xgmi"):
        waiting *= place.value("collective_pcie")
    return 2.0 * place.model.layers * waiting, 2.0 * place.model.layers * moving


def prefill(place: Placement, tokens: float, context: float = 0.0) -> float:
    """`tokens` prompt tokens of one sequence after `context` that are already there (a cached prefix)."""
    fixed = MICRO * (place.value("prefill_layer_us") * place.model.layers + place.value("step_us"))
    busy = prefill_work(place, tokens, context)
    if place.attention_replicas > 1:  # a prompt alone has its attention and its dense layers on one device
        busy *= _alone(place)
    if place.value("micro_batched"):  # one micro-batch after the other: the first one's reading comes on top
        return busy + fixed + float(place.derived("micro_batch", _micro_batch)[0])
    reading = read_bytes(place.model, place.held, tokens) / place.devices / read_rate(place)
    if place.split_layers > 1:
        reading *= place.split_layers
    return smooth_max(busy, reading, place.value("overlap")) + fixed


def _alone(place: Placement) -> float:
    routed = active_expert_parameters(place) / place.value("expert_mfu")
    rest = max(0.0, body_parameters(place) - active_expert_parameters(place))
    return (routed + rest * place.attention_replicas) / max(1.0, routed + rest)


def prefill_work(place: Placement, tokens: float, context: float = 0.0) -> float:
    """The arithmetic alone: what a prefill adds to steps that run anyway."""
    linear, by_group, collective = place.derived("prefill", _prefill_rates)
    attention = 0.0
    reach = context + tokens / 2.0
    for window, second in by_group:
        attention += second * (reach if window is None or reach < window else window)
    busy = tokens * (linear + attention)
    if tokens and place.value("micro_batched"):
        pieces = max(1.0, tokens / MICRO_BATCH)
        read, unpacked = place.derived("micro_batch", _micro_batch)
        busy += (
            pieces - 1.0
        ) * read + pieces * unpacked  # the first one's reading is shared with steps that run anyway
    return float(busy / _stages_at_once(place, tokens) + collectives(place, tokens) * collective)


def _micro_batch(place: Placement) -> tuple[float, float]:
    """Seconds for each of llama.cpp's micro-batches, in which weights are read anew: for reading them, and for writing packed ones out in
    half precision, which it did before it had kernels that multiply packed weights."""
    model = place.model
    whole = model.active_parameters + model.expert_parameters - active_expert_parameters(place)
    unpacked = place.value("unpacks") * 2.0 * whole if place.scheme.unpacked else 0.0
    each = place.split_layers / (place.devices * read_rate(place))
    return read_bytes(model, place.held, MICRO_BATCH) * each, unpacked * each


def _prefill_rates(place: Placement) -> tuple[float, tuple[tuple[int | None, float], ...], float]:
    """Seconds for a token's multiplications; by window, for a token's attention to one token; the share of collectives that shows."""
    model, gpu = place.model, place.gpu
    devices = place.tensor_parallel * place.pipeline_parallel
    # Kernels that add up in half precision use the full rate of consumer cards.
    doubled = 2.0 if gpu.halved and place.value("half_sums") else 1.0
    rate = doubled * gpu.peak(place.compute) * place.value("prefill_mfu") * devices
    if model.experts:
        rate *= place.value("expert_mfu")
    query = model.query_heads_length or model.embedding_length
    attention_rate = doubled * gpu.peak("fp16") * place.value("attention_mfu") * devices
    groups = tuple((group.window, 4.0 * query * group.layers / attention_rate) for group in model.attention)
    return 2.0 * body_parameters(place) / rate, groups, place.value("prefill_collectives")


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
