"""What a weight format costs in quality, from measured losses by format and model size."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from berth.catalog.facts import ModelFacts
from berth.planner.quantization import Scheme
from berth.planner.tables import document
from berth.planner.weights import weights


def bits_per_weight(model: ModelFacts, scheme: Scheme) -> float:
    return weights(model, scheme).total * 8.0 / max(1, model.parameters)


def perplexity_loss(bits: float) -> float:
    """ln(perplexity / unquantized perplexity) of a GGUF file with so many bits a weight."""
    table = document("quality.toml")["perplexity"]
    known: list[float] = table["bits"]
    losses: list[float] = table["loss"]
    if bits <= known[0]:
        return losses[0]
    if bits >= known[-1]:
        return losses[-1]
    right = bisect_left(known, bits)
    share = (bits - known[right - 1]) / (known[right] - known[right - 1])
    return losses[right - 1] + share * (losses[right] - losses[right - 1])


def score_loss(model: ModelFacts, scheme: Scheme, bits: float | None = None) -> float:
    """Share of a benchmark's score that is lost, 0 to 1. `bits`: of the real file, where there is one."""
    table: dict[str, Any] = document("quality.toml")["score"]
    size = (7e9 / max(1e8, model.parameters)) ** float(table["size_exponent"])
    if scheme.gguf:
        loss = float(table["per_perplexity"]) * perplexity_loss(
            bits if bits is not None else bits_per_weight(model, scheme)
        )
    else:
        loss = float(table.get(_family(model, scheme), 0.0))
    return float(min(float(table["most"]), loss * size))


def _family(model: ModelFacts, scheme: Scheme) -> str:
    """Formats that the model was published in lose nothing against it."""
    bits = scheme.routed_bits
    if model.native_quantization and scheme.name.lower().startswith(model.native_quantization):
        return "native"
    if bits >= 15:
        return "none"
    if scheme.compute == "fp8":
        return "fp8"
    if scheme.compute == "fp4":
        return "fp4"
    return "int8" if bits >= 7 else "int4"
