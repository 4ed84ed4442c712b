"""A replica under a steady load of equal requests: how many run together, what a token then costs, and how many come out.

Seconds and tokens. Requests of `input` prompt and `output` reply tokens come from `concurrency` clients, each of which sends the next
request when it has its answer.
"""

from __future__ import annotations

import msgspec

from berth.planner.placement import Placement
from berth.planner.pool import sequence_tokens
from berth.planner.step import decode_step, prefill, prefill_work


class Load(msgspec.Struct, frozen=True):
    input: float
    output: float
    concurrency: float


class Steady(msgspec.Struct, frozen=True):
    running: float  # sequences that decode together
    step: float  # of a pure decode step
    tpot: float  # of a token as a client sees it, prefills of others between
    throughput: float  # output tokens a second


def steady(place: Placement, load: Load, *, cache_tokens: float | None = None, max_sequences: int = 1024) -> Steady:
    """`cache_tokens`: how many tokens the key-value cache holds; None: enough."""
    running = min(max(1.0, load.concurrency), max_sequences * place.attention_replicas)
    if cache_tokens is not None:
        running = min(running, max(1.0, cache_tokens / max(1.0, held_tokens(place, load))))
    output = max(1.0, load.output)
    context = load.input + output / 2.0
    work = prefill_work(place, load.input) if load.input else 0.0
    # Of the clients that are served, those in a prefill do not decode.
    step = decode_step(place, running, context)
    blocked = place.value("prefill_blocking")
    cycle = step + running / output * work
    tpot = step + max(0.0, running - 1.0) / output * work * blocked
    alone = prefill(place, load.input) if load.input else 0.0
    if running <= 1.0:
        cycle = step + alone / output
    return Steady(running, step, tpot, running / cycle * place.value("utilisation"))


def held_tokens(place: Placement, load: Load) -> float:
    """Cache that a request occupies on average while it runs: engines that reserve the whole reply hold all of it."""
    length = load.input + load.output * place.value("reserved_output")
    return length * token_weight(place, length)


def token_weight(place: Placement, length: float) -> float:
    """What a token of a sequence takes of the cache, 1 where every layer keeps every token."""
    return sequence_tokens(place, length, int(place.value("window_slack"))) / length if length else 1.0
