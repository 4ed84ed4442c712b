"""What each engine can do on which hardware: data/engines.toml as values, and the one sentence when it cannot."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec

from berth.catalog.facts import ModelFacts
from berth.planner.explain import Reason, reason
from berth.planner.hardware import Gpu
from berth.planner.tables import document


class Capability(msgspec.Struct, frozen=True):
    engine: str
    version: str
    source: str
    vendors: tuple[str, ...]
    least_capability: float
    tensor_parallel: bool
    pipeline_parallel: bool
    max_sequences: int
    kv_bits: Mapping[str, float]
    paged: bool  # the cache is handed out in pages, as sequences grow; else every slot holds its whole context
    moe: bool
    schemes: Mapping[str, float]
    formats: tuple[str, ...]
    features: tuple[str, ...]
    mla: float = 0.0
    moe_schemes: tuple[str, ...] = ()
    amd_schemes: tuple[str, ...] = ()
    existing_only: tuple[str, ...] = ()  # formats that are loaded but not made here
    layer_split: bool = False
    attention_parallel: bool = False  # attention on whole requests, experts spread over the devices
    cpu: bool = False


@cache
def capabilities() -> Mapping[str, Capability]:
    sections: dict[str, Any] = document("engines.toml")
    return {name: msgspec.convert({"engine": name, **section}, Capability) for name, section in sections.items()}


def unsupported(capability: Capability, scheme: str, gpu: Gpu, model: ModelFacts, kv_bits: int) -> Reason | None:
    """The first reason why this engine cannot run this format of the model on this hardware."""
    return (
        _hardware(capability, gpu) or _format(capability, scheme, gpu, model) or _cache(capability, gpu, model, kv_bits)
    )


def _hardware(capability: Capability, gpu: Gpu) -> Reason | None:
    name = capability.engine
    if gpu.is_cpu and not capability.cpu:
        return reason(
            "engine_hardware", f"{name} is planned on GPUs only; {gpu.key} is a CPU.", engine=name, hardware=gpu.key
        )
    if gpu.vendor not in capability.vendors:
        return reason(
            "engine_hardware", f"{name} does not run on {gpu.vendor} hardware.", engine=name, hardware=gpu.key
        )
    if gpu.capability and gpu.capability < capability.least_capability:
        return reason(
            "capability_too_low",
            f"{name} needs compute capability {capability.least_capability:g}; {gpu.key} has {gpu.capability:g}.",
            engine=name, least=capability.least_capability, actual=gpu.capability,
        )  # fmt: skip
    return None


def _format(capability: Capability, scheme: str, gpu: Gpu, model: ModelFacts) -> Reason | None:
    name = capability.engine
    if scheme not in capability.schemes:
        return reason(
            "format_unsupported", f"{name} {capability.version} does not load {scheme}.", engine=name, format=scheme
        )
    least = capability.schemes[scheme]
    if gpu.capability and gpu.capability < least:
        return reason(
            "capability_too_low",
            f"No {scheme} on {gpu.key} ({gpu.capability:g} < {least:g}) with {name}.",
            engine=name, format=scheme, least=least, actual=gpu.capability,
        )  # fmt: skip
    if gpu.vendor == "amd" and capability.amd_schemes and scheme not in capability.amd_schemes:
        return reason("format_unsupported", f"{name} has no {scheme} kernels for AMD.", engine=name, format=scheme)
    if model.experts and not capability.moe:
        return reason("moe_unsupported", f"{name} does not run mixture-of-experts models.", engine=name)
    if model.experts and capability.moe_schemes and scheme not in capability.moe_schemes:
        return reason("moe_unsupported", f"{name} has no {scheme} kernels for experts.", engine=name, format=scheme)
    return None


def _cache(capability: Capability, gpu: Gpu, model: ModelFacts, kv_bits: int) -> Reason | None:
    name, least = capability.engine, capability.kv_bits.get(str(kv_bits))
    if least is None or (gpu.capability and gpu.capability < least) or (kv_bits == 8 and not gpu.capability):
        return reason(
            "cache_unsupported", f"{name} keeps no {kv_bits}-bit cache on {gpu.key}.", engine=name, bits=kv_bits
        )
    latent = any(group.latent for group in model.attention)
    if latent and (not capability.mla or (gpu.capability and gpu.capability < capability.mla)):
        return reason(
            "attention_unsupported", f"{name} has no kernels for latent attention (MLA) on {gpu.key}.", engine=name
        )
    return None


def dividing(model: ModelFacts, shards: int) -> Reason | None:
    """Tensor parallelism must divide the query heads, and divide or be divided by the KV heads."""
    if shards == 1:
        return None
    heads = model.heads
    if heads % shards:
        return reason(
            "heads_not_divisible",
            f"{heads} attention heads cannot be split over {shards} devices.",
            heads=heads,
            devices=shards,
        )
    for group in model.attention:
        if not group.latent and group.kv_heads % shards and shards % group.kv_heads:
            return reason(
                "heads_not_divisible",
                f"{group.kv_heads} KV heads cannot be split over {shards} devices.",
                heads=group.kv_heads,
                devices=shards,
            )
    if model.vocabulary % shards and (model.vocabulary + 64) // 64 * 64 % shards:
        return reason("heads_not_divisible", f"The vocabulary cannot be split over {shards} devices.", devices=shards)
    return None
