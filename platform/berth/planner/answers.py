"""The planner's answer to a measurement, or why it has none."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from berth.catalog.facts import ModelFacts
from berth.planner.catalogue import model_by_name, model_by_size, size_in_name
from berth.planner.coefficients import Coefficients, build, coefficients
from berth.planner.hardware import Gpu, gpu_by_name
from berth.planner.measurements import Measurement
from berth.planner.metrics import canonical, from_milliseconds, in_milliseconds
from berth.planner.placement import Placement
from berth.planner.quantization import Scheme, scheme
from berth.planner.weights import weights


class Answer(msgspec.Struct, frozen=True):
    """`value` is in the measurement's unit. `low` and `high` hold the range where the answer is one (queueing). `assumed`: what the
    point did not say and the answer had to."""

    value: float
    low: float | None = None
    high: float | None = None
    assumed: tuple[str, ...] = ()


class Unanswerable(Exception):
    """The reason is the message; it groups points, so it names no numbers."""


SPLITTING: Final = (
    "llamacpp",
    "llamacpp_vulkan",
    "ollama",
    "transformers",
    "autoawq",
    "autoawq_gemv",
    "exllama",
    "exllamav2",
)


def model_of(point: Measurement) -> ModelFacts:
    if not point.model:
        raise Unanswerable("no model is named")
    if (found := model_by_name(point.model)) is not None:
        return found
    billions, notes = point.billions, point.notes
    told = size_in_name(point.model)
    if told is not None:
        billions = billions or told[0]
        notes = notes if "active" in notes else f"{notes} {told[1]}"
    if billions is None or not 1e-4 < billions < 1e5:
        raise Unanswerable(f"the shape of the model {point.model} is not known, and the point does not say its size")
    return model_by_size(billions, notes)


def scheme_of(point: Measurement, model: ModelFacts) -> Scheme:
    engine = engine_of(point) if point.engine or not point.runtime else ""
    name = point.quant
    if (not name or name.lower().startswith("native")) and not engine.startswith(("llamacpp", "ollama")):
        told = re.search(r"nvfp4|fp8|w8a8|w4a16|awq|gptq|mxfp4|int8|int4", point.model.lower())
        other = re.search(r"-q(fp8)\b|-dt(f32|float32)\b", point.url)
        if told is not None:
            name = told.group(0)
        elif other is not None:
            name = other.group(1) or "f32"
    found = scheme(name, engine=re.sub(r"_(vulkan|v0|2024)$", "", engine), native=model.native_quantization)
    if found is None:
        raise Unanswerable(f"the weight format {point.quant} is not known")
    return found


def gpu_of(point: Measurement) -> Gpu:
    found = gpu_by_name(point.gpu) if point.gpu else None
    if found is None:
        raise Unanswerable(f"the hardware is not known ({point.gpu or 'not stated'})")
    if found.link == "nvlink" and re.search(r"no NVLink|PCIe", point.quote):
        found = msgspec.structs.replace(found, link="pcie4", link_bandwidth=24e9)
    if told := re.search(r"(\d+)\s?GB", point.gpu):
        stated = int(told.group(1)) * 10**9
        shared = found.is_cpu or found.kind in ("apple", "unified")  # a machine's own memory comes in any size
        if stated != found.memory and (shared or 0.4 < stated / found.memory < 2.5):
            found = msgspec.structs.replace(found, memory=stated, usable=int(found.usable * stated / found.memory))
    if found.is_cpu and re.match(r"\s*(2\s*[x×]|dual)", point.gpu.lower()):
        found = msgspec.structs.replace(
            found, bandwidth=2 * found.bandwidth, memory=2 * found.memory, usable=2 * found.usable,
            flops={kind: 2 * rate for kind, rate in found.flops.items()},
        )  # fmt: skip
    return found


Sections = Mapping[str, Any] | None


def engine_of(point: Measurement) -> str:
    """Where none is stated, that of the file's form: GGUF runs in llama.cpp."""
    if point.engine:
        return point.engine
    if point.runtime:
        raise Unanswerable(f"the engine is not known ({point.runtime})")
    found = scheme(point.quant, engine="")
    return "llamacpp" if found is not None and found.gguf else "vllm"


