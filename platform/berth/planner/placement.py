"""A model in a weight format on an engine and a number of devices: what one replica is, before anyone asks anything of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from berth.catalog.facts import AttentionGroup, ModelFacts
from berth.planner.coefficients import Coefficients
from berth.planner.hardware import Gpu
from berth.planner.once import once
from berth.planner.quantization import Scheme
from berth.planner.weights import Weights


class Placement(msgspec.Struct, frozen=True, dict=True):
    model: ModelFacts
    scheme: Scheme
    held: Weights
    engine: str
    coefficients: Coefficients
    gpu: Gpu
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    kv_bits: int = 16
    split_layers: int = 1  # devices that hold a share of the layers each and work one after the other (llama.cpp)
    attention_replicas: int = 1  # attention runs whole on each device, for a share of the requests (attention DP)

    @property
    def devices(self) -> int:
        return max(self.tensor_parallel * self.pipeline_parallel, self.split_layers)

    @once
    def kv_shares(self) -> int:
        """Over how many devices of a tensor-parallel group a token's cache is spread."""
        if self.attention_replicas > 1:
            return self.attention_replicas
        heads = max((group.kv_heads for group in self.model.attention if not group.latent), default=0)
        return min(self.tensor_parallel, heads) if heads else 1

    def value(self, name: str) -> float:
        """A coefficient for this engine, memory and element type."""
        return self._values(name)

    @once
    def _kinds(self) -> tuple[str, ...]:
        gpu, scheme = self.gpu, self.scheme
        return _kinds(gpu.key, gpu.kind, gpu.vendor, gpu.capability, gpu.halved, scheme.packing, self.compute)

    @once
    def _values(self) -> Callable[[str], float]:
        known = self.coefficients.known.setdefault(self._kinds, {})

        def value(name: str) -> float:
            if name not in known:
                known[name] = self.coefficients.value(name, *self._kinds)
            return known[name]

        return value

    def derived(self, name: str, build: Callable[..., Any]) -> Any:
        """What `build` makes of this placement, once. A builder without parameters (dict) makes an empty store."""
        store = self._store
        if name not in store:
            store[name] = build() if build is dict else build(self)
        return store[name]

    @once
    def _store(self) -> dict[str, Any]:
        return {}

    @once
    def compute(self) -> str:
        """The element type that matrices are really multiplied in on this hardware."""
        wanted = self.scheme.compute
        return wanted if wanted in self.gpu.flops else "fp16"


@lru_cache(maxsize=4096)
def _kinds(
    key: str, kind: str, vendor: str, capability: float, halved: bool, packing: tuple[str, ...], compute: str
) -> tuple[str, ...]:
    """What coefficients may depend on, the most particular first: "hbm-cc9", "gddr-unpacked", "intel-gddr", "fp8"."""
    suffixes = [vendor] if vendor != "nvidia" else []
    suffixes += packing
    if capability:
        suffixes.append(f"cc{capability:g}")
    if vendor == "nvidia" and not halved:
        suffixes.append("full")
    suffixes.append(compute)

    def named(stem: str) -> tuple[str, ...]:
        return (*(f"{stem}-{suffix}" for suffix in suffixes), stem)

    return (*named(key), *named(kind), *packing, compute)


def group_token_bytes(group: AttentionGroup, kv_bits: int) -> float:
    """Of one token in all layers of the group."""
    return group.layers * group.kv_heads * (group.key_length + group.value_length) * kv_bits / 8


def kv_token_bytes(model: ModelFacts, kv_bits: int = 16) -> float:
    """Of one token while no window is full."""
    return sum(group_token_bytes(group, kv_bits) for group in model.attention)


def kv_read_bytes(model: ModelFacts, context: float, kv_bits: int = 16) -> float:
    """What a step reads of one sequence's cache. Windows stop it; a recurrent state is read and written whole."""
    total = 2.0 * model.state_bytes
    for group in model.attention:
        tokens = context if group.window is None else min(context, group.window)
        total += group_token_bytes(group, kv_bits) * tokens
    return total
