"""What one replica can carry, from its plan and from what requests are like: the numbers that scaling starts from. Pure.

Seconds, tokens, requests. A replica with `slots` places is a queue with as many servers: requests come by chance, each takes one place for
as long as its answer takes while all are taken, and who finds none free waits. With a goal for the first token, the rate is the highest at
which no more than the allowed share waits longer than the goal leaves (Erlang's formula); without one, three quarters of the places.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from berth.deployments.scaling.observation import Capacity
from berth.deployments.scaling.state import Mix
from berth.planner.performance import PROMPT

SHARE: Final = 0.75  # of the places that may be taken on average, where nobody named a goal
REPLY: Final = 256  # tokens of an answer, until it is known what answers are like
_TRUST: Final = 5.0  # requests after which what was seen counts as much as what was assumed
_LEAST_PROMPT: Final = 0.02  # of a usual prompt's time: what any prompt takes
_MANY: Final = 8  # replicas behind one router, in which bursts even out
_LATELY, _FEW = 120.0, 3.0  # seconds after which an answer counts a third; answers that say something
_SLOW_MS: Final = 100.0
_STEPS: Final = 40  # of a search by halves
MOST_OFF: Final = 3.0  # a measurement is believed to be no further from the plan


class Speed(msgspec.Struct, frozen=True):
    """Of a replica: seconds to the first token of a usual prompt alone; tokens a second of each answer while all places are taken."""

    first: float
    tokens: float


class Typical(msgspec.Struct, frozen=True):
    prompt: float = float(PROMPT)
    reply: float = float(REPLY)


class Pace(msgspec.Struct, frozen=True):
    """Sums that forget, of what replicas answered lately."""

    answers: float = 0.0
    seconds: float = 0.0  # that these spent in replicas

    def with_answers(self, answers: float, seconds: float, elapsed: float) -> Pace:
        kept = math.exp(-max(0.0, elapsed) / _LATELY)
        return Pace(kept * self.answers + max(0.0, answers), kept * self.seconds + max(0.0, seconds))

    def busy(self, beside: float) -> float | None:
        """Seconds of a replica that a request takes at most: alone as long as it stays, with others beside it its part of that, and
        engines never do less in all because they do more at once. None: too few were answered. `beside`: requests in a replica."""
        if self.answers < _FEW or self.seconds <= 0:
            return None
        return self.seconds / self.answers / max(1.0, beside)


def planned_speed(plan: Mapping[str, Any], measured: Mapping[str, tuple[float, float]]) -> Speed | None:
    """`measured`: of a metric of the plan, what was measured and what the planner says for the same load. None: the plan does not say."""
    predicted = (plan.get("choice") or {}).get("predicted") or {}
    tokens, first = predicted.get("tokens_per_second"), predicted.get("ttft_ms")
    if not tokens or not first or tokens["value"] <= 0 or first["value"] <= 0:
        return None
    return Speed(
        first=first["value"] / 1e3 * _off(_alone(measured.get("ttft_ms"))),
        tokens=tokens["value"] * _off(measured.get("tokens_per_second")),
    )


def _alone(pair: tuple[float, float] | None) -> tuple[float, float] | None:
    """A first token that was expected at once is late for other reasons than the engine's speed."""
    return pair if pair is not None and pair[1] >= _SLOW_MS else None


def _off(pair: tuple[float, float] | None) -> float:
    if pair is None or pair[1] <= 0:
        return 1.0
    return min(max(pair[0] / pair[1], 1.0 / MOST_OFF), MOST_OFF)


def typical_of(mix: Mix) -> Typical:
    """What requests were like lately; few of them say little."""
    if mix.ended <= 0:
        return Typical()
    trust = mix.ended / (mix.ended + _TRUST)

    def blend(assumed: float, seen: float) -> float:
        return assumed + trust * (seen / mix.ended - assumed)

    return Typical(
        prompt=max(1.0, blend(float(PROMPT), mix.prompt_tokens)),
        reply=max(1.0, blend(float(REPLY), mix.completion_tokens)),
    )


def capacity_of(
    slots: int,
    speed: Speed | None,
    usual: Typical,
    *,
    goal: float | None = None,
    share: float = 0.995,
    busy_at_most: float | None = None,
) -> Capacity:
    """`goal`: seconds to the first token that `share` of the requests are to have; `busy_at_most`: seconds of a replica that a request was
    seen to take. Without a speed only the places are known, and the rate follows from how long requests are seen to take."""
    if speed is None:
        return Capacity(concurrency=max(1.0, SHARE * slots))
    prompt = speed.first * max(_LEAST_PROMPT, usual.prompt / PROMPT)
    # Prompts stop everything else in a replica; answers share it.
    busy = prompt + max(0.0, usual.reply - 1.0) / speed.tokens / slots
    if busy_at_most is not None:
        busy = min(busy, busy_at_most)
        prompt = min(prompt, busy)
    stay = slots * busy
    rate, pooled, within = SHARE / busy, None, float(slots)
    if goal is not None:
        patience = max(goal - prompt, prompt)  # a prompt that alone takes longer counts against twice its own time
        rate = _most(slots, stay, patience, 1.0 - share)
        pooled = max(rate, _most(_MANY * slots, stay, patience, 1.0 - share) / _MANY)
        # As many as there are at that rate, or come at once and still have their first token in time.
        within = min(within, max(1.0, rate * stay, goal / prompt))
    return Capacity(
        requests_per_second=rate,
        concurrency=within,
        pooled_requests_per_second=pooled,
        prompt_share=min(0.95, prompt / busy),
    )


def _most(servers: int, stay: float, patience: float, late: float) -> float:
    """Requests a second at which no more than `late` of them wait longer than `patience`; at least a tenth of what is possible, since a
    goal that cannot be kept is no reason to use a replica for nothing."""
    full = servers / stay
    low, high = 0.1 * full, full
    for _ in range(_STEPS):
        rate = (low + high) / 2.0
        waits = erlang(servers, rate * stay) * math.exp(-(full - rate) * patience)
        low, high = (rate, high) if waits <= late else (low, rate)
    return low


def erlang(servers: int, load: float) -> float:
    """The share of requests that find all `servers` taken, when `load` of them are taken on average (Erlang C)."""
    if load >= servers:
        return 1.0
    blocked = 1.0
    for count in range(1, servers + 1):
        blocked = load * blocked / (count + load * blocked)
    return servers * blocked / (servers - load * (1.0 - blocked))
