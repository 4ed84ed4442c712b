"""Whether a candidate meets everything, and if not, the first reason against it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from berth.catalog.facts import ModelFacts
from berth.planner import on_gpus
from berth.planner.capabilities import ENGINES
from berth.planner.capability import capabilities
from berth.planner.explain import Reason, number, reason, size
from berth.planner.foresight import first_of, speed_of
from berth.planner.licences import allowed
from berth.planner.memory import MemoryNeed, memory_need
from berth.planner.needs import DEFAULT_CONTEXT, LEAST_BITS, MOST_LOSS, Needs, Pins
from berth.planner.quality import MeasuredQuality, loss_of_bits, score_loss
from berth.planner.quantization import scheme
from berth.planner.shapes import Candidate, Fit, Layout, PlanArtefact, Question
from berth.planner.tiers import Tier

GPU: Final = "gpu"  # kind of a tier
_LEAST_SHRUNK: Final = 2_048  # below this nobody's default is served well: it is for them to say


def candidates(question: Question) -> Iterator[Candidate]:
    """Every artefact on every engine that claims it, on every tier; in an order that depends on nothing else. What would be made for GPUs
    is weighed elsewhere only where its engine is pinned."""
    found = [
        Candidate(artefact, engine, tier)
        for artefact in question.artefacts
        for engine in artefact.engines
        for tier in question.tiers
        if not for_gpus(artefact) or tier.kind == GPU or engine == question.pins.engine
    ]
    yield from sorted(found, key=lambda candidate: candidate.order)


def for_gpus(artefact: PlanArtefact) -> bool:
    """Whether it is one to be made whose engines are at home on GPUs."""
    return bool(artefact.made_of) and artefact.format == "safetensors"


def judge(question: Question, candidate: Candidate) -> Fit | Reason:
    """The settings under which a candidate fits, or the first reason against it."""
    against = (
        _pinned_away(question.pins, candidate)
        or allowed(question.licence, question.needs.licences)
        or _impossible(question, candidate)
    )
    if against:
        return against
    slots = question.pins.slots or question.needs.concurrency
    most = _most_slots(candidate)
    if slots > most:
        return reason(
            "too_many_slots",
            f"{candidate.engine} decodes at most {most} requests side by side; {slots} were asked for.",
            asked=slots,
            limit=most,
        )
    bits = candidate.artefact.facts.tensor_bytes * 8 / max(1, question.model.parameters)
    return (
        _poor_quality(question.needs, bits, candidate.artefact.measured)
        or _too_dear(question.needs, candidate.tier)
        or _with_context(question, candidate, slots, bits)
    )


def _most_slots(candidate: Candidate) -> int:
    if candidate.tier.kind == GPU:
        return capabilities()[candidate.engine].max_sequences
    return ENGINES[candidate.engine].max_slots


def _pinned_away(pins: Pins, candidate: Candidate) -> Reason | None:
    for name, wanted, offered in (
        ("artefact_id", pins.artefact_id, candidate.artefact.id),
        ("quantization", pins.quantization, candidate.artefact.facts.quantization),
        ("engine", pins.engine, candidate.engine),
        ("tier", pins.tier, candidate.tier.key),
    ):
        if wanted is not None and wanted != offered:
            return reason("pinned", f"Another {name.removesuffix('_id')} is pinned ({wanted}).", pin=name, value=wanted)
    return None


def _impossible(question: Question, candidate: Candidate) -> Reason | None:
    engine, files = ENGINES.get(candidate.engine), candidate.artefact
    if files.barred is not None:
        return files.barred
    if candidate.tier.kind == GPU:
        return on_gpus.impossible(question, candidate)
    if engine is None:
        return reason(
            "engine_unknown", f"The engine {candidate.engine} cannot be planned here.", engine=candidate.engine
        )
    if candidate.artefact.format not in engine.formats:
        return reason(
            "format_unsupported",
            f"{candidate.engine} does not load {candidate.artefact.format} files.",
            format=candidate.artefact.format,
        )
    kind = candidate.tier.kind
    if kind in engine.asked_kinds and not _asked_for(question, candidate):
        return reason(
            "engine_not_asked_for",
            f"{candidate.engine} is no part of every installation: pin it, or this artefact, to run it on {candidate.tier.key}.",
            engine=candidate.engine,
        )
    if kind not in engine.kinds | engine.asked_kinds:
        kinds = ", ".join(sorted(engine.kinds | engine.asked_kinds)).upper()
        return reason(
            "tier_unsupported",
            f"{candidate.engine} is planned on {kinds} tiers only; {candidate.tier.key} is a {kind.upper()} tier.",
            kind=kind,
        )
    if question.model.recurrent:
        return reason(
            "memory_unknown",
            f"The architecture {question.model.architecture} keeps a recurrent state whose size is not known here, so its memory "
            "cannot be promised.",
            architecture=question.model.architecture,
        )
    return None


def _asked_for(question: Question, candidate: Candidate) -> bool:
    """By name, or because no engine that is always there loads any of the model's files."""
    pins = question.pins
    if candidate.engine == pins.engine or candidate.artefact.id == pins.artefact_id:
        return True
    usable = (artefact for artefact in question.artefacts if artefact.barred is None)
    usual = (ENGINES[name] for artefact in usable for name in artefact.engines if name in ENGINES)
    return not any(candidate.tier.kind in engine.kinds for engine in usual)


