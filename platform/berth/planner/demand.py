"""What is asked of a service, in people's words and in numbers. Everything has a default; what was not said is shown as assumed."""

from __future__ import annotations

import math
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, Final

import msgspec

from berth.planner.explain import Reason, number, reason

# Bounds far beyond what there is, so that no product of them leaves what a float can hold.
Positive = Annotated[float, msgspec.Meta(ge=1e-9, le=1e9)]
Count = Annotated[int, msgspec.Meta(ge=1, le=10**9)]

QUALITY: Final = {
    "best": 0.01,
    "balanced": 0.04,
    "economy": 0.10,
}  # the largest loss of a benchmark's score that is accepted


class Demand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tokens, seconds and US dollars. Either `users` (with the time they think), `requests_per_second` or `streams` says how much there is
    to do; of several, the last one named here counts."""

    users: Count | None = None
    think_seconds: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 30.0  # between an answer and the next question
    requests_per_second: Positive | None = None
    streams: Count | None = None  # requests that are really open at the same time
    prompt_tokens: Count = 512
    prompt_tokens_p95: Count | None = None  # default: three times the median
    reply_tokens: Count = 256
    reply_tokens_p95: Count | None = None
    ttft_ms: Positive | None = 1_000.0
    ttft_quantile: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.5
    tokens_per_second: Positive | None = 20.0  # for each user
    reply_seconds: Positive | None = None  # the whole answer
    context_length: Count | None = None  # default: the 95th percentiles of prompt and reply
    quality: str = "balanced"  # best, balanced, economy
    most_loss: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None  # instead of `quality`
    most_per_hour: Decimal | None = None
    most_per_interaction: Decimal | None = None
    cached_share: Annotated[float, msgspec.Meta(ge=0, le=0.99)] = 0.0  # of prompt tokens that a prefix cache answers
    engines: tuple[str, ...] = ()  # allowed; none named: all
    tiers: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()  # lora, tools, json_schema, vision …
    licences: tuple[str, ...] = ()  # of the model, as SPDX names them; none named: all
    most_replicas: Annotated[int, msgspec.Meta(ge=1, le=256)] = 64
    spare_replicas: Annotated[int, msgspec.Meta(ge=0, le=256)] = 0  # that may fail while the needs are still met
    # Share of the time in which the needs are to be met, when each replica is there UP of the time, on its own.
    availability: Annotated[float, msgspec.Meta(gt=0, le=0.999999)] | None = None

    def context(self, longest: int) -> int:
        """Tokens that one request may have: as asked, else the 95th percentiles of prompt and reply as far as the
        model goes (`longest`)."""
        if self.context_length is not None:
            return self.context_length
        prompt = self.prompt_tokens_p95 or 3 * self.prompt_tokens
        reply = self.reply_tokens_p95 or 3 * self.reply_tokens
        usual = self.prompt_tokens + self.reply_tokens
        return max(usual, min(prompt + reply, longest))

    @property
    def clients(self) -> float | None:
        """People or streams, each of which waits for its answer. None: requests come whatever is answered."""
        if self.streams is not None:
            return float(self.streams)
        return None if self.requests_per_second is not None else float(self.users or 1)

    @property
    def amount(self) -> float:
        """How much there is to do: people, open streams, or requests a second."""
        clients = self.clients
        return clients if clients is not None else float(self.requests_per_second or 1.0)

    def spare(self, needed: int) -> int:
        """Replicas beside the `needed` ones."""
        more = self.spare_replicas
        if self.availability is not None:
            while _present(needed, needed + more) < self.availability:
                more += 1
        return more

    @property
    def loss(self) -> float:
        return self.most_loss if self.most_loss is not None else QUALITY.get(self.quality, QUALITY["balanced"])


UP: Final = 0.99  # share of the time in which a replica is there: restarts, updates and lost machines take the rest


@lru_cache(maxsize=4096)
def _present(needed: int, there: int) -> float:
    """How likely at least `needed` of `there` replicas are up."""
    return sum(math.comb(there, away) * (1.0 - UP) ** away * UP ** (there - away) for away in range(there - needed + 1))


class Flow(msgspec.Struct, frozen=True):
    """The load that a demand means, at a response time: Little's law."""

    rate: float  # requests a second
    in_flight: float


def flow(demand: Demand, response_seconds: float) -> Flow:
    """In flight = rate x response time. People wait for the answer before they think, so slow answers make them ask less often."""
    if demand.streams is not None:
        return Flow(demand.streams / response_seconds, float(demand.streams))
    if demand.requests_per_second is not None:
        return Flow(demand.requests_per_second, demand.requests_per_second * response_seconds)
    users = demand.users or 1
    rate = users / (demand.think_seconds + response_seconds)
    return Flow(rate, rate * response_seconds)


def in_words(demand: Demand, found: Flow, response_seconds: float) -> Reason:
    """The arithmetic from people to requests in flight."""
    if demand.streams is not None:
        return reason(
            "streams", f"{demand.streams} requests are open at the same time, as asked.", streams=demand.streams
        )
    if demand.requests_per_second is not None:
        text = f"{number(found.rate)} requests a second x {response_seconds:.1f} s an answer = {number(found.in_flight)} in flight."
    else:
        text = (
            f"{demand.users or 1} people, each with {demand.think_seconds:g} s between an answer and the next question and "
            f"{response_seconds:.1f} s an answer, ask {number(found.rate)} times a second: "
            f"{number(found.in_flight)} in flight (Little's law)."
        )
    return reason(
        "little",
        text,
        rate=round(found.rate, 3),
        in_flight=round(found.in_flight, 2),
        response=round(response_seconds, 3),
    )
