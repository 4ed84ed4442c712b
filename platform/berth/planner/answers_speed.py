"""Answers about time and throughput, all but the time to the first token."""

from __future__ import annotations

import re

import msgspec

from berth.planner.answers import Answer, Sections, Unanswerable, answers, placement_of
from berth.planner.measurements import Measurement
from berth.planner.placement import Placement, kv_read_bytes
from berth.planner.pool import cache_tokens, kv_pool, vllm_limits
from berth.planner.serving import Load, Steady, steady
from berth.planner.step import decode_step, prefill, prefill_work

MLPERF_LENGTHS = {  # mean prompt and reply tokens of the benchmark's data sets (MLPerf Inference v5 rules)
    "llama-2-70b": (294, 283),
    "mixtral": (352, 145),
    "405b": (9428, 684),
    "8b": (778, 73),
    "deepseek": (780, 3880),
    "gptj": (770, 72),
}
USUAL_CONTEXT = 256.0  # tokens, where a page of single-stream speeds does not say


@answers("decode_tok_s_per_user", "prompt_plus_output_tok_s", "decode_tok_s_total")
def _decode_speed(point: Measurement, sections: Sections) -> Answer:
    place = placement_of(point, sections)
    batch = float(point.concurrency or 1)
    prompt, output = float(point.input or 0), float(point.output or 0)
    context = prompt + output / 2.0 if output else prompt + USUAL_CONTEXT
    step = decode_step(place, batch, context)
    if point.metric == "decode_tok_s_total":
        return Answer(batch / step)
    whole = "whole request" in point.quote or point.metric == "prompt_plus_output_tok_s"
    if not whole or not output:
        return Answer(1.0 / step)
    seconds = output * step + (prefill(place, prompt) if prompt > 1 else 0.0)
    tokens = output + (prompt if point.metric == "prompt_plus_output_tok_s" else 0.0)
    return Answer(tokens / seconds)


@answers("prefill_tok_s")
def _prefill_speed(point: Measurement, sections: Sections) -> Answer:
    place = placement_of(point, sections)
    prompt, batch = float(point.input or 512), float(point.concurrency or 1)
    return Answer(prompt * batch / _batched_prefill(place, prompt, batch))


@answers("prompt_step_latency_ms")
def _prompt_step(point: Measurement, sections: Sections) -> Answer:
    place = placement_of(point, sections)
    return Answer(1e3 * _batched_prefill(place, float(point.input or 1), float(point.concurrency or 1)))


def _batched_prefill(place: Placement, prompt: float, batch: float) -> float:
    alone = prefill(place, prompt)
    fixed = prefill(place, prompt) - prefill_work(place, prompt)
    return alone if batch == 1 else max(batch * prefill_work(place, prompt) + min(fixed, alone), alone)


@answers("output_tok_s_total", "output_tok_s", "output_tok_s_per_gpu")
def _throughput(point: Measurement, sections: Sections) -> Answer:
    place = placement_of(point, sections)
    found = loaded(place, point, _load(point))
    total = found.throughput
    # One source's header says "out tok/s" where the same source's other table says per GPU; both read as per GPU.
    per_gpu = point.metric == "output_tok_s_per_gpu" or (point.metric == "output_tok_s" and "GPU" in point.quote)
    return Answer(total / point.gpus if per_gpu else total)


@answers("total_tok_s")
def _with_prompts(point: Measurement, sections: Sections) -> Answer:
    load = _load(point)
    found = loaded(placement_of(point, sections), point, load)
    return Answer(found.throughput * (load.input + load.output) / max(1.0, load.output))


@answers("requests_per_s")
def _requests(point: Measurement, sections: Sections) -> Answer:
    load = _load(point)
    return Answer(loaded(placement_of(point, sections), point, load).throughput / max(1.0, load.output))


@answers("output_tok_s_per_user")
def _per_user(point: Measurement, sections: Sections) -> Answer:
    if point.input is None or point.output is None:
        return _decode_speed(msgspec.structs.replace(point, metric="decode_tok_s_per_user"), sections)
    return Answer(1.0 / loaded(placement_of(point, sections), point, _load(point)).tpot)


@answers("request_ms", "request_mean_ms", "request_median_ms", "request_p50_ms")
def _whole_request(point: Measurement, sections: Sections) -> Answer:
    """Clients that each wait for their answer: by Little's law the answer takes as long as the clients that run take to be served."""
    place, load = placement_of(point, sections), _load(point)
    if point.unlimited:
        raise Unanswerable("under unlimited load a request's time has no bound")
    found = loaded(place, point, load)
    if load.concurrency <= 1:
        return Answer(1e3 * (prefill(place, load.input) + load.output * found.tpot))
    return Answer(1e3 * load.concurrency * load.output / found.throughput)


