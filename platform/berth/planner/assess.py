"""One option against a demand: whether it fits, how fast it is, how many replicas it takes and what an interaction costs.

Seconds, tokens, bytes, and Decimal US dollars. A need is met when the pessimistic end of the prediction meets it.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Final

import msgspec

from berth.catalog.facts import ModelFacts
from berth.planner.capability import capabilities
from berth.planner.demand import Demand, Flow, flow
from berth.planner.explain import Reason, number, reason, size
from berth.planner.options import Option
from berth.planner.placement import Placement, kv_token_bytes
from berth.planner.quality import score_loss
from berth.planner.room import Memory, room_for
from berth.planner.serving import Load
from berth.planner.step import decode_step, prefill, prefill_work
from berth.planner.tables import document

SATURATED: Final = 0.7  # share of the time for prompts above which queues grow without use
BUSIEST: Final = 0.85  # share of a replica's capacity that is planned to be used
EXACT: Final = Decimal("0.000000000001")


class Speed(msgspec.Struct, frozen=True):
    """At `running` requests in a replica."""

    running: float
    first: float  # seconds to the first token, median
    first_p95: float
    tpot: float
    step: float
    prefilling: float  # share of the engine's time that prompts take

    def reply(self, tokens: float) -> float:
        return self.first + max(0.0, tokens - 1.0) * self.tpot


class Assessed(msgspec.Struct, frozen=True):
    """An option that meets the demand."""

    option: Option
    place: Placement
    memory: Memory
    slots: int  # sequences of a replica
    replicas: int
    speed: Speed
    flow: Flow
    loss: float
    speed_margin: float
    first_margin: float
    per_hour: Decimal | None
    per_interaction: Decimal | None
    per_million: Decimal | None  # output tokens

    @property
    def devices(self) -> int:
        return self.replicas * self.option.devices


def margins(engine: str, model: ModelFacts) -> tuple[float, float]:
    table = document("margins.toml")
    wider = float(table["assumed"]) if model.assumed else 1.0
    return float(table["speed"][engine]) * wider, float(table["first"][engine]) * wider


def assess(option: Option, place: Placement, demand: Demand, measured: float | None = None) -> Assessed | Reason:
    """`measured`: the loss of quality that was measured of this very model in this format."""
    loss = score_loss(place.model, place.scheme) if measured is None else measured
    against = _before(option, place, demand, loss)
    if against is not None:
        return against
    room = room_for(place, demand)
    if isinstance(room, Reason):
        return room
    memory, slots, held = room
    speed_margin, first_margin = margins(option.engine, place.model)
    load = Load(float(demand.prompt_tokens), float(demand.reply_tokens), 1.0)
    limit = min(float(slots), held)
    checked = _Limits(place, load, demand, speed_margin, first_margin)
    alone = checked.missed(1.0)
    if alone is not None:
        return alone
    replicas = _one_is_enough(checked, demand, limit) or _replicas(checked, demand, limit)
    if isinstance(replicas, Reason):
        return replicas
    return _sized(option, checked, demand, memory, int(limit), replicas, loss)


def most_running(found: Assessed, demand: Demand) -> int:
    """The most requests that a replica of a plan can have and still meet every need: what autoscaling steers by."""
    load = Load(float(demand.prompt_tokens), float(demand.reply_tokens), 1.0)
    return int(_most(_Limits(found.place, load, demand, found.speed_margin, found.first_margin), float(found.slots)))


def _before(option: Option, place: Placement, demand: Demand, loss: float) -> Reason | None:
    capability = capabilities()[option.engine]
    for feature in demand.features:
        if feature not in capability.features:
            return reason("feature_missing", f"{option.engine} has no {feature}.", feature=feature)
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
            loss=round(loss, 4), limit=demand.loss,
        )  # fmt: skip
    return None


class _Limits:
    """Predictions for a number of running requests, and the first need they miss."""

    def __init__(self, place: Placement, load: Load, demand: Demand, speed_margin: float, first_margin: float) -> None:
        self.place, self.load, self.demand = place, load, demand
        self.speed_margin, self.first_margin = speed_margin, first_margin
        self.prompt = load.input * (1.0 - demand.cached_share)
        self.work = prefill_work(place, self.prompt, load.input - self.prompt)
        self.alone = prefill(place, self.prompt, load.input - self.prompt) + place.value("ttft_base_ms") / 1e3
        self.context = load.input + load.output / 2.0
        self.known: dict[float, Speed] = {}

    def speed(self, running: float) -> Speed:
        found = self.known.get(running)
        if found is None:
            found = self.known[running] = self._speed(running)
        return found

    def _speed(self, running: float) -> Speed:
        output = self.load.output
        step = decode_step(self.place, running, self.context)
        tpot = step + max(0.0, running - 1.0) / output * self.work
        # Prompts arrive at random and wait for a step and for each other (an M/D/1 queue of prefills).
        rate = running / (self.alone + output * tpot)
        share = min(0.98, rate * self.work)
        queue = self.work * share / (2.0 * (1.0 - share))
        waiting = step * 0.5 if running > 1.0 else 0.0
        first = self.alone + waiting + queue
        return Speed(running, first, self.alone + 2.0 * waiting + 3.0 * queue + share * self.work, tpot, step, share)

    def missed(self, running: float) -> Reason | None:
        demand, speed = self.demand, self.speed(running)
        if running > 1 and speed.prefilling > SATURATED:
            return reason(
                "saturated", f"{number(running)} requests at once would keep it busy with prompts {100 * speed.prefilling:.0f} % of "
                "the time.",
                share=round(speed.prefilling, 3), limit=SATURATED,
            )  # fmt: skip
        at = f" with {number(running)} requests at once" if running > 1 else ""
        if demand.tokens_per_second is not None:
            worst = 1.0 / (speed.tpot * (1.0 + self.speed_margin))
            if worst < demand.tokens_per_second:
                return reason(
                    "too_slow",
                    f"About {number(1 / speed.tpot)} tokens a second for each user{at}, {number(worst)} at worst; "
                    f"{number(demand.tokens_per_second)} are asked for.",
                    predicted=round(1 / speed.tpot, 2), worst=round(worst, 2), limit=demand.tokens_per_second,
                )  # fmt: skip
        if demand.ttft_ms is not None:
            first = speed.first if demand.ttft_quantile <= 0.5 else speed.first_p95
            worst = 1e3 * first * (1.0 + self.first_margin)
            if worst > demand.ttft_ms:
                return reason(
                    "first_token_late",
                    f"The first token comes after about {number(1e3 * first)} ms{at}, {number(worst)} ms at worst; "
                    f"{number(demand.ttft_ms)} ms are asked for.",
                    predicted=round(1e3 * first, 2), worst=round(worst, 2), limit=demand.ttft_ms,
                )  # fmt: skip
        if demand.reply_seconds is not None:
            worst = speed.reply(self.load.output) * (1.0 + self.speed_margin)
            if worst > demand.reply_seconds:
                return reason(
                    "reply_late",
                    f"A whole reply takes up to {worst:.2f} s{at}; {demand.reply_seconds:g} s are asked for.",
                    worst=round(worst, 3), limit=demand.reply_seconds,
                )  # fmt: skip
        return None


def _most(checked: _Limits, limit: float) -> float:
    """The most running requests, up to `limit`, that meet every need; an average, so not a whole number. One does."""
    low, high = 1.0, max(1.0, limit)
    if checked.missed(high) is None:
        return high
    for _ in range(14):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if checked.missed(middle) is None else (low, middle)
    return low


def _running(checked: _Limits, demand: Demand, replicas: int) -> float:
    """Requests in each of so many replicas: people wait for answers, so this and the response time settle together."""
    running = 1.0
    for _ in range(3):
        running = max(1.0, flow(demand, checked.speed(running).reply(checked.load.output)).in_flight / replicas)
    return running


def _one_is_enough(checked: _Limits, demand: Demand, limit: float) -> int | None:
    running = _running(checked, demand, 1)
    peak = running / BUSIEST if running > 1.0 else 1.0
    return 1 + demand.spare_replicas if peak <= limit and checked.missed(peak) is None else None


def _replicas(checked: _Limits, demand: Demand, limit: float) -> int | Reason:
    most = _most(checked, limit)
    planned = max(1.0, most * BUSIEST)
    worst = flow(demand, checked.speed(most).reply(checked.load.output))
    replicas = max(2, -int(-worst.in_flight // planned)) + demand.spare_replicas
    if replicas <= demand.most_replicas:
        return replicas
    if most >= limit:
        return _cache_short(checked, demand, limit, worst)
    return reason(
        "too_many_at_once",
        f"A replica meets the needs with at most {number(most)} requests at once; {number(worst.in_flight)} in flight would "
        f"take {replicas} replicas, and {demand.most_replicas} are allowed.",
        most=most, in_flight=round(worst.in_flight, 1), replicas=replicas, limit=demand.most_replicas,
    )  # fmt: skip


def _cache_short(checked: _Limits, demand: Demand, limit: float, worst: Flow) -> Reason:
    model = checked.place.model
    context = demand.context(model.context_length)
    each = int(kv_token_bytes(model, checked.place.kv_bits) * context)
    heads = max((group.kv_heads for group in model.attention), default=0)
    kind = f"full multi-head attention, {heads} KV heads" if heads == model.heads else f"{heads} KV heads"
    return reason(
        "cache_short",
        f"Beside the weights the memory holds the cache of {int(limit)} requests of {context:,} tokens ({size(each)} each: {kind}); "
        f"{number(worst.in_flight)} are in flight.",
        holds=int(limit), each=each, in_flight=round(worst.in_flight, 1),
    )  # fmt: skip


def _sized(
    option: Option, checked: _Limits, demand: Demand, memory: Memory, slots: int, replicas: int, loss: float
) -> Assessed | Reason:
    running = _running(checked, demand, replicas - demand.spare_replicas)
    speed = checked.speed(running)
    found = flow(demand, speed.reply(checked.load.output))
    price = option.station.price
    per_hour = None if price is None else price * option.devices * replicas
    against = _too_dear(option, demand, per_hour, found)
    if against is not None:
        return against
    rate = found.rate
    return Assessed(
        option=option, place=checked.place, memory=memory, slots=slots, replicas=replicas, speed=speed, flow=found, loss=loss,
        speed_margin=checked.speed_margin, first_margin=checked.first_margin, per_hour=per_hour,
        per_interaction=_per_interaction(per_hour, rate),
        per_million=_per_interaction(per_hour, rate * checked.load.output, 1_000_000),
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
