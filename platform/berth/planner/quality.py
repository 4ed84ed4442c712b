"""What a weight format costs in quality, from measured losses by format and model size."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

import msgspec

from berth.catalog.facts import ModelFacts
from berth.planner.quantization import Scheme
from berth.planner.tables import document
from berth.planner.weights import weights


class MeasuredQuality(msgspec.Struct, frozen=True):
    """How far the predictions of a converted artefact are from those of what it was made of, as Berth measured it."""

    divergence: float  # Kullback-Leibler, nats a token
    perplexity_change: float  # 0.02: 2 % worse
    agreement: float = 1.0  # share of places with the same likeliest next token

    @property
    def loss(self) -> float:
        """Share of a benchmark's score that this costs, 0 to 1, on the scale that public losses were measured on. The divergence counts:
        over a few thousand tokens it is less noisy than a change of perplexity, which may even come out below 0."""
        table = document("quality.toml")["score"]
        change = math.log1p(max(0.0, self.perplexity_change)) / 2.0
        return float(min(float(table["most"]), float(table["per_perplexity"]) * max(0.0, self.divergence, change)))


def read_measured(plain: Mapping[str, Any] | None) -> MeasuredQuality | None:
    """From what an artefact stores. None: nothing was measured, or not what this needs."""
    try:
        found = msgspec.convert(dict(plain or {}), MeasuredQuality)
    except msgspec.ValidationError:
        return None
    return found if math.isfinite(found.divergence) and math.isfinite(found.perplexity_change) else None


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
    if scheme.gguf:
        return loss_of_bits(model, bits if bits is not None else bits_per_weight(model, scheme))
    return _sized(model, float(document("quality.toml")["score"].get(_family(model, scheme), 0.0)))


def loss_of_bits(model: ModelFacts, bits: float) -> float:
    """Of a GGUF file with so many bits a weight."""
    return _sized(model, float(document("quality.toml")["score"]["per_perplexity"]) * perplexity_loss(bits))


def _sized(model: ModelFacts, loss: float) -> float:
    """Smaller models lose more."""
    table: dict[str, Any] = document("quality.toml")["score"]
    size = (7e9 / max(1e8, model.parameters)) ** float(table["size_exponent"])
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
