"""How fast a replica will answer: an estimate with its interval and where it comes from.

Producing a token means reading every active weight from memory and multiplying with it; whichever takes longer decides.
Requests side by side share the reading and add up the multiplying. The constants were fitted to llama.cpp on CPUs
(docs/planner.md); they say nothing about GPUs.
"""

from __future__ import annotations

from typing import Final

import msgspec

from berth.catalog.facts import ArtefactFacts, ModelFacts
from berth.planner.memory import kv_bytes
from berth.planner.tiers import Tier

BANDWIDTH_SHARE: Final = 0.6  # of what a copy reaches
OPERATIONS_PER_CORE: Final = 30e9  # multiplications and additions per second and core, on quantized weights
LOW, HIGH = 0.6, 1.6  # the interval around the estimate, from the scatter of measurements on shared machines
LATE: Final = 2.5  # of a first token: the far end of its interval, measured with three times as much work as cores
PROMPT: Final = 512  # tokens of the prompt that a first token is told for


class Estimate(msgspec.Struct, frozen=True):
    value: float
    low: float
    high: float
    basis: str  # "modelled"


def tokens_per_second(
    model: ModelFacts, artefact: ArtefactFacts, tier: Tier, *, context_length: int, concurrency: int
) -> Estimate | None:
    """Of each of `concurrency` requests, half way through their context. None: the tier's bandwidth is not known."""
    if not tier.memory_bandwidth:
        return None
    cache = kv_bytes(model, max(1, context_length // 2))
    reading = (artefact.token_bytes + concurrency * cache) / (tier.memory_bandwidth * BANDWIDTH_SHARE)
    computing = concurrency * 2 * model.active_parameters / (tier.threads * OPERATIONS_PER_CORE)
    value = 1 / max(reading, computing)
    return Estimate(round(value, 1), round(value * LOW, 1), round(value * HIGH, 1), "modelled")


def first_token_ms(model: ModelFacts, artefact: ArtefactFacts, tier: Tier, *, prompt_tokens: int) -> Estimate | None:
    """Of one request alone, with so many prompt tokens that no cache answers. None: the tier's bandwidth is not known."""
    if not tier.memory_bandwidth:
        return None
    reading = artefact.token_bytes / (tier.memory_bandwidth * BANDWIDTH_SHARE)
    computing = 2 * model.active_parameters * prompt_tokens / (tier.threads * OPERATIONS_PER_CORE)
    value = 1000 * max(reading, computing)
    return Estimate(round(value, 1), round(value * LOW, 1), round(value * LATE, 1), "modelled")
