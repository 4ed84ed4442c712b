"""Whether a placement has the memory for a demand, and how many requests it can hold at once. Bytes per device."""

from __future__ import annotations

from typing import Final

import msgspec

from berth.planner.capability import capabilities
from berth.planner.demand import Demand
from berth.planner.explain import Reason, reason, size
from berth.planner.placement import Placement
from berth.planner.pool import Limits, cache_tokens, kv_pool, parts, sequence_tokens, vllm_limits
from berth.planner.resident import resident
from berth.planner.serving import Load, held_tokens

MARGIN: Final = 1.03  # of memory, for what allocators lose


class Memory(msgspec.Struct, frozen=True):
    """Bytes per device."""

    weights: int
    cache: int
    overhead: int
    usable: int

    @property
    def free(self) -> int:
        return self.usable - self.weights - self.cache - self.overhead


def room_for(place: Placement, demand: Demand) -> tuple[Memory, int, float] | Reason:
    """Memory, slots, and how many requests of usual length the cache holds."""
    capability = capabilities()[place.engine]
    return (
        _paged(place, demand, capability.max_sequences)
        if capability.paged
        else _slotted(place, demand, capability.max_sequences)
    )


def _paged(place: Placement, demand: Demand, most: int) -> tuple[Memory, int, float] | Reason:
    limits = vllm_limits(place.gpu)
    limits = Limits(min(limits.sequences, most), limits.batched_tokens)
    found = parts(place, limits)
    share = place.value("memory_share")
    pool = kv_pool(place, limits, share)
    usable = int(share * place.gpu.usable)
    if pool <= 0:
        return _too_big(place, found.total, usable)
    tokens = cache_tokens(place, pool / MARGIN)
    context = demand.context(place.model.context_length)
    needed = sequence_tokens(place, context, limits.batched_tokens)
    if tokens < needed:
        return reason(
            "context_too_long_for_memory",
            f"{size(pool)} are left for the cache: {tokens:,} tokens, and one request may have {context:,}.",
            left=pool, tokens=tokens, asked=context,
        )  # fmt: skip
    load = Load(float(demand.prompt_tokens), float(demand.reply_tokens), 1.0)
    held = tokens / max(1.0, held_tokens(place, load))
    slots = limits.sequences * place.attention_replicas
    return Memory(found.weights, pool, found.total - found.weights, usable), slots, held


def _slotted(place: Placement, demand: Demand, most: int) -> tuple[Memory, int, float] | Reason:
    """Every slot holds its whole context, whether a request uses it or not."""
    usable = place.gpu.usable * place.devices
    context = demand.context(place.model.context_length)
    base = resident(place, batch=0, prompt=0, length=context) * MARGIN
    one = resident(place, batch=1, prompt=0, length=context) * MARGIN - base
    if base > usable:
        return _too_big(place, int(base / place.devices), place.gpu.usable)
    if base + one > usable:
        left = int(usable - base)
        return reason(
            "context_too_long_for_memory",
            f"{size(left)} are left for the cache; one request of {context:,} tokens takes {size(int(one))}.",
            left=left, needed=int(one), asked=context,
        )  # fmt: skip
    slots = most if one <= 0 else min(most, int((usable - base) / one))
    held = place.held.total - place.held.table
    n = place.devices
    overhead = int((base - held) / n)
    return Memory(int(held / n), int(slots * one / n), overhead, place.gpu.usable), slots, float(slots)


def _too_big(place: Placement, needed: int, usable: int) -> Reason:
    each = f" on each of {place.devices} devices" if place.devices > 1 else ""
    return reason(
        "memory_short",
        f"Memory is short by {size(max(1, needed - usable))}{each}: {size(needed)} are needed "
        f"(weights {size(place.held.total // place.devices)}) and {size(usable)} are there.",
        needed=needed, available=usable, short=max(1, needed - usable),
    )  # fmt: skip
