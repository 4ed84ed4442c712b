"""Accounts after the last byte: which figures count, and the usage event they become. Plain functions, no I/O."""

from __future__ import annotations

from msgspec import Struct

from berth_gateway.contract import CountedBy


class Counts(Struct, frozen=True, gc=False):
    """Tokens as an engine names them. `cached` is a part of `prompt`, `reasoning` of `completion`."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    reasoning: int = 0


class Limits(Struct, frozen=True, gc=False):
    """What a request could at most have used."""

    prompt: int
    completion: int


class Bill(Struct, frozen=True, gc=False):
    """What is billed, where it comes from, and whether the engine's figures did not fit what was relayed."""

    counts: Counts
    counted_by: CountedBy
    breach: bool = False


NOTHING = Bill(Counts(), CountedBy.NONE)


def bill(
    *,
    final: Counts | None,
    running: Counts | None,
    chunks: int,
    prompt_estimate: int,
    limits: Limits,
) -> Bill:
    """The figures that count, most exact first.

    `chunks`: pieces with content that were relayed. Without any, nothing was produced and nothing is billed, unless the
    engine ended the answer itself (`final`): an empty answer still used its prompt. An engine's figure below what was
    relayed, or above what was possible, is corrected to that bound and reported as a breach.
    """
    if final is not None:
        # Both figures are the engine's; where they disagree by more than 2 % the smaller is billed.
        breach = running is not None and running.completion * 1.02 + 1 < final.completion
        chosen = running if breach and running is not None else final
        counted_by = CountedBy.ENGINE
    elif chunks == 0:
        return NOTHING
    elif running is not None:
        chosen, counted_by, breach = running, CountedBy.ENGINE_RUNNING, False
    else:
        estimate = Counts(min(prompt_estimate, limits.prompt), 0, min(chunks, limits.completion), 0)
        return Bill(estimate, CountedBy.ESTIMATE)
    bounded = _bounded(chosen, chunks, limits)
    if bounded.completion > chosen.completion:
        # Each piece holds at least one token: the engine says less than it delivered.
        return Bill(bounded, CountedBy.ESTIMATE, breach=True)
    return Bill(bounded, counted_by, breach or bounded != chosen)


def _bounded(counts: Counts, chunks: int, limits: Limits) -> Counts:
    prompt = max(0, min(counts.prompt, limits.prompt))
    completion = max(0, min(max(counts.completion, chunks), limits.completion))
    return Counts(
        prompt=prompt,
        cached=max(0, min(counts.cached, prompt)),
        completion=completion,
        reasoning=max(0, min(counts.reasoning, completion)),
    )


def estimate_prompt(size: int) -> int:
    """Tokens of a body of that many bytes which nobody counted: a quarter, as for English text. Only ever an estimate."""
    return max(1, size // 4)
