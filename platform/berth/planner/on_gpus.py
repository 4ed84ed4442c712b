"""A replica on GPUs that are here: the fewest devices that hold it, and how it lies on them. By the same arithmetic as surveys.

Every request may be as long as the context that was asked for: what is promised fits at the worst.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from berth.planner.capability import capabilities
from berth.planner.demand import Demand
from berth.planner.explain import Reason, reason
from berth.planner.hardware import Gpu, gpu_by_name
from berth.planner.market import Station
from berth.planner.memory import MemoryNeed
from berth.planner.options import Option, place
from berth.planner.performance import HIGH, LOW, PROMPT, Estimate
from berth.planner.placement import Placement
from berth.planner.pool import vllm_limits
from berth.planner.room import Memory, room_for
from berth.planner.serving import Load, steady
from berth.planner.shapes import Candidate, Fit, Layout, Question
from berth.planner.step import prefill
from berth.planner.weights import Weights

ENGINES: Final = frozenset({"vllm", "llamacpp", "tensorrt_llm"})
ASKED: Final = frozenset(
    {"tensorrt_llm"}
)  # run only where somebody pins it: its program is no part of usual installations
MAIN_MEMORY: Final = 8 << 30  # bytes beside the GPUs': processes with CUDA's libraries, and buffers to load through
_SAME: Final = {"F16": "BF16", "F32": "BF16"}
_KV_8: Final = {"vllm": "fp8", "tensorrt_llm": "fp8", "llamacpp": "q8_0"}


def impossible(question: Question, candidate: Candidate) -> Reason | None:
    """What speaks against the engine there, whatever is asked of it."""
    engine, tier = candidate.engine, candidate.tier
    if engine not in ENGINES:
        return reason("engine_hardware", f"{engine} is not run on GPUs here.", engine=engine, hardware=tier.key)
    if engine in ASKED and question.pins.engine != engine:
        return reason(
            "engine_not_asked_for",
            f"{engine} is no part of every installation: pin it to run it on {tier.key}.",
            engine=engine,
        )
    if candidate.artefact.format not in capabilities()[engine].formats:
        return reason(
            "format_unsupported",
            f"{engine} does not load {candidate.artefact.format} files.",
            format=candidate.artefact.format,
        )
    if tier.gpu is None or gpu_by_name(tier.gpu) is None:
        return reason(
            "hardware_unknown", f"The planner does not know the devices of {tier.key} ({tier.gpu}).", tier=tier.key
        )
    return None


def fit_on_gpus(
    question: Question, candidate: Candidate, *, context: int, slots: int, bits: float, loss: float
) -> Fit | Reason:
    """With the fewest devices, and with an 8-bit cache only where a full one does not fit on any number of them."""
    against: Reason | None = None
    for kv_bits in (16, 8):
        for devices in counts(candidate.tier.gpus):
            placed = _placed(question, candidate, devices, kv_bits)
            found = placed if isinstance(placed, Reason) else _held(candidate, placed, context, slots)
            if isinstance(found, Memory) and isinstance(placed, Placement):
                return _fit(candidate, placed, found, context, slots, bits, loss)
            if kv_bits == 16 and isinstance(found, Reason):
                against = found
    return against or reason("memory_short", f"{candidate.tier.key} has no devices.", tier=candidate.tier.key)


def counts(most: int) -> Iterator[int]:
    """Devices that a replica is tried on: powers of two, and all that there are."""
    devices = 1
    while devices < most:
        yield devices
        devices *= 2
    if most:
        yield most


def _placed(question: Question, candidate: Candidate, devices: int, kv_bits: int) -> Placement | Reason:
    tier, engine = candidate.tier, candidate.engine
    gpu = gpu_by_name(tier.gpu or "")
    if gpu is None:  # `impossible` has said so
        raise ValueError("an unknown device")
    station = Station(tier.key, gpu, (devices,), tier.price_per_hour, "offered by this installation", here=True)
    option = Option(engine, _scheme(candidate), station, devices, kv_bits, made=False)
    found = place(option, question.model)
    if isinstance(found, Reason):
        return found
    return msgspec.structs.replace(found, held=_as_it_is(found.held, candidate.artefact.facts.tensor_bytes))


def _scheme(candidate: Candidate) -> str:
    """As the capability table calls the format. GGUF mixtures that it does not list are loaded as those that it does; what they weigh
    is taken from the files. What the converters make by AWQ is in the same form as their GPTQ, and has the same kernels."""
    name, known = candidate.artefact.facts.quantization, capabilities()[candidate.engine].schemes
    if candidate.artefact.format == "gguf":
        return name if name in known else "Q8_0"
    if candidate.artefact.made_of and name == "AWQ-INT4":
        return "INT4 W4A16"
    return _SAME.get(name, name)


def _as_it_is(held: Weights, size: int) -> Weights:
    share = size / max(1, held.total)
    return Weights(*(int(part * share) for part in (held.dense, held.experts, held.table, held.tower, held.positions)))


def _held(candidate: Candidate, placed: Placement, context: int, slots: int) -> Memory | Reason:
    prompt = max(1, context * 3 // 4)
    demand = Demand(
        streams=slots,
        prompt_tokens=prompt,
        reply_tokens=max(1, context - prompt),
        context_length=context,
        ttft_ms=None,
        tokens_per_second=None,
    )
    found = room_for(placed, demand)
    if isinstance(found, Reason):
        return found
    memory, most, held = found
    if min(most, held) >= slots:
        return memory
    each = f"{placed.devices} x {candidate.tier.gpu}"
    return reason(
        "memory_short",
        f"On {each} the cache holds {held:.1f} requests of {context:,} tokens at once; {slots} were asked for.",
        held=round(held, 2),
        asked=slots,
    )


def _fit(
    candidate: Candidate, placed: Placement, memory: Memory, context: int, slots: int, bits: float, loss: float
) -> Fit:
    devices = placed.devices
    cache, weights, overhead = (part * devices for part in (memory.cache, memory.weights, memory.overhead))
    need = MemoryNeed(weights, cache, overhead, weights + cache + overhead, memory.usable * devices)
    prompt = context * 3 / 4
    speed = 1 / steady(placed, Load(prompt, max(1.0, context - prompt), float(slots))).tpot
    first = 1000 * (prefill(placed, float(PROMPT)) + placed.value("ttft_base_ms") / 1000)
    return Fit(
        candidate,
        context,
        slots,
        need,
        _estimate(speed),
        bits,
        loss,
        _estimate(first),
        layout=_layout(candidate, placed, placed.gpu),
    )


def _estimate(value: float) -> Estimate:
    return Estimate(round(value, 1), round(value * LOW, 1), round(value * HIGH, 1), "modelled")


def _layout(candidate: Candidate, placed: Placement, gpu: Gpu) -> Layout:
    paged = capabilities()[candidate.engine].paged
    return Layout(
        devices=placed.devices,
        tensor_parallel=placed.tensor_parallel,
        pipeline_parallel=placed.pipeline_parallel,
        kv_dtype=_KV_8[candidate.engine] if placed.kv_bits == 8 else None,
        memory_fraction=round(placed.value("memory_share"), 3) if paged else None,
        max_batched_tokens=vllm_limits(gpu).batched_tokens if candidate.engine == "vllm" else None,
        main_memory=min(MAIN_MEMORY, max(1 << 30, candidate.tier.usable_memory)),
    )
