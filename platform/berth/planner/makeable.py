"""Files that are not there and could be made: what the planner weighs beside those that are.

GGUF of any exact file, for llama.cpp; compressed safetensors of exact safetensors, for engines on GPUs. Their sizes come from the
layout of the format, their losses from what is usual for it, until they are made and measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from berth.catalog.facts import FACTS_FORMAT, ArtefactFacts, ModelFacts
from berth.catalog.intake.support import engines_for_safetensors
from berth.planner.explain import Reason, reason, size
from berth.planner.performance import OPERATIONS_PER_CORE
from berth.planner.quantization import scheme
from berth.planner.shapes import PlanArtefact
from berth.planner.weights import weights

# Made without being asked for by name, from the most exact: what is below loses more than anybody should get unasked.
LADDER: Final = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M")
EXACT: Final = ("F32", "F16", "BF16")  # a quantization of a quantization loses twice
GGUF_SECONDS: Final = 0.5e-6  # a weight and core, for the best scales; measured
_ALIGNMENT: Final = 32
_PREFIX: Final = "make-"
_PLACES: Final = 800  # tokens read with each file, prompt and places together
_BEGINNING: Final = 5.0  # seconds: processes start, files are hashed
_LIBRARIES: Final = 30.0  # seconds that PyTorch takes to start, three times
_LIBRARY_BYTES: Final = 2 << 30


class Recipe(msgspec.Struct, frozen=True):
    """A compressed form of safetensors, as the converters make it (docs/conversion.md)."""

    quantization: str
    seconds: float  # a weight and core, as measured with the sample model
    copies: int  # of the source in memory, at the highest


# From the most exact; of equals the quicker first.
COMPRESSED: Final = (
    Recipe("FP8", 0.1e-6, 2),
    Recipe("INT8 W8A8", 0.1e-6, 2),
    Recipe("INT4 W4A16", 3e-6, 3),
    Recipe("AWQ-INT4", 50e-6, 3),
)


class Maker(msgspec.Struct, frozen=True):
    """The machine that converts."""

    converters: bool = True  # whether files that are no GGUF can be converted there
    memory: int | None = None  # bytes; None: not known
    threads: int = 1


def is_to_be_made(artefact_id: str) -> bool:
    """Whether the id is one of a file that does not exist yet."""
    return artefact_id.startswith(_PREFIX)


def makeable(
    model: ModelFacts,
    artefacts: Sequence[PlanArtefact],
    barred: Mapping[str, str] | None = None,
    *,
    maker: Maker | None = None,
) -> list[PlanArtefact]:
    """What is missing and can be made of the most exact file there is; nothing without an exact one.

    `barred`: quantizations that were tried and are no good, with the sentence that says so. What is barred, or cannot be made on the
    machine that converts, is listed all the same, so that a plan can say why it is not taken.
    """
    against, machine = dict(barred or {}), maker or Maker()
    return [*_ggufs(model, artefacts, against, machine), *_compressed(model, artefacts, against, machine)]


def _ggufs(
    model: ModelFacts, artefacts: Sequence[PlanArtefact], barred: Mapping[str, str], maker: Maker
) -> Iterator[PlanArtefact]:
    source = _source(artefacts, "gguf", "safetensors")
    if source is None:
        return
    missing = None if source.format == "gguf" else _without_converters(maker)
    seconds = _seconds(model, maker, GGUF_SECONDS)
    for name in LADDER:
        if not _there(artefacts, "gguf", name):
            yield _made(model, source, name, "gguf", ("llamacpp",), missing or _tried(name, barred), seconds)


def _compressed(
    model: ModelFacts, artefacts: Sequence[PlanArtefact], barred: Mapping[str, str], maker: Maker
) -> Iterator[PlanArtefact]:
    source = _source(artefacts, "safetensors")
    if source is None:
        return
    for recipe in COMPRESSED:
        name = recipe.quantization
        able = engines_for_safetensors(model.architecture, name)
        engines = tuple(each for each in source.engines if each in able)
        if engines and not _there(artefacts, "safetensors", name):
            against = _beyond(model, source, recipe, maker) or _tried(name, barred)
            seconds = _LIBRARIES + _seconds(model, maker, recipe.seconds)
            yield _made(model, source, name, "safetensors", engines, against, seconds)


def _tried(quantization: str, barred: Mapping[str, str]) -> Reason | None:
    return reason("cannot_be_made", barred[quantization], quantization=quantization) if quantization in barred else None


def _without_converters(maker: Maker) -> Reason | None:
    if maker.converters:
        return None
    return reason(
        "converters_missing",
        "It would be made of safetensors, which needs the converters, and they are not installed here (`make converters`).",
    )


def _beyond(model: ModelFacts, source: PlanArtefact, recipe: Recipe, maker: Maker) -> Reason | None:
    """Why the machine that converts cannot make it; None: it can."""
    if (missing := _without_converters(maker)) is not None:
        return missing
    if model.experts:
        return reason(
            "experts_not_compressed",
            "The converters leave the experts of a mixture as they are, so it would hardly get smaller.",
        )
    needed = recipe.copies * source.facts.tensor_bytes + _LIBRARY_BYTES
    if maker.memory is not None and needed > maker.memory:
        return reason(
            "making_needs_memory",
            f"Making it takes about {size(needed)} of memory, and the machine that converts has {size(maker.memory)}. Make it on a larger "
            "machine and import it.",
            needed=needed,
            available=maker.memory,
        )
    return None


def _source(artefacts: Sequence[PlanArtefact], *formats: str) -> PlanArtefact | None:
    """The most exact; a GGUF file before others, as it needs no converters."""
    usable = [each for each in artefacts if each.format in formats and each.facts.quantization in EXACT]
    return min(
        usable, key=lambda each: (EXACT.index(each.facts.quantization), each.format != "gguf", each.id), default=None
    )


def _there(artefacts: Sequence[PlanArtefact], kind: str, quantization: str) -> bool:
    return any((each.format, each.facts.quantization) == (kind, quantization) for each in artefacts)


def _made(
    model: ModelFacts,
    source: PlanArtefact,
    quantization: str,
    kind: str,
    engines: tuple[str, ...],
    barred: Reason | None,
    seconds: float,
) -> PlanArtefact:
    found = scheme(quantization, engine="llamacpp" if kind == "gguf" else "")
    if found is None:
        raise ValueError("the ladder names what the planner does not know")
    held = weights(model, found)
    routed = model.experts_per_token / model.experts if model.experts else 1.0
    facts = ArtefactFacts(
        format=FACTS_FORMAT,
        quantization=quantization,
        tensors=source.facts.tensors,
        tensor_bytes=held.total,
        token_bytes=held.dense + int(held.experts * routed),
        alignment=_ALIGNMENT,
        chat_template_bytes=source.facts.chat_template_bytes,
        chat_template_accepts=source.facts.chat_template_accepts,
    )
    return PlanArtefact(
        id=f"{_PREFIX}{kind}-{quantization}", format=kind, engines=engines, size=held.total, facts=facts,
        made_of=source.id, barred=barred, seconds=round(seconds, 1),
    )  # fmt: skip


def _seconds(model: ModelFacts, maker: Maker, a_weight: float) -> float:
    """Of converting, and of measuring a few hundred places of text with both files (docs/conversion.md), roughly."""
    threads = max(1, maker.threads)
    measuring = 2 * _PLACES * 2 * model.active_parameters / (OPERATIONS_PER_CORE * threads)
    return _BEGINNING + model.parameters * a_weight / threads + measuring