def _poor_quality(needs: Needs, bits: float, measured: MeasuredQuality | None) -> Reason | None:
    """By what was measured of this very artefact, else by its bits."""
    most = MOST_LOSS[needs.quality]
    if measured is not None:
        if measured.loss <= most:
            return None
        return reason(
            "measured_loss",
            f"It was measured: its predictions are {measured.divergence:.3f} nats a token from its source's, about "
            f"{100 * measured.loss:.1f} % of a score; quality “{needs.quality}” accepts {100 * most:.0f} %.",
            divergence=round(measured.divergence, 4),
            loss=round(100 * measured.loss, 2),
            limit=round(100 * most, 2),
        )
    least = LEAST_BITS[needs.quality]
    if bits >= least:
        return None
    return reason(
        "quality_too_low",
        f"The file has {bits:.1f} bits a weight; quality “{needs.quality}” asks for at least {least:.0f}.",
        bits=round(bits, 2),
        limit=least,
    )


def _with_context(question: Question, candidate: Candidate, slots: int, bits: float) -> Fit | Reason:
    """With the context that was asked for, or the largest sensible one that fits when none was."""
    model = question.model
    asked = question.pins.context_length or question.needs.context_length
    if asked is not None and asked > model.context_length:
        return reason(
            "context_too_long",
            f"The model was trained for {model.context_length:,} tokens of context; {asked:,} were asked for.",
            asked=asked,
            limit=model.context_length,
        )
    against = None
    for context in [asked] if asked is not None else _default_contexts(model):
        outcome = _at(question, candidate, context, slots, bits)
        if isinstance(outcome, Fit):
            return outcome
        against = outcome  # the smallest context's reason is the one that stands
    if against is None:
        raise AssertionError("There is always a context to try.")
    return against


def _at(question: Question, candidate: Candidate, context: int, slots: int, bits: float) -> Fit | Reason:
    tier, loss = candidate.tier, _loss(question, candidate, bits)
    if tier.kind == GPU:
        found = on_gpus.fit_on_gpus(question, candidate, context=context, slots=slots, bits=bits, loss=loss)
        if isinstance(found, Reason):
            return found
        return _too_slow(question.needs, found) or _first_late(question.needs, found) or found
    engine = ENGINES[candidate.engine]
    need = memory_need(
        question.model,
        candidate.artefact.facts,
        context_length=context,
        slots=slots,
        available=tier.usable_memory,
        context_step=engine.context_step,
        process_bytes=engine.process_bytes,
        copies=engine.copies_of(candidate.artefact.facts.quantization),
    )
    if not need.fits:
        return reason(
            "memory_short",
            f"It needs {size(need.total)} (weights {size(need.weights)}, context {size(need.kv)}, the rest "
            f"{size(need.overhead)}) and {tier.key} has {size(need.available)} for it: {size(need.short)} are missing.",
            needed=need.total,
            available=need.available,
            short=need.short,
        )
    speed = speed_of(question, candidate, context_length=context, slots=slots)
    fit = Fit(
        candidate,
        context,
        slots,
        need,
        speed,
        bits,
        loss,
        first_of(question, candidate),
        layout=_layout(candidate, need),
    )
    return _too_slow(question.needs, fit) or _first_late(question.needs, fit) or fit


def _layout(candidate: Candidate, need: MemoryNeed) -> Layout:
    """On a CPU only vLLM is told how much cache to set aside, and takes no less than 1 GiB."""
    return Layout(kv_cache_bytes=max(1 << 30, need.kv)) if candidate.engine == "vllm" else Layout()


def _loss(question: Question, candidate: Candidate, bits: float) -> float:
    files = candidate.artefact
    if files.measured is not None:
        return files.measured.loss
    known = None if files.format == "gguf" else scheme(files.facts.quantization)
    return loss_of_bits(question.model, bits) if known is None else score_loss(question.model, known)


def _default_contexts(model: ModelFacts) -> list[int]:
    """The model's own context up to the default, then halves of it."""
    contexts = [min(model.context_length, DEFAULT_CONTEXT)]
    while contexts[-1] // 2 >= _LEAST_SHRUNK:
        contexts.append(contexts[-1] // 2)
    return contexts


def _too_dear(needs: Needs, tier: Tier) -> Reason | None:
    ceiling, price = needs.max_price_per_hour, tier.price_per_hour
    if ceiling is None or (price is not None and price <= ceiling):
        return None
    if price is None:
        return reason(
            "price_unknown", f"{tier.key} has no price, so the ceiling of {ceiling} cannot be promised.", limit=ceiling
        )
    return reason(
        "price_too_high", f"{tier.key} costs {price} an hour; the ceiling is {ceiling}.", price=price, limit=ceiling
    )


def _too_slow(needs: Needs, fit: Fit) -> Reason | None:
    wanted = needs.tokens_per_second
    if wanted is None or (fit.speed is not None and fit.speed.value >= wanted):
        return None
    if fit.speed is None:
        return reason(
            "speed_unknown",
            f"The memory bandwidth of {fit.candidate.tier.key} is not known, so {number(wanted)} tokens a second cannot be promised.",
            limit=wanted,
        )
    return reason(
        "too_slow",
        f"About {number(fit.speed.value)} tokens a second for each of {fit.slots} requests at once; {number(wanted)} were asked for.",
        predicted=fit.speed.value,
        limit=wanted,
    )


def _first_late(needs: Needs, fit: Fit) -> Reason | None:
    wanted = needs.ttft_ms
    if wanted is None or (fit.first is not None and fit.first.value <= wanted):
        return None
    if fit.first is None:
        return reason(
            "first_token_unknown",
            f"The memory bandwidth of {fit.candidate.tier.key} is not known, so a first token within {number(wanted)} ms cannot be "
            "promised.",
            limit=wanted,
        )
    return reason(
        "first_token_late",
        f"The first token of a prompt of 512 tokens comes after about {number(fit.first.value)} ms; {number(wanted)} ms were asked for.",
        predicted=fit.first.value,
        limit=wanted,
    )


def possible(question: Question) -> bool:
    return any(isinstance(judge(question, candidate), Fit) for candidate in candidates(question))
