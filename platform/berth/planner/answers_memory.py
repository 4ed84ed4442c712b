"""Answers about memory: sizes of files and weights, key-value pools, what a process uses, and whether it fits at all."""

from __future__ import annotations

import re

from berth.planner.answers import Answer, Sections, Unanswerable, answers, model_of, placement_of, scheme_of
from berth.planner.hardware import GIB, gpu_by_name
from berth.planner.market import stations
from berth.planner.measurements import Measurement
from berth.planner.placement import Placement, kv_token_bytes
from berth.planner.pool import BLOCK, Limits, activations, cache_tokens, kv_pool, parts, sequence_tokens, vllm_limits
from berth.planner.resident import resident
from berth.planner.weights import weights

_UNITS = {"bytes": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 1024.0, "MiB": 1024.0**2, "GiB": 1024.0**3, "TB": 1e12}
FIT_MARGIN = 1.03  # allocators lose some of the memory to gaps
_METADATA_BYTES = 60  # of a GGUF header for each entry of the vocabulary: the token, its score and its merges


def _in_unit(size: float, unit: str) -> float:
    if unit not in _UNITS:
        raise Unanswerable(f"the unit {unit} is not one of memory")
    return size / _UNITS[unit]


@answers("gguf_file_size", "file_size", "model_file_size")
def _file_size(point: Measurement, sections: Sections) -> Answer:
    model = model_of(point)
    size = weights(model, scheme_of(point, model)).total + _METADATA_BYTES * model.vocabulary
    return Answer(_in_unit(size, point.unit), assumed=model.assumed)


@answers("bits_per_weight")
def _bits(point: Measurement, sections: Sections) -> Answer:
    model = model_of(point)
    return Answer(
        weights(model, scheme_of(point, model)).total * 8.0 / (model.parameters - model.tower_parameters),
        assumed=model.assumed,
    )


def _utilisation(point: Measurement, place: Placement) -> float:
    told = re.search(r"utili[sz]ation[ =]+(0\.\d+|1\.0)", point.quote)
    return float(told.group(1)) if told else place.value("memory_share")


def _limits(point: Measurement, place: Placement) -> Limits:
    """The trial run never has more sequences than told."""
    limits = vllm_limits(place.gpu)
    told = re.search(r"max[-_]num[-_]seqs[ =]+(\d+)", point.quote)
    return Limits(int(told.group(1)), limits.batched_tokens) if told else limits


@answers("weight_memory_per_gpu")
def _weights(point: Measurement, sections: Sections) -> Answer:
    place = placement_of(point, sections)
    return Answer(_in_unit(parts(place, _limits(point, place)).weights, point.unit), assumed=place.model.assumed)


@answers("activation_peak_per_gpu")
def _activations(point: Measurement, sections: Sections) -> Answer:
    place = placement_of(point, sections)
    return Answer(_in_unit(activations(place, _limits(point, place)), point.unit))


@answers("cuda_graph_memory_per_gpu")
def _graphs(point: Measurement, sections: Sections) -> Answer:
    place = placement_of(point, sections)
    return Answer(_in_unit(place.value("graph_gib") * GIB, point.unit))


def _pool(point: Measurement, place: Placement) -> int:
    pool = kv_pool(place, _limits(point, place), _utilisation(point, place))
    if pool <= 0:
        raise Unanswerable("by the planner's own estimate the model does not fit there")
    return pool


@answers("kv_cache_memory_per_gpu")
def _kv_memory(point: Measurement, sections: Sections) -> Answer:
    place = placement_of(point, sections)
    return Answer(_in_unit(_pool(point, place), point.unit))


@answers("kv_cache_capacity")
def _kv_capacity(point: Measurement, sections: Sections) -> Answer:
    place = placement_of(point, sections)
    return Answer(float(cache_tokens(place, _pool(point, place))))


@answers("kv_cache_blocks")
def _kv_blocks(point: Measurement, sections: Sections) -> Answer:
    place = placement_of(point, sections)
    return Answer(cache_tokens(place, _pool(point, place)) / BLOCK)


@answers("max_concurrency_at_max_model_len")
def _max_concurrency(point: Measurement, sections: Sections) -> Answer:
    place = placement_of(point, sections)
    told = re.search(r"max[-_ ]model[-_ ]len[ =]+(\d+)", point.quote)
    length = int(told.group(1)) if told else point.input
    if not length:
        raise Unanswerable("the point does not say the length of a sequence")
    limits = _limits(point, place)
    return Answer(cache_tokens(place, _pool(point, place)) / sequence_tokens(place, length, limits.batched_tokens))


@answers("kv_bytes_per_token")
def _kv_token(point: Measurement, sections: Sections) -> Answer:
    model = model_of(point)
    return Answer(_in_unit(kv_token_bytes(model, scheme_of(point, model).kv_bits), point.unit))


def _used(point: Measurement, sections: Sections) -> tuple[float, Placement]:
    place = placement_of(point, sections)
    length = (point.input or 0) + (point.output or 0)
    batch = point.concurrency or 1
    return resident(place, batch=batch, prompt=point.input or 0, length=length or 2048), place


PAGED = ("vllm", "vllm_v0", "sglang", "tensorrt_llm", "tensorrt_llm_v0")


@answers("gpu_memory_used")
def _memory_used(point: Measurement, sections: Sections) -> Answer:
    used, place = _used(point, sections)
    if place.engine in PAGED:  # they fill what they are given
        used = _utilisation(point, place) * place.gpu.usable * place.devices
    # What these pages call GB and MB is what PyTorch prints: divided by 1024.
    return Answer(used / {"GB": 1024.0**3, "MB": 1024.0**2}.get(point.unit, _UNITS.get(point.unit, 1.0)))


@answers("fits")
def _fits(point: Measurement, sections: Sections) -> Answer:
    used, place = _used(point, sections)
    if place.engine not in PAGED:
        return Answer(1.0 if used * FIT_MARGIN / place.devices <= place.gpu.usable else 0.0)
    limits = _limits(point, place)
    pool = kv_pool(place, limits, _utilisation(point, place))
    longest = (point.input or 0) + (point.output or 0) or place.model.context_length
    room = pool > 0 and cache_tokens(place, pool / FIT_MARGIN) >= sequence_tokens(place, longest, limits.batched_tokens)
    return Answer(float(room))


@answers("on_demand_usd_per_gpu_hour")
def _price(point: Measurement, sections: Sections) -> Answer:
    """Not predicted but known: the price of the tier with this hardware, where there is one."""
    gpu = gpu_by_name(point.gpu)
    price = next((each.price for each in stations() if gpu is not None and each.gpu.key == gpu.key), None)
    if price is None:
        raise Unanswerable("no tier has a price for this hardware")
    return Answer(float(price), assumed=("the price of a tier is data: providers differ",))
