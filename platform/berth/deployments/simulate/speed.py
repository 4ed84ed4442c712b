"""How fast a replica is, as tables made of the planner's performance model: a step of the simulation is then a few additions."""

from __future__ import annotations

from typing import Final

import msgspec

from berth.catalog.facts import ModelFacts
from berth.planner.assess import Assessed
from berth.planner.demand import Demand
from berth.planner.placement import Placement
from berth.planner.pool import cache_tokens, vllm_limits
from berth.planner.room import MARGIN
from berth.planner.step import decode_step, prefill, prefill_work
from berth.planner.survey import Fixed, survey

_NEAR, _FAR = 256.0, 4_096.0  # contexts between which the cost of a token of cache is taken


class Speed(msgspec.Struct, frozen=True):
    """Seconds and tokens. `decode[n]` is a step of `n` sequences without their caches, which `cache_second` adds for each token."""

    decode: tuple[float, ...]
    cache_second: float
    prompt_second: float  # of a prompt token
    prompt_square: float  # of a prompt token for each token before it
    prompt_fixed: float
    prompt_least: float  # a prefill reads all weights once
    first_second: float  # of every first token, beside the engine
    cache_tokens: int
    most_sequences: int
    token_budget: int  # of a step

    def unloaded(self, prompt: float) -> float:
        """Seconds to the first token of a request alone."""
        whole, left = divmod(prompt, self.token_budget)
        taken = [self.token_budget] * int(whole) + ([left] if left else [])
        done = seconds = 0.0
        for tokens in taken:
            seconds += self.alone(tokens, done)
            done += tokens
        return seconds + self.first_second

    def work(self, tokens: float, before: float = 0.0) -> float:
        """What prompt tokens add to a step that runs anyway. `before`: tokens of the same prompt that are done."""
        return tokens * (self.prompt_second + self.prompt_square * (before + tokens / 2.0))

    def alone(self, tokens: float, before: float = 0.0) -> float:
        work = self.work(tokens, before)
        return (work if work > self.prompt_least else self.prompt_least) + self.prompt_fixed


def speed_of(place: Placement, *, tokens: int, sequences: int) -> Speed:
    """`tokens`: what the cache holds; `sequences`: that run at once, at most."""
    near, far = decode_step(place, 64.0, _NEAR), decode_step(place, 64.0, _FAR)
    cache_second = (far - near) / (64.0 * (_FAR - _NEAR))
    decode = [decode_step(place, max(1.0, n), _NEAR) - max(1, n) * _NEAR * cache_second for n in range(sequences + 1)]
    fixed = prefill(place, 1.0) - prefill_work(place, 1.0)
    short, long = prefill_work(place, 512.0) / 512.0, prefill_work(place, 4_096.0) / 4_096.0
    square = 2.0 * max(0.0, long - short) / (4_096.0 - 512.0)
    reach = prefill(place, 4_096.0) - prefill_work(place, 4_096.0)
    return Speed(
        decode=tuple(decode),
        cache_second=cache_second,
        prompt_second=short - square * 256.0,
        prompt_square=square,
        prompt_fixed=max(0.0, min(fixed, reach)),
        prompt_least=max(0.0, fixed - min(fixed, reach)),
        first_second=place.value("ttft_base_ms") / 1e3,
        cache_tokens=tokens,
        most_sequences=sequences,
        token_budget=vllm_limits(place.gpu).batched_tokens if place.engine == "vllm" else 2_048,
    )


_SEQUENCES: Final = 512  # more at once are never useful within the goals that anybody has


class Planned(msgspec.Struct, frozen=True):
    label: str
    speed: Speed


class NoPlan(Exception):
    """Nothing runs this model so."""


def plan_speed(model: ModelFacts, demand: Demand, fixed: Fixed) -> Planned:
    """The replica that the planner chooses for these needs. Raises NoPlan."""
    found = survey(model, demand, fixed=fixed).chosen
    if found is None:
        raise NoPlan("No engine and format on this tier meets the needs. Ask `python -m berth.planner` why.")
    return Planned(found.option.label, _assessed_speed(found))


def _assessed_speed(found: Assessed) -> Speed:
    place = found.place
    held = cache_tokens(place, found.memory.cache / MARGIN) or 1 << 40
    limits = vllm_limits(place.gpu)
    most = limits.sequences if place.engine == "vllm" else found.slots
    return speed_of(place, tokens=held, sequences=max(1, min(most, _SEQUENCES)))
