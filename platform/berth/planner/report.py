"""A survey as plain values (JSON) for an API and as lines for a terminal. Money as decimal strings, times in milliseconds."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any, Final

import msgspec

from berth.planner.assess import Assessed, most_running
from berth.planner.demand import Demand, in_words
from berth.planner.explain import number, size
from berth.planner.learning import Factor
from berth.planner.operating import BUSIEST
from berth.planner.options import Order
from berth.planner.queueing import BURST, STEADY, Server, simulate
from berth.planner.remedies import pin_costs, remedies
from berth.planner.serving import Load
from berth.planner.survey import Survey, Turned

NEAREST: Final = 3
ALTERNATIVES: Final = 12


def as_plain(found: Survey, *, turned: int | None = None) -> dict[str, Any]:
    """`turned`: how many rejected options at most; None: all."""
    chosen = found.chosen
    plain: dict[str, Any] = {
        "fits": chosen is not None,
        "demand": msgspec.to_builtins(found.demand, str_keys=True),
        "assumed": list(found.model.assumed),
        "choice": None if chosen is None else choice(chosen, found.demand),
        "alternatives": [_brief(one) for one in found.pareto[:ALTERNATIVES]],
        "rejected": [_turned(each) for each in nearest(found.turned)[:turned]],
        "pins": [
            {"pin": cost.pin, "value": cost.value, "more_per_hour": _money(cost.per_hour)} for cost in pin_costs(found)
        ],
        "nearest": [],
    }
    if chosen is None:
        helps = remedies(found)[:NEAREST]
        plain["nearest"] = [{"change": msgspec.to_builtins(one.change), "plan": _brief(one.plan)} for one in helps]
    return plain


def choice(one: Assessed, demand: Demand) -> dict[str, Any]:
    """With the queue simulated: what the plan promises and within which bounds."""
    most = most_running(one, demand)
    calm, storm = _waits(one, demand)
    reply = one.speed.reply(demand.reply_tokens)
    spared = one.replicas - one.spare
    return _brief(one) | {
        "engine": one.option.engine,
        "weights": one.option.scheme,
        "to_be_made": one.option.made,
        "tier": one.option.station.key,
        "devices_per_replica": one.option.devices,
        "tensor_parallel": one.place.tensor_parallel,
        "pipeline_parallel": one.place.pipeline_parallel,
        "attention_replicas": one.place.attention_replicas,
        "cache_bits": one.place.kv_bits,
        "context_length": demand.context(one.place.model.context_length),
        "max_sequences": one.slots,
        "here": one.option.station.here,
        "memory": msgspec.to_builtins(one.memory) | {"free": one.memory.free},
        "predicted": {
            "ttft_ms": _range(1e3 * one.speed.first, one.first_margin),
            "ttft_ms_under_load": {"steady": _quantiles(calm), "burst": _quantiles(storm)},
            "tokens_per_second": _range(1.0 / one.speed.tpot, one.speed_margin),
            "reply_seconds": _range(reply, one.speed_margin),
            "throughput_tokens_per_second": round(one.flow.rate * demand.reply_tokens, 1),
            "utilisation": round(one.flow.in_flight / (most * spared), 3),
            "basis": "corrected" if one.learnt else "modelled",
            "learnt": [_learnt(each) for each in one.learnt],
        },
        "load": msgspec.to_builtins(in_words(demand, one.flow, reply)),
        "replicas": replica_bounds(one, demand, most),
        "per_interaction_at_a_tenth": _money(None if one.per_interaction is None else one.per_interaction * 10),
        "per_million_output_tokens": _money(one.per_million),
    }


def _learnt(factor: Factor) -> dict[str, Any]:
    """By how much measured deployments move a predicted time; whose they are is not known here."""
    return {"factor": round(factor.value, 3), "deployments": factor.deployments, "count": factor.count}


def replica_bounds(one: Assessed, demand: Demand, most: int) -> dict[str, int]:
    """Fewest: what a tenth of the load needs. Most: one and a half times the load, as far as allowed. `target`: requests in flight that a
    replica is scaled to."""
    target = max(1, int(most * BUSIEST))
    fewest = max(1 + one.spare, math.ceil(0.1 * one.flow.in_flight / target))
    ceiling = math.ceil(1.5 * one.flow.in_flight / target) + one.spare
    return {
        "expected": one.replicas,
        "fewest": min(fewest, one.replicas),
        "most": max(one.replicas, min(demand.most_replicas, ceiling)),
        "target_in_flight": target,
    }


def _waits(one: Assessed, demand: Demand) -> tuple[tuple[float, ...], tuple[float, ...]]:
    running = max(1.0, round(one.speed.running))
    load = Load(demand.prompt_tokens * (1.0 - demand.cached_share) or 1.0, float(demand.reply_tokens), running)
    server = Server(float(one.slots * (load.input + load.output)), one.slots, max(2048, one.slots + 512))
    calm = simulate(one.place, load, server, start=STEADY)
    storm = simulate(one.place, load, server, start=BURST, waves=1.0)
    return (calm.quantile(0.5), calm.quantile(0.95)), (storm.quantile(0.5), storm.quantile(0.95))


def _quantiles(pair: tuple[float, ...]) -> dict[str, float]:
    return {"p50": round(1e3 * pair[0], 1), "p95": round(1e3 * pair[1], 1)}


def _range(value: float, margin: float) -> dict[str, float]:
    return {"low": round(value / (1 + margin), 4), "expected": round(value, 4), "high": round(value * (1 + margin), 4)}


def _brief(one: Assessed) -> dict[str, Any]:
    return {
        "label": one.option.label,
        "replicas_needed": one.replicas,
        "per_hour": _money(one.per_hour),
        "per_interaction": _money(one.per_interaction),
        "ttft": round(1e3 * one.speed.first, 1),
        "speed": round(1.0 / one.speed.tpot, 2),
        "loss": round(one.loss, 4),
    }


def _turned(each: Turned) -> dict[str, Any]:
    return {
        "option": each.option.label,
        "reason_code": each.why.code,
        "message": each.why.message,
        "params": each.why.params,
        "forcible": each.forcible,
    }


_FAR = (
    "pinned",
    "engine_not_allowed",
    "tier_not_allowed",
    "licence_not_allowed",
    "licence_unknown",
    "elsewhere",
    "far_dearer",
    "price_unknown",
    "format_unsupported",
    "engine_hardware",
)


def nearest(turned: tuple[Turned, ...]) -> list[Turned]:
    """What came closest first: what fits but is dearer, then what misses a wish, then what cannot be."""

    def distance(each: Turned) -> tuple[int, Decimal, Order]:
        code = each.why.code
        rank = (
            0 if code in ("dearer", "lower_quality", "no_better") else 3 if code in _FAR else 1 if each.forcible else 2
        )
        return (rank, each.option.least or Decimal(0), each.option.order)

    return sorted(turned, key=distance)


def _money(value: Decimal | None) -> str | None:
    return None if value is None else f"{value.normalize():f}"


def lines(found: Survey, *, turned: int = 12) -> list[str]:
    """For a terminal."""
    plain = as_plain(found, turned=turned)
    out = [f"assumed: {text}" for text in plain["assumed"]]
    chosen = plain["choice"]
    if chosen is None:
        out.append("Nothing meets this. What would help:")
        out += [f"  {one['change']['message']} (${one['plan']['per_hour']} an hour)" for one in plain["nearest"]]
    else:
        out += _chosen_lines(found, chosen)
        out.append("alternatives, none of which another beats in everything:")
        out += [_alternative(one) for one in plain["alternatives"]]
    out += [
        f"pinned {one['pin']} ({one['value']}): {one['more_per_hour'] or '?'} $ an hour more" for one in plain["pins"]
    ]
    out.append(f"not chosen ({len(found.turned)}), nearest first:")
    out += [f"  {each['option']}: {each['message']}" for each in plain["rejected"]]
    return out


def _alternative(one: dict[str, Any]) -> str:
    return (
        f"  {one['label']}: {one['replicas_needed']} replicas, ${one['per_hour']}/h, {number(one['speed'])} tok/s, "
        f"first {number(one['ttft'])} ms, loss {100 * one['loss']:.1f} %"
    )


def _chosen_lines(found: Survey, chosen: dict[str, Any]) -> list[str]:
    predicted, memory = chosen["predicted"], chosen["memory"]

    def spread(name: str) -> str:
        each = predicted[name]
        return f"{each['expected']:.4g} ({each['low']:.4g} to {each['high']:.4g})"

    bounds = chosen["replicas"]
    return [
        f"{chosen['label']}, {chosen['replicas_needed']} replicas, {chosen['context_length']:,} tokens of context",
        f"  {chosen['load']['message']}",
        f"  first token {spread('ttft_ms')} ms, speed {spread('tokens_per_second')} tok/s, whole reply {spread('reply_seconds')} s",
        f"  ${chosen['per_hour']} an hour, ${chosen['per_interaction']} an interaction "
        f"(${chosen['per_interaction_at_a_tenth']} at a tenth of the load)",
        f"  memory of a device: weights {size(memory['weights'])}, cache {size(memory['cache'])}, overhead {size(memory['overhead'])}, "
        f"free {size(max(0, memory['free']))}",
        f"  replicas {bounds['fewest']} to {bounds['most']}, scaled to {bounds['target_in_flight']} requests in flight each",
    ]
