"""From model facts, needs and tiers to a plan: what runs, why, and why not the rest. Pure and deterministic.

A candidate is one artefact on one engine and one tier. Each is either chosen or rejected with the first reason that speaks
against it. What does not fit is never chosen, pinned or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal

from berth.catalog.facts import ModelFacts
from berth.planner.changes import suggest_changes
from berth.planner.explain import Reason, reason, size
from berth.planner.foresight import what_was_learnt
from berth.planner.judge import candidates, for_gpus, judge, possible
from berth.planner.learning import Factor, Key
from berth.planner.needs import DEFAULT_CONTEXT, MOST_LOSS, Needs, Pins, Quality
from berth.planner.shapes import PLAN_FORMAT, Candidate, Choice, Fit, Plan, PlanArtefact, Predicted, Question, Rejected
from berth.planner.tiers import Tier


def plan(
    model: ModelFacts,
    artefacts: Sequence[PlanArtefact],
    needs: Needs,
    tiers: Sequence[Tier],
    pins: Pins | None = None,
    *,
    replicas: int = 1,
    licence: str = "",
    factors: Mapping[Key, Factor] | None = None,
) -> Plan:
    """The best plan, or none with what would have to change. `licence`: of the model, where it is known. `factors`: what measured
    deployments taught (`learning.learn`)."""
    question = Question(
        model, tuple(artefacts), needs, tuple(tiers), pins or Pins(), replicas, licence, dict(factors or {})
    )
    fits: list[Fit] = []
    rejected: list[Rejected] = []
    for candidate in candidates(question):
        match judge(question, candidate):
            case Fit() as fit:
                fits.append(fit)
            case Reason() as why:
                rejected.append(_rejected(candidate, why))
    if not fits:
        return Plan(PLAN_FORMAT, False, None, tuple(rejected), suggest_changes(question, possible))
    best, *others = sorted(fits, key=_preference)
    rejected += [_rejected(fit.candidate, _why_not(fit, best)) for fit in others]
    return Plan(PLAN_FORMAT, True, _choice(question, best), tuple(rejected), ())


def _preference(
    fit: Fit,
) -> tuple[bool, Decimal, bool, int, bool, float, float, float, int, float, tuple[str, str, str]]:
    """Cheapest first (what has no price comes last), then what is there before what has to be made. Of the latter, within a class of loss,
    what is made for GPUs. Then least loss, quickest to make, most bits, most context, fastest; the names break ties."""
    price, files = fit.candidate.tier.price_per_hour, fit.candidate.artefact
    speed = fit.speed.value if fit.speed else 0.0
    return (
        price is None,
        price or Decimal(0),
        bool(files.made_of),
        _loss_class(fit),
        bool(files.made_of) and not for_gpus(files),
        round(fit.loss, 4),
        files.seconds,
        -fit.bits,
        -fit.context_length,
        -speed,
        fit.candidate.order,
    )


def _loss_class(fit: Fit) -> int:
    """Of what has to be made: 0 for a loss that is hard to measure, then small ones, then the others."""
    if not fit.candidate.artefact.made_of:
        return 0
    return sum(fit.loss > MOST_LOSS[quality] for quality in (Quality.HIGH, Quality.GOOD))


def _why_not(fit: Fit, best: Fit) -> Reason:
    """By the first thing in which the best one is better."""
    mine, chosen = fit.candidate, best.candidate
    if _preference(fit)[:2] != _preference(best)[:2]:
        return reason(
            "dearer",
            f"It fits, but {chosen.tier.key} costs less.",
            price=mine.tier.price_per_hour,
            chosen=chosen.tier.price_per_hour,
        )
    if mine.artefact.made_of and not chosen.artefact.made_of:
        return reason(
            "not_needed",
            f"It would have to be made first, and {chosen.artefact.facts.quantization} is there and does at the same price.",
        )
    return _worse_files(fit, best) or _worse_settings(fit, best)


def _worse_files(fit: Fit, best: Fit) -> Reason | None:
    mine, chosen = fit.candidate.artefact, best.candidate.artefact
    if _loss_class(fit) == _loss_class(best) and not for_gpus(mine) and for_gpus(chosen):
        return reason(
            "made_for_gpus",
            f"It could be made as well, but {chosen.facts.quantization} loses little too, and {best.candidate.engine} serves more "
            "requests side by side on GPUs.",
        )
    known = mine.measured or chosen.measured or for_gpus(mine) or for_gpus(chosen)
    if round(fit.loss, 4) > round(best.loss, 4) and known:
        return reason(
            "higher_loss",
            f"It fits, but loses {100 * fit.loss:.1f} % of a score by measurement and by what is usual for its bits; "
            f"{chosen.facts.quantization} loses {100 * best.loss:.1f} % at the same price.",
            loss=round(100 * fit.loss, 2),
            chosen=round(100 * best.loss, 2),
        )
    if mine.seconds > chosen.seconds:
        return reason(
            "longer_to_make",
            f"It could be made as well, but takes about {mine.seconds:.0f} s, and {chosen.facts.quantization} {chosen.seconds:.0f} s.",
            seconds=mine.seconds,
            chosen=chosen.seconds,
        )
    return None


def _worse_settings(fit: Fit, best: Fit) -> Reason:
    if fit.bits != best.bits:
        return reason(
            "lower_quality",
            f"It fits, but {best.candidate.artefact.facts.quantization} keeps {best.bits:.1f} bits a weight instead of {fit.bits:.1f} at "
            "the same price.",
            bits=round(fit.bits, 2),
            chosen=round(best.bits, 2),
        )
    if fit.context_length != best.context_length:
        return reason(
            "shorter_context",
            f"It fits, but only with {fit.context_length:,} tokens of context instead of {best.context_length:,}.",
            context_length=fit.context_length,
            chosen=best.context_length,
        )
    return reason("no_better", "It fits too, and is not better in anything that was asked for.")


def _rejected(candidate: Candidate, why: Reason) -> Rejected:
    return Rejected(
        engine=candidate.engine,
        artefact_id=candidate.artefact.id,
        quantization=candidate.artefact.facts.quantization,
        tier=candidate.tier.key,
        code=why.code,
        message=why.message,
        params=why.params,
    )


def _choice(question: Question, fit: Fit) -> Choice:
    candidate, tier = fit.candidate, fit.candidate.tier
    price = tier.price_per_hour
    return Choice(
        engine=candidate.engine,
        artefact_id=candidate.artefact.id,
        quantization=candidate.artefact.facts.quantization,
        size=candidate.artefact.size,
        tier=tier.key,
        context_length=fit.context_length,
        slots=fit.slots,
        threads=tier.threads,
        replicas=question.replicas,
        memory=fit.memory,
        predicted=Predicted(fit.speed, fit.first),
        price_per_hour=None if price is None else price * question.replicas,
        reasons=tuple(_reasons(question, fit)),
        layout=fit.layout,
        made_of=candidate.artefact.made_of,
        file_format=candidate.artefact.format,
    )


def _reasons(question: Question, fit: Fit) -> Iterator[Reason]:
    memory, tier = fit.memory, fit.candidate.tier
    yield reason(
        "fits_memory",
        f"A replica needs {size(memory.total)} of the {size(memory.available)} that {tier.key} has for it.",
        needed=memory.total,
        available=memory.available,
    )
    asked = question.pins.context_length or question.needs.context_length
    if asked is None:
        most = min(question.model.context_length, DEFAULT_CONTEXT)
        code = "context_default" if fit.context_length == most else "context_shrunk"
        yield reason(
            code,
            f"{fit.context_length:,} tokens of context, "
            + (
                "because nothing else was asked for."
                if code == "context_default"
                else "the most that the memory allows."
            ),
            context_length=fit.context_length,
        )
    if tier.cores > 1:
        yield reason(
            "one_core_free",
            f"{tier.threads} of {tier.cores} cores compute; one stays free, because engines collapse when they want all.",
            threads=tier.threads,
            cores=tier.cores,
        )
    files = fit.candidate.artefact
    measured = files.measured
    if files.made_of:
        source = next(each for each in question.artefacts if each.id == files.made_of)
        yield reason(
            "to_be_made",
            f"{files.facts.quantization} is made of {source.facts.quantization} first, and measured against it before it serves: "
            f"about {files.seconds:.0f} s.",
            quantization=files.facts.quantization,
            source=source.facts.quantization,
            seconds=files.seconds,
        )
    if measured is not None:
        yield reason(
            "quality_measured",
            f"Quality by measurement: {measured.divergence:.3f} nats a token from its source, the same likeliest token in "
            f"{100 * measured.agreement:.0f} % of places.",
            divergence=round(measured.divergence, 4),
            agreement=round(100 * measured.agreement, 1),
        )
    yield from what_was_learnt(question, fit.candidate)
    if not question.model.has_chat_template:
        yield reason("no_chat_template", "The model has no chat template: it answers /v1/completions only.")
