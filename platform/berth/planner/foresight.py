"""Predictions for a candidate: the model of it, and what was learnt from measurements where there is something."""

from __future__ import annotations

from collections.abc import Iterator

from berth.planner.explain import Reason, reason
from berth.planner.learning import TPOT, TTFT, Factor, corrected
from berth.planner.performance import PROMPT, Estimate, first_token_ms, tokens_per_second
from berth.planner.shapes import Candidate, Question

CORRECTED = "corrected"


def speed_of(question: Question, candidate: Candidate, *, context_length: int, slots: int) -> Estimate | None:
    """Tokens a second of each of `slots` requests at once."""
    artefact, tier = candidate.artefact.facts, candidate.tier
    found = tokens_per_second(question.model, artefact, tier, context_length=context_length, concurrency=slots)
    if found is None or factor_of(question, candidate, TPOT) is None:
        return found
    low, value, high = (_slower(question, candidate, each) for each in (found.low, found.value, found.high))
    return Estimate(value, low, high, CORRECTED)


def first_of(question: Question, candidate: Candidate) -> Estimate | None:
    """Milliseconds to the first token of one request alone with a prompt of 512 tokens."""
    found = first_token_ms(question.model, candidate.artefact.facts, candidate.tier, prompt_tokens=PROMPT)
    if found is None or factor_of(question, candidate, TTFT) is None:
        return found
    low, value, high = (
        round(_corrected(question, candidate, each, TTFT), 1) for each in (found.low, found.value, found.high)
    )
    return Estimate(value, low, high, CORRECTED)


def factor_of(question: Question, candidate: Candidate, metric: str) -> Factor | None:
    scheme = candidate.artefact.facts.quantization
    return question.factors.get((candidate.engine, scheme, candidate.tier.key, metric))


def what_was_learnt(question: Question, candidate: Candidate) -> Iterator[Reason]:
    """Numbers about hardware only: whose deployments taught them is not known here."""
    for metric, code, what in (
        (TPOT, "speed_corrected", "The speed is"),
        (TTFT, "first_token_corrected", "The time to the first token is"),
    ):
        factor = factor_of(question, candidate, metric)
        if factor is None:
            continue
        shown = 1 / factor.value if metric == TPOT else factor.value  # of what people read: a speed, or a time
        times = f"{factor.deployments} deployment{'' if factor.deployments == 1 else 's'}"
        yield reason(
            code,
            f"{what} corrected by measurement: ×{shown:.2f} from {times}, n={factor.count}.",
            factor=round(shown, 3),
            deployments=factor.deployments,
            count=factor.count,
        )


def _slower(question: Question, candidate: Candidate, speed: float) -> float:
    return round(1 / _corrected(question, candidate, 1 / speed, TPOT), 1) if speed > 0 else speed


def _corrected(question: Question, candidate: Candidate, time: float, metric: str) -> float:
    scheme = candidate.artefact.facts.quantization
    return corrected(time, question.factors, candidate.engine, scheme, candidate.tier.key, metric)
