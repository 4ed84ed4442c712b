"""Files that are not there and could be made: what the planner weighs beside those that are.

Their sizes come from the mixture's layout (`gguf_layout`), their losses from what is usual for their bits, until they are made and
measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from berth.catalog.facts import FACTS_FORMAT, ArtefactFacts, ModelFacts
from berth.planner.performance import OPERATIONS_PER_CORE
from berth.planner.quantization import scheme
from berth.planner.shapes import PlanArtefact
from berth.planner.weights import weights

# Made without being asked for by name, from the most exact: what is below loses more than anybody should get unasked.
LADDER: Final = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M")
EXACT: Final = ("F32", "F16", "BF16")  # a quantization of a quantization loses twice
_ALIGNMENT: Final = 32
_PREFIX: Final = "make-"
_SECONDS_A_WEIGHT: Final = 0.5e-6  # of one core, measured
_PLACES: Final = 800  # tokens read with each file, prompt and places together
_BEGINNING: Final = 5.0  # seconds: processes start, files are hashed


def is_to_be_made(artefact_id: str) -> bool:
    """Whether the id is one of a file that does not exist yet."""
    return artefact_id.startswith(_PREFIX)


def makeable(
    model: ModelFacts,
    artefacts: Sequence[PlanArtefact],
    barred: Mapping[str, str] | None = None,
    *,
    converters: bool = True,
) -> list[PlanArtefact]:
    """The rungs of the ladder that are missing, made of the most exact file there is; none without an exact one.

    `barred`: quantizations that were tried and are no good, with the sentence that says so. `converters`: whether files that are no GGUF
    can be converted here. What is barred is listed all the same, so that a plan can say why it is not taken.
    """
    source = min((each for each in artefacts if _is_source(each)), key=_nearness, default=None)
    if source is None:
        return []
    there = {each.facts.quantization for each in artefacts if each.format == "gguf"}
    against = dict(barred or {})
    if source.format != "gguf" and not converters:
        sentence = "It would be made of safetensors, which needs the converters, and they are not installed here (`make converters`)."
        against = dict.fromkeys(LADDER, sentence)
    return [_made(model, source, name, against.get(name, "")) for name in LADDER if name not in there]


def _is_source(artefact: PlanArtefact) -> bool:
    return artefact.format in ("gguf", "safetensors") and artefact.facts.quantization in EXACT


def _nearness(artefact: PlanArtefact) -> tuple[int, bool, str]:
    """Most exact first; a GGUF file before others, as it needs no converters."""
    return EXACT.index(artefact.facts.quantization), artefact.format != "gguf", artefact.id


def _made(model: ModelFacts, source: PlanArtefact, quantization: str, barred: str) -> PlanArtefact:
    found = scheme(quantization, engine="llamacpp")
    if found is None:
        raise ValueError("the ladder names what the planner does not know")
    held = weights(model, found)
    routed = model.experts_per_token / model.experts if model.experts else 1.0
    read = held.dense + int(held.experts * routed)
    facts = ArtefactFacts(
        format=FACTS_FORMAT,
        quantization=quantization,
        tensors=source.facts.tensors,
        tensor_bytes=held.total,
        token_bytes=read,
        alignment=_ALIGNMENT,
        chat_template_bytes=source.facts.chat_template_bytes,
        chat_template_accepts=source.facts.chat_template_accepts,
    )
    return PlanArtefact(
        id=f"{_PREFIX}gguf-{quantization}", format="gguf", engines=("llamacpp",), size=held.total, facts=facts,
        made_of=source.id, barred=barred,
    )  # fmt: skip


def seconds_to_make(model: ModelFacts, threads: int) -> float:
    """Of converting and measuring on so many threads, roughly: half a microsecond a weight for the best scales, then a few hundred places
    of text read with both files (docs/conversion.md)."""
    converting = model.parameters * _SECONDS_A_WEIGHT / max(1, threads)
    measuring = 2 * _PLACES * 2 * model.active_parameters / (OPERATIONS_PER_CORE * max(1, threads))
    return round(_BEGINNING + converting + measuring, 1)
