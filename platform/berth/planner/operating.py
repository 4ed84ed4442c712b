"""A replica at work: what its users see for a number of sequences that decode together, and how many replicas that makes.

Seconds and tokens. Everything here grows with the number of decoding sequences, and with every need that is made harder: that is why a
replica that meets a demand also meets each lesser one, and why asking for more never takes fewer of them. docs/planner.md has the argument.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from berth.planner.demand import Demand
from berth.planner.explain import Reason, number, reason
from berth.planner.placement import Placement
from berth.planner.step import decode_step, prefill, prefill_work

SATURATED: Final = 0.7  # share of the time for prompts above which queues grow without use
BUSIEST: Final = 0.85  # share of a replica's capacity that is planned to be used
_ROUNDING: Final = 1e-9  # of a quotient of floats that is a whole number by right
_STEPS: Final = 60  # of a search by halves
_ENOUGH: Final = 16  # of a search along the slope


class Speed(msgspec.Struct, frozen=True):
    """Of a replica in which `decoding` sequences decode together, on average."""

    decoding: float
    first: float  # seconds to the first token, median
    first_p95: float
    tpot: float
    step: float
    prefilling: float  # share of the engine's time that prompts take
    rate: float  # requests a second
    running: float  # requests in the replica, also those that wait for their first token

    def reply(self, tokens: float) -> float:
        return self.first + max(0.0, tokens - 1.0) * self.tpot


class Margins(msgspec.Struct, frozen=True):
    """Shares of a prediction, and what measurements say of this very engine, format and hardware (factors of times)."""

    speed: float
    first: float
    tpot_factor: float = 1.0
    first_factor: float = 1.0


class Replica:
    """Predictions for a placement under a demand. `limit`: the most requests that it can hold."""

    def __init__(self, place: Placement, demand: Demand, limit: float, margins: Margins) -> None:
        self.place, self.demand, self.limit, self.margins = place, demand, limit, margins
        self.output = float(demand.reply_tokens)
        prompt = demand.prompt_tokens * (1.0 - demand.cached_share)
        cached = demand.prompt_tokens - prompt
        self.work = prefill_work(place, prompt, cached)
        self.alone = (prefill(place, prompt, cached) + place.value("ttft_base_ms") / 1e3) * margins.first_factor
        self.context = demand.prompt_tokens + self.output / 2.0
        # A client never waits for itself: of `n` clients, each is in the way of n - 1.
        clients = demand.clients
        self.others = 1.0 if clients is None else (clients - 1.0) / clients
        self.known: dict[float, Speed] = {}

    def by_itself(self) -> Replica:
        """With one client, who never meets another one."""
        one = Replica(self.place, self.demand, self.limit, self.margins)
        one.others = 0.0
        return one

    def speed(self, decoding: float) -> Speed:
        found = self.known.get(decoding)
        if found is None:
            found = self.known[decoding] = self._speed(decoding)
        return found

    def _speed(self, decoding: float) -> Speed:
        margins, output = self.margins, self.output
        beside = self.others * decoding
        step = decode_step(self.place, max(1.0, decoding), self.context) * margins.tpot_factor
        between = beside * self.work / output  # of each token: the prompts of others
        tpot = step + between
        rate = decoding / (output * tpot)
        share = between / tpot
        # Prompts arrive at random and wait for each other (an M/D/1 queue) and for half a step of those that decode.
        queue = self.work * share / (2.0 * (1.0 - share))
        waiting = 0.5 * step * min(1.0, beside)
        first = self.alone + waiting + queue
        late = self.alone + 2.0 * waiting + 3.0 * queue + share * self.work
        running = rate * (first + max(0.0, output - 1.0) * tpot)
        return Speed(decoding, first, late, tpot, step, share, rate, running)

    def carries(self, speed: Speed) -> float:
        """In the unit of the demand: people, open streams, or requests a second."""
        demand = self.demand
        if demand.streams is not None:
            return speed.running
        if demand.requests_per_second is not None:
            return speed.rate
        return speed.running + speed.rate * demand.think_seconds

    def meets(self, decoding: float) -> bool:
        """The same as `missed` without the words; it is asked thousands of times."""
        demand, speed, margins = self.demand, self.speed(decoding), self.margins
        if decoding and (speed.running > self.limit or speed.prefilling > SATURATED):
            return False
        slow = 1.0 + margins.speed
        if demand.tokens_per_second is not None and speed.tpot * slow * demand.tokens_per_second > 1.0:
            return False
        if demand.ttft_ms is not None and 1e3 * self._first(speed) * (1.0 + margins.first) > demand.ttft_ms:
            return False
        return demand.reply_seconds is None or speed.reply(self.output) * slow <= demand.reply_seconds

    def _first(self, speed: Speed) -> float:
        """At the quantile that is asked for: from the median over the 95th percentile on, along the logarithm of what is left."""
        share = self.demand.ttft_quantile
        if share <= 0.5:
            return speed.first
        reach = math.log(0.5 / (1.0 - share)) / math.log(10.0)  # 0 at the median, 1 at the 95th percentile
        return speed.first + (speed.first_p95 - speed.first) * reach

    def missed(self, decoding: float) -> Reason | None:
        """The first need that is not met; memory is not one of them."""
        demand, speed, margins = self.demand, self.speed(decoding), self.margins
        at = f" with {number(speed.running)} requests at once" if speed.running > 1 else ""
        if demand.tokens_per_second is not None:
            worst = 1.0 / (speed.tpot * (1.0 + margins.speed))
            if worst < demand.tokens_per_second:
                return reason(
                    "too_slow",
                    f"About {number(1 / speed.tpot)} tokens a second for each user{at}, {number(worst)} at worst; "
                    f"{number(demand.tokens_per_second)} are asked for.",
                    predicted=round(1 / speed.tpot, 2), worst=round(worst, 2), limit=demand.tokens_per_second,
                )  # fmt: skip
        if demand.ttft_ms is not None:
            first = self._first(speed)
            worst = 1e3 * first * (1.0 + margins.first)
            if worst > demand.ttft_ms:
                return reason(
                    "first_token_late",
                    f"The first token comes after about {number(1e3 * first)} ms{at}, {number(worst)} ms at worst; "
                    f"{number(demand.ttft_ms)} ms are asked for.",
                    predicted=round(1e3 * first, 2), worst=round(worst, 2), limit=demand.ttft_ms,
                )  # fmt: skip
        if demand.reply_seconds is not None:
            worst = speed.reply(self.output) * (1.0 + margins.speed)
            if worst > demand.reply_seconds:
                return reason(
                    "reply_late",
                    f"A whole reply takes up to {worst:.2f} s{at}; {demand.reply_seconds:g} s are asked for.",
                    worst=round(worst, 3), limit=demand.reply_seconds,
                )  # fmt: skip
        if decoding and speed.prefilling > SATURATED:
            return reason(
                "saturated",
                f"{number(speed.running)} requests at once would keep it busy with prompts {100 * speed.prefilling:.0f} % of the time.",
                share=round(speed.prefilling, 3), limit=SATURATED,
            )  # fmt: skip
        return None


def replicas_needed(replica: Replica, most: int) -> int | None:
    """The fewest replicas that meet the demand with room to spare; exact, so that it never shrinks when more is asked for. None: more than
    `most`. One request alone must be known to be served well enough."""
    clients = replica.demand.clients
    found = _spread(replica, most)
    if clients is None or (found is not None and found <= clients):
        return found
    return int(clients) if clients <= most else None  # one replica for each client always does


def _spread(replica: Replica, most: int) -> int | None:
    asked = replica.demand.amount / BUSIEST
    low, high = 0.0, replica.limit
    if replica.meets(high):
        low = high
    for _ in range(_STEPS):
        fewest = _count(asked, replica, high)
        if fewest > most:
            return None
        if low and _count(asked, replica, low) == fewest:
            return fewest
        middle = math.sqrt(low * high) if low else high / 8.0
        low, high = (middle, high) if replica.meets(middle) else (low, middle)
    return _count(asked, replica, low) if low else None


def _count(asked: float, replica: Replica, decoding: float) -> int:
    carried = replica.carries(replica.speed(decoding))
    return 1 << 62 if asked > carried * 1e18 else max(1, math.ceil(asked / carried - _ROUNDING))


def busiest(replica: Replica) -> Speed:
    """At the most that still meets every need: what autoscaling steers by."""
    low, high = 0.0, replica.limit
    if replica.meets(high):
        return replica.speed(high)
    for _ in range(_STEPS):
        middle = math.sqrt(low * high) if low else high / 8.0
        low, high = (middle, high) if replica.meets(middle) else (low, middle)
    return replica.speed(low)


def at_share(replica: Replica, replicas: int) -> Speed:
    """Of each of so many replicas that share the whole demand."""
    wanted = replica.demand.amount / replicas
    clients = replica.demand.clients
    if clients is not None and replicas >= clients:
        replica = replica.by_itself()
        wanted = min(wanted, replica.carries(replica.speed(1.0)))
    low, high = math.log(1e-6), math.log(max(1e-3, 2.0 * replica.limit))
    point = min(high, math.log(wanted))
    gap = math.log(replica.carries(replica.speed(math.exp(point))) / wanted)
    slope = 1.0
    for _ in range(_ENOUGH):
        if abs(gap) < 1e-7:
            break
        found = min(high, max(low, point - gap / slope))
        if found == point:
            break
        after = math.log(replica.carries(replica.speed(math.exp(found))) / wanted)
        slope = min(2.0, max(0.1, (after - gap) / (found - point)))
        point, gap = found, after
    return replica.speed(math.exp(point))
