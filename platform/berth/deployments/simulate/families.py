"""Traces that nobody recorded: how traffic can misbehave. Each is made anew from a seed; `tests/bench/tune_autoscaler.py` tunes on all."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from math import exp, log, pi, sin
from typing import Final

from berth.deployments.simulate.trace import Trace, made_of

HOUR: Final = 3_600.0
Rate = Callable[[float], float]  # seconds -> requests a second
Sizes = Callable[[random.Random], tuple[int, int]]  # prompt and reply tokens


def chat_sizes(chance: random.Random) -> tuple[int, int]:
    """About 1,150 prompt and 210 reply tokens, as conversations have."""
    return int(min(14_000, chance.lognormvariate(6.6, 0.95))), int(min(1_000, chance.lognormvariate(5.0, 0.85)))


def code_sizes(chance: random.Random) -> tuple[int, int]:
    """Long prompts, short replies, as completions in an editor have."""
    return int(min(7_500, chance.lognormvariate(7.35, 0.75))), int(min(500, 1 + chance.lognormvariate(2.8, 0.9)))


def pareto_sizes(chance: random.Random) -> tuple[int, int]:
    """A few prompts are enormous."""
    return int(min(30_000, 350.0 * chance.paretovariate(1.4))), int(min(2_000, 90.0 * chance.paretovariate(1.8)))


def arrivals(rate: Rate, span: float, sizes: Sizes, chance: random.Random, highest: float) -> Trace:
    """Independent arrivals at a rate that changes; `highest`: never above it."""
    rows, at = list[tuple[float, int, int]](), 0.0
    while True:
        at += chance.expovariate(highest)
        if at >= span:
            return made_of(rows)
        if chance.random() * highest < rate(at):
            rows.append((at, *sizes(chance)))


def _stretches(chance: random.Random, span: float, draw: Callable[[int], tuple[float, float]]) -> Rate:
    """`draw(i)`: seconds and rate of the i-th stretch."""
    ends, rates, end = list[float](), list[float](), 0.0
    while end < span:
        seconds, rate = draw(len(ends))
        end += seconds
        ends.append(end)
        rates.append(rate)
    place = [0]

    def rate_at(at: float) -> float:
        if place[0] and at < ends[place[0] - 1]:
            place[0] = 0
        while place[0] < len(ends) - 1 and at >= ends[place[0]]:
            place[0] += 1
        return rates[place[0]]

    return rate_at


def steady(chance: random.Random) -> Trace:
    return arrivals(lambda _: 40.0, HOUR, chat_sizes, chance, 40.0)


def step(chance: random.Random) -> Trace:
    """Ten times as much from one moment to the next, for half an hour."""
    return arrivals(lambda at: 100.0 if 900.0 <= at < 2_700.0 else 10.0, HOUR, chat_sizes, chance, 100.0)


def mmpp(chance: random.Random) -> Trace:
    """Calm and busy in turn, each for one to ten minutes."""
    return arrivals(
        _stretches(chance, HOUR, lambda i: (60.0 + chance.expovariate(1 / 150.0), (18.0, 50.0)[i % 2])),
        HOUR, chat_sizes, chance, 50.0,
    )  # fmt: skip


def spikes(chance: random.Random) -> Trace:
    """Short spikes of five times as much, every few minutes."""
    return arrivals(
        _stretches(chance, HOUR, lambda i: (chance.uniform(20, 40), 75.0) if i % 2 else (chance.uniform(200, 500), 15.0)),
        HOUR, chat_sizes, chance, 75.0,
    )  # fmt: skip


def flash(chance: random.Random) -> Trace:
    """Twice a crowd that comes within a minute and goes over a quarter of an hour."""

    def rate(at: float) -> float:
        crowd = 0.0
        for start in (700.0, 2_200.0):
            if at >= start:
                crowd += 90.0 * min(1.0, (at - start) / 60.0) * exp(-max(0.0, at - start - 60.0) / 300.0)
        return 12.0 + crowd

    return arrivals(rate, HOUR, chat_sizes, chance, 115.0)


def diurnal(chance: random.Random) -> Trace:
    """A day in four hours, with noise that changes every two minutes."""
    noise = _stretches(chance, 4 * HOUR, lambda _: (120.0, chance.lognormvariate(0.0, 0.12)))
    return arrivals(
        lambda at: min(70.0, (28.0 - 24.0 * sin(2 * pi * (at / (4 * HOUR) + 0.25))) * noise(at)),
        4 * HOUR, chat_sizes, chance, 70.0,
    )  # fmt: skip


def on_off(chance: random.Random) -> Trace:
    """Batch jobs: some minutes of full load, then nothing."""
    return arrivals(
        _stretches(
            chance, HOUR, lambda i: (chance.uniform(120, 300), 45.0) if i % 2 == 0 else (chance.uniform(90, 500), 0.5)
        ),
        HOUR, chat_sizes, chance, 45.0,
    )  # fmt: skip


def code(chance: random.Random) -> Trace:
    """Editors: long prompts, short replies, and a rate that jumps every half minute or so."""
    return arrivals(
        _stretches(chance, HOUR, lambda _: (chance.uniform(10, 60), min(60.0, chance.lognormvariate(log(14.0), 0.6)))),
        HOUR, code_sizes, chance, 60.0,
    )  # fmt: skip


def pareto(chance: random.Random) -> Trace:
    """A rate that wanders slowly, and prompts of which a few are enormous."""
    level = [25.0]

    def drawn(_: int) -> tuple[float, float]:
        level[0] = min(60.0, max(8.0, level[0] * chance.lognormvariate(0.0, 0.2)))
        return 60.0, level[0]

    return arrivals(_stretches(chance, HOUR, drawn), HOUR, pareto_sizes, chance, 60.0)


def silence(chance: random.Random) -> Trace:
    """Traffic, twenty minutes of nothing, and all of it again at once."""
    return arrivals(lambda at: 0.0 if 1_200.0 <= at < 2_400.0 else 45.0, HOUR, chat_sizes, chance, 45.0)


FAMILIES: Final[Mapping[str, Callable[[random.Random], Trace]]] = {
    each.__name__: each for each in (steady, step, mmpp, spikes, flash, diurnal, on_off, code, pareto, silence)
}


def family(name: str, seed: int = 1) -> Trace:
    """Raises KeyError."""
    return FAMILIES[name](random.Random(seed))  # noqa: S311


def warped(trace: Trace, seed: int = 1) -> Trace:
    """The same requests on a clock that now hurries, now lags: one to three times as fast, turn by turn."""
    chance, rows, at, last = random.Random(seed), [], 0.0, 0.0  # noqa: S311
    pace, until = 1.0, 0.0
    for moment, prompt, output in zip(trace.at, trace.prompt, trace.output, strict=True):
        if moment >= until:
            pace, until = chance.lognormvariate(0.0, 0.5), moment + chance.uniform(30.0, 240.0)
        at += (moment - last) / pace
        last = moment
        rows.append((at, prompt, output))
    return made_of(rows)


def shuffled(trace: Trace, seed: int = 1) -> Trace:
    """Pieces of two minutes in any order: every edge is a jump."""
    chance, piece = random.Random(seed), 120.0  # noqa: S311
    order = list(range(int(trace.span // piece) + 1))
    chance.shuffle(order)
    place = {number: index for index, number in enumerate(order)}
    return made_of(
        [
            (place[int(at // piece)] * piece + at % piece, prompt, output)
            for at, prompt, output in zip(trace.at, trace.prompt, trace.output, strict=True)
        ]
    )
