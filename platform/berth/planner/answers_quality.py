"""Answers about quality: what is left of a score or a perplexity, from the unquantized value that the same source gives."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from berth.planner.answers import Answer, Unanswerable, model_of, scheme_of
from berth.planner.catalogue import normalised
from berth.planner.measurements import Measurement
from berth.planner.quality import bits_per_weight, perplexity_loss, score_loss

References = Mapping[tuple[str, str, str], float]
_PLAIN = re.compile(r"^(bf16|fp16|f16|f32|native|)$", re.IGNORECASE)


def references(points: Sequence[Measurement]) -> References:
    """The unquantized values of a file by source, model and metric."""
    return {_key(p): p.value for p in points if p.kind == "quality" and _PLAIN.match(p.quant.strip())}


def _key(point: Measurement) -> tuple[str, str, str]:
    return (point.source_key, normalised(point.model), point.metric)


def answer_quality(point: Measurement, known: References) -> Answer:
    """Raises Unanswerable."""
    if _PLAIN.match(point.quant.strip()):
        raise Unanswerable("it is the score of an unquantized model: the planner predicts losses, not scores")
    model = model_of(point)
    chosen = scheme_of(point, model)
    loss = score_loss(model, chosen)
    if "recovery" in point.metric:
        return Answer((100.0 if point.value > 2 else 1.0) * (1.0 - loss))
    base = known.get(_key(point))
    if base is None and (told := re.search(r"unquantized (?:model )?(?:achieves|at) (\d+(?:\.\d+)?)", point.quote)):
        base = float(told.group(1))
    if base is None:
        raise Unanswerable("the file has no score of the unquantized model to compare with")
    if "perplexity" in point.metric or point.unit == "ppl":
        return Answer(base * math.exp(perplexity_loss(bits_per_weight(model, chosen))))
    return Answer(base * (1.0 - loss))