@answers("mlperf_offline_output_tok_s", "mlperf_server_output_tok_s", "mlperf_interactive_output_tok_s")
def _mlperf(point: Measurement, sections: Sections) -> Answer:
    place = placement_of(msgspec.structs.replace(point, runtime="TensorRT-LLM MLPerf"), sections)
    text = point.quote.lower() + " " + point.model.lower()
    lengths = next((value for key, value in MLPERF_LENGTHS.items() if key in text.replace("llama2", "llama-2")), None)
    if lengths is None:
        raise Unanswerable("the benchmark's prompt and reply lengths are not known")
    each, copies = mlperf_sharding(place, point.gpus)
    load = Load(float(lengths[0]), float(lengths[1]), 1e9)
    scenario = point.metric.split("_")[1]
    if scenario == "offline":
        return Answer(loaded(each, point, load).throughput * copies)
    first, token = MLPERF_LIMITS[scenario].get(_name(text), (2.0, 0.2))
    found = _within(each, point, load, token)
    # The queue that random arrivals leave room for: at a share rho of the capacity the 99th percentile of waiting is about
    # 2.3 rho / (1 - rho) service times (M/D/1), which must fit into what the prefill leaves of the limit.
    service = load.output / found.throughput
    spare = max(0.1 * first, first - prefill(each, load.input))
    return Answer(found.throughput * copies * spare / (spare + 2.3 * service))


MLPERF_LIMITS: dict[
    str, dict[str, tuple[float, float]]
] = {  # seconds to the first token, and a token (99th percentiles)
    "server": {"405b": (6.0, 0.175), "8b": (2.0, 0.1)},
    "interactive": {"llama-2-70b": (0.45, 0.04), "405b": (4.5, 0.08), "8b": (0.5, 0.03)},
}


def _name(text: str) -> str:
    return next((key for key in MLPERF_LENGTHS if key in text.replace("llama2", "llama-2")), "")


def mlperf_sharding(place: Placement, gpus: int) -> tuple[Placement, float]:
    """Submitters run as few devices a copy as hold the model, and as many copies as there is room for."""
    for shards in (1, 2, 4, 8, 16):
        if place.held.total / shards < 0.75 * place.gpu.usable:
            each = msgspec.structs.replace(place, tensor_parallel=min(shards, gpus), split_layers=1)
            return each, max(1.0, gpus / shards)
    raise Unanswerable("the model does not fit on the devices of the point")


def _within(place: Placement, point: Measurement, load: Load, most: float) -> Steady:
    """The most concurrency whose time per token stays below a limit."""
    low, high = 1.0, 4096.0
    found = loaded(place, point, msgspec.structs.replace(load, concurrency=low))
    for _ in range(20):
        middle = (low * high) ** 0.5
        tried = loaded(place, point, msgspec.structs.replace(load, concurrency=middle))
        low, high, found = (middle, high, tried) if tried.tpot <= most else (low, middle, found)
    return found


@answers("tpot_ms", "tpot_mean_ms", "tpot_median_ms", "tpot_p50_ms", "itl_ms", "itl_mean_ms")
def _tpot(point: Measurement, sections: Sections) -> Answer:
    place = placement_of(point, sections)
    return Answer(1e3 * loaded(place, point, _load(point)).tpot)


@answers("itl_median_ms", "itl_p50_ms")
def _itl(point: Measurement, sections: Sections) -> Answer:
    place = placement_of(point, sections)
    return Answer(1e3 * loaded(place, point, _load(point)).step)


@answers("itl_intercept_ms")
def _intercept(point: Measurement, sections: Sections) -> Answer:
    return Answer(1e3 * decode_step(placement_of(point, sections), float(point.concurrency or 1), 1.0))


@answers("itl_slope_ms_per_ctx_token")
def _slope(point: Measurement, sections: Sections) -> Answer:
    place = placement_of(point, sections)
    per_token = (
        kv_read_bytes(place.model, 60_000, place.kv_bits) - kv_read_bytes(place.model, 50_000, place.kv_bits)
    ) / 10_000
    return Answer(1e3 * per_token / place.kv_shares / (place.gpu.bandwidth * place.value("kv_efficiency")))


def _load(point: Measurement) -> Load:
    if point.input is None or point.output is None:
        raise Unanswerable("the point does not say its prompt and reply lengths")
    if point.concurrency is None and not point.unlimited:
        if "throughput" in point.kind:
            return Load(point.input, point.output, 1e9)
        raise Unanswerable("the point does not say its concurrency")
    return Load(point.input, point.output, float(point.concurrency or 1e9))


def loaded(place: Placement, point: Measurement, load: Load) -> Steady:
    limits = vllm_limits(place.gpu)
    told = re.search(r"utilization[ =]+(0\.\d+)", point.quote)
    share = float(told.group(1)) if told else place.value("memory_share")
    pool = kv_pool(place, limits, share)
    if pool <= 0:
        raise Unanswerable("by the planner's own estimate the model does not fit there")
    most = limits.sequences if place.engine.startswith("vllm") else int(place.value("max_sequences"))
    found = steady(place, load, cache_tokens=cache_tokens(place, pool), max_sequences=most)
    if (
        place.model.experts
        and place.tensor_parallel > 1
        and place.engine.startswith("tensorrt_llm")
        and point.unlimited
    ):
        spread = msgspec.structs.replace(place, attention_replicas=place.tensor_parallel)
        other = steady(
            spread, load, cache_tokens=max(1, cache_tokens(spread, kv_pool(spread, limits, share))), max_sequences=most
        )
        found = max(found, other, key=lambda one: one.throughput)
    return found
