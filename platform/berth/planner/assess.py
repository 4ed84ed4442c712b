"""One option against a demand: whether it fits, how fast it is, how many replicas it takes and what an interaction costs.

Seconds, tokens, bytes, and Decimal US dollars. A need is met when the pessimistic end of the prediction meets it.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Final

import msgspec

from berth.catalog.facts import ModelFacts
from berth.planner.capability import capabilities
from berth.planner.demand import Demand, Flow, flow
from berth.planner.explain import Reason, number, reason, size
from berth.planner.learning import TPOT, TTFT, Factor, Key
from berth.planner.operating import Margins, Replica, Speed, at_share, busiest, replicas_needed
from berth.planner.options import Option
from berth.planner.placement import Placement, kv_token_bytes
from berth.planner.quality import score_loss
from berth.planner.room import Memory, room_for
from berth.planner.tables import document

EXACT: Final = Decimal("0.000000000001")


class Assessed(msgspec.Struct, frozen=True):
    """An option that meets the demand."""

    option: Option
    place: Placement
    memory: Memory
    slots: int  # sequences of a replica
    replicas: int  # with the spare ones
    spare: int
    speed: Speed
    flow: Flow
    loss: float
    margins: Margins
    learnt: tuple[Factor, ...]
    per_hour: Decimal | None
    per_interaction: Decimal | None
    per_million: Decimal | None  # output tokens

    @property
    def devices(self) -> int:
        return self.replicas * self.option.devices

    @property
    def speed_margin(self) -> float:
        return self.margins.speed

    @property
    def first_margin(self) -> float:
        return self.margins.first


def margins(engine: str, model: ModelFacts) -> Margins:
    table = document("margins.toml")
    wider = float(table["assumed"]) if model.assumed else 1.0
    return Margins(float(table["speed"][engine]) * wider, float(table["first"][engine]) * wider)


def assess(
    option: Option,
    place: Placement,
    demand: Demand,
    measured: float | None = None,
    factors: Mapping[Key, Factor] | None = None,
) -> Assessed | Reason:
    """`measured`: the loss of quality that was measured of this very model in this format. `factors`: what measured deployments teach of
    an engine, format and tier."""
    loss = score_loss(place.model, place.scheme) if measured is None else measured
    against = _before(option, place, demand, loss)
    if against is not None:
        return against
    room = room_for(place, demand)
    if isinstance(room, Reason):
        return room
    memory, slots, held = room
    learnt = _learnt(option, factors or {})
    plain = margins(option.engine, place.model)
    replica = Replica(
        place,
        demand,
        min(float(slots), held),
        Margins(plain.speed, plain.first, *(f.value if f else 1.0 for f in learnt)),
    )
    alone = replica.missed(0.0)
    if alone is not None:
        return alone
    needed = replicas_needed(replica, demand.most_replicas)
    spare = 0 if needed is None else demand.spare(needed)
    if needed is None or needed + spare > demand.most_replicas:
        return _too_many(replica, demand)
    return _sized(option, replica, memory, needed, spare, loss, tuple(f for f in learnt if f))


def most_running(found: Assessed, demand: Demand) -> int:
    """The most requests that a replica of a plan can have and still meet every need: what autoscaling steers by."""
    return max(1, int(busiest(Replica(found.place, demand, float(found.slots), found.margins)).running))


def _learnt(option: Option, factors: Mapping[Key, Factor]) -> tuple[Factor | None, Factor | None]:
    """Of the time for a token, and for the first one."""
    if not factors:
        return None, None
    key = (option.engine, option.scheme, option.station.key)
    return factors.get((*key, TPOT)), factors.get((*key, TTFT))


def _before(option: Option, place: Placement, demand: Demand, loss: float) -> Reason | None:
    capability = capabilities()[option.engine]
    for feature in demand.features:
        if feature not in capability.features:
            return reason(
                "feature_missing", f"{option.engine} has no {feature}.", feature=feature, engine=option.engine
            )
    longest = place.model.context_length
    context = demand.context(longest)
    if context > longest:
        return reason(
            "context_too_long", f"The model was trained for {longest:,} tokens of context; {context:,} are asked for.",
            asked=context, limit=longest,
        )  # fmt: skip
    if loss > demand.loss + 1e-9:
        return reason(
            "quality_too_low",
            f"{option.scheme} loses about {100 * loss:.1f} % of a benchmark's score; at most {100 * demand.loss:.1f} % is accepted.",
            loss=round(100 * loss, 2), limit=round(100 * demand.loss, 2), format=option.scheme,
        )  # fmt: skip
    return None


def _too_many(replica: Replica, demand: Demand) -> Reason:
    """Why no number of replicas that is allowed does it: the cache where that is what is short, else the needs."""
    most = busiest(replica)
    worst = flow(demand, most.reply(replica.output))
    if most.running > 0.9 * replica.limit:
        return _cache_short(replica, demand, worst)
    replicas = -int(-worst.in_flight // max(1e-9, most.running))
    return reason(
        "too_many_at_once",
        f"A replica meets the needs with at most {number(most.running)} requests at once; {number(worst.in_flight)} in flight would "
        f"take {replicas} replicas, and {demand.most_replicas} are allowed.",
        most=round(most.running, 2), in_flight=round(worst.in_flight, 1), replicas=replicas, limit=demand.most_replicas,
    )  # fmt: skip


def _cache_short(replica: Replica, demand: Demand, worst: Flow) -> Reason:
    model = replica.place.model
    context = demand.context(model.context_length)
    each = int(kv_token_bytes(model, replica.place.kv_bits) * context)
    heads = max((group.kv_heads for group in model.attention), default=0)
    kind = f"full multi-head attention, {heads} KV heads" if heads == model.heads else f"{heads} KV heads"
    return reason(
        "cache_short",
        f"Beside the weights the memory holds the cache of {int(replica.limit)} requests of {context:,} tokens ({size(each)} each: "
        f"{kind}); {number(worst.in_flight)} are in flight.",
        holds=int(replica.limit), each=each, in_flight=round(worst.in_flight, 1), context=context, heads=heads,
    )  # fmt: skip


def _sized(
    option: Option, replica: Replica, memory: Memory, needed: int, spare: int, loss: float, learnt: tuple[Factor, ...]
) -> Assessed | Reason:
    demand = replica.demand
    speed = at_share(replica, needed)
    found = flow(demand, speed.reply(replica.output))
    price = option.station.price
    per_hour = None if price is None else price * option.devices * (needed + spare)
    against = _too_dear(option, demand, per_hour, found)
    if against is not None:
        return against
    return Assessed(
        option=option, place=replica.place, memory=memory, slots=int(replica.limit), replicas=needed + spare, spare=spare, speed=speed,
        flow=found, loss=loss, margins=replica.margins, learnt=learnt, per_hour=per_hour,
        per_interaction=_per_interaction(per_hour, found.rate),
        per_million=_per_interaction(per_hour, found.rate * replica.output, 1_000_000),
    )  # fmt: skip


def _per_interaction(per_hour: Decimal | None, rate: float, times: int = 1) -> Decimal | None:
    if per_hour is None:
        return None
    return (per_hour * times / (Decimal(repr(rate)) * 3600)).quantize(EXACT)


def _too_dear(option: Option, demand: Demand, per_hour: Decimal | None, found: Flow) -> Reason | None:
    if demand.most_per_hour is None and demand.most_per_interaction is None:
        return None
    if per_hour is None:
        return reason("price_unknown", f"{option.station.key} has no price, so a ceiling cannot be promised.")
    if demand.most_per_hour is not None and per_hour > demand.most_per_hour:
        return reason(
            "price_too_high",
            f"It costs ${per_hour} an hour; the ceiling is ${demand.most_per_hour}.",
            price=per_hour,
            limit=demand.most_per_hour,
        )
    each = _per_interaction(per_hour, found.rate)
    if demand.most_per_interaction is not None and each is not None and each > demand.most_per_interaction:
        return reason(
            "interaction_too_dear", f"An interaction costs ${each:.6f}; at most ${demand.most_per_interaction} is accepted.",
            price=each, limit=demand.most_per_interaction,
        )  # fmt: skip
    return None
