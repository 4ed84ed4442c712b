"""What can be made of what, and how good it has to be."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

# From the most exact to the smallest.
GGUF: Final = ("F16", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q5_K_S", "Q4_K_M", "Q4_K_S", "Q4_1", "Q4_0", "Q3_K_M", "Q2_K")
# Quantizations that can be made, by format. All but GGUF out of GGUF need the converters (docs/conversion.md).
MADE: Final[dict[str, tuple[str, ...]]] = {
    "gguf": GGUF,
    "safetensors": ("BF16", "FP8", "INT8 W8A8", "INT4 W4A16", "AWQ-INT4"),
    "onnx": ("F16", "INT4 W4A16"),
}
QUANTIZATIONS: Final = tuple(dict.fromkeys(name for names in MADE.values() for name in names))
_UNQUANTIZED: Final = ("F32", "F16", "BF16")
_EXACTNESS: Final = {name: number for number, name in enumerate(("F32", *GGUF))}

# A file that predicts this much worse than its source is broken, whatever anybody asked for: the bounds of
# `berth_runtime.quality.floors`, to which a test holds these.
BROKEN: Final = {"divergence": 2.0, "perplexity_change": 4.0, "agreement": 0.25}


def exactness(quantization: str) -> int:
    """Smaller is nearer to the trained weights; what is not known counts as the least exact."""
    return _EXACTNESS.get(quantization, len(_EXACTNESS))


def best_source(
    artefacts: Iterable[tuple[str, str]],
    format: str,  # noqa: A002
    quantization: str,
) -> tuple[str, str] | None:
    """Of (format, quantization) pairs, the most exact one that the target can be made of; None: there is none.

    GGUF before safetensors of the same exactness: it needs no converters.
    """
    usable = [each for each in artefacts if _can_be_made_of(each, format, quantization)]
    return min(usable, key=lambda each: (exactness(each[1]), each[0] != "gguf", each), default=None)


def _can_be_made_of(source: tuple[str, str], format: str, quantization: str) -> bool:  # noqa: A002
    kind, precision = source
    if quantization not in MADE.get(format, ()) or source == (format, quantization):
        return False
    if format == "gguf":
        return kind == "gguf" or (kind == "safetensors" and precision in _UNQUANTIZED)
    if format == "safetensors" and quantization == "BF16":
        return kind in ("gguf", "lora")
    return kind == "safetensors" and precision in _UNQUANTIZED


def falls_short(quality: dict[str, Any]) -> str | None:
    """Why a measured artefact must not be used, as a sentence; None: it may."""
    if quality["divergence"] > BROKEN["divergence"]:
        return f"its predictions are {quality['divergence']:.2f} nats a token away from those of its source"
    if quality["perplexity_change"] > BROKEN["perplexity_change"]:
        return f"its perplexity is {quality['perplexity_change']:.0%} worse than that of its source"
    if quality["agreement"] < BROKEN["agreement"]:
        return f"it agrees with its source about {quality['agreement']:.0%} of the next tokens only"
    return None