def placement_of(point: Measurement, sections: Sections = None) -> Placement:
    """`sections`: other coefficients than the ones of the package, while they are being fitted."""
    model = model_of(point)
    engine = engine_of(point)
    chosen, gpu = scheme_of(point, model), gpu_of(point)
    if (
        re.sub(r"_(v0|late|2024)$", "", engine) in SPLITTING
        and engine != "llamacpp_v0"
        and point.tensor_parallel in (None, 1)
    ):
        tensor, split = 1, point.gpus
    elif engine == "llamacpp_v0":
        tensor, split = point.gpus, 1  # llama.cpp split every matrix by rows then
    else:
        tensor, split = point.tensor_parallel or point.gpus, 1
    pipeline = 1
    if told := re.search(r"PP(\d+)|pp=(\d+)|-tp\d+pp(\d+)dp", f"{point.notes} {point.url}"):
        pipeline = int(next(number for number in told.groups() if number))
    elif tensor == 1 and point.gpus > 1 and split == 1:
        pipeline = point.gpus
    section = "vllm_020" if engine == "vllm" and _at_least(point.version, 20) else engine
    coefs: Coefficients = build(sections, section) if sections is not None else coefficients(section)
    kv_bits = (
        8 if re.search(r"-kv(?:cache)?fp8|kv_cache_dtype[ =]fp8", f"{point.url} {point.quote}") else chosen.kv_bits
    )
    if engine.startswith("tensorrt_llm") and chosen.compute in ("fp8", "fp4"):
        kv_bits = 8  # the published FP8 and FP4 checkpoints carry an FP8 cache
    return Placement(
        model=model, scheme=chosen, held=weights(model, chosen), engine=engine, coefficients=coefs, gpu=gpu,
        tensor_parallel=tensor, pipeline_parallel=pipeline, kv_bits=kv_bits, split_layers=split,
    )  # fmt: skip


def _at_least(version: str, minor: int) -> bool:
    match = re.match(r"v?(\d+)\.(\d+)", version)
    return match is not None and (int(match.group(1)), int(match.group(2))) >= (0, minor)


Handler = Callable[[Measurement, Sections], Answer]
HANDLERS: Final[dict[str, Handler]] = {}


def answers(*metrics: str) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        for metric in metrics:
            HANDLERS[metric] = handler
        return handler

    return register


def _assumed(point: Measurement) -> tuple[str, ...]:
    try:
        return model_of(point).assumed
    except Unanswerable:  # a price, say, needs no model
        return ()


def answer(point: Measurement, sections: Sections = None) -> Answer:
    """Raises Unanswerable."""
    from berth.planner import answers_memory, answers_quality, answers_speed, answers_ttft  # noqa: F401 - they register themselves

    concurrent = point.unlimited or (point.concurrency or 1) > 1
    name = canonical(point.metric, frozenset(HANDLERS), concurrent=concurrent)
    handler = HANDLERS.get(name)
    if handler is None:
        raise Unanswerable(f"the metric {point.metric or '(unnamed)'} is not one the planner predicts")
    if name != point.metric:
        point = msgspec.structs.replace(point, metric=name)
    found = handler(point, sections)
    assumed = _assumed(point)
    if not point.runtime and point.gpu:
        assumed = (*assumed, "the engine is not stated")
    found = msgspec.structs.replace(
        found, assumed=(*found.assumed, *(text for text in assumed if text not in found.assumed))
    )
    times = from_milliseconds(point.unit) if in_milliseconds(name) else 1.0
    if times == 1.0:
        return found
    ends = {"low": found.low and found.low * times, "high": found.high and found.high * times}
    return msgspec.structs.replace(found, value=found.value * times, **ends)
