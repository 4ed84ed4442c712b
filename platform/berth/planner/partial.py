"""A model whose configuration leaves out what its shape needs: completed from what is known, with every completion told.

What is completed widens the margins of a plan (`ModelFacts.assumed`). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from berth.catalog.facts import ModelFacts
from berth.planner.architecture import facts_from_config, family_name
from berth.planner.catalogue import config_by_name, usual_shape

NEEDED: Final = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
NAMES: Final = ("hf_id", "_name_or_path", "name")
SIZES: Final = ("total_params_stated", "num_parameters", "total_parameters")
_WIDTHS: Final = (1024, 1536, 2048, 2560, 3072, 3584, 4096, 5120, 6144, 8192, 12_288, 16_384)
_USUAL_RATIO: Final = 3.2  # of the feed-forward block to the width, where three matrices make one
_USUAL_VOCABULARY: Final = {
    "cohere": 256_000,
    "cohere2": 256_000,
    "gemma": 256_000,
    "qwen2": 152_064,
    "qwen3": 151_936,
    "mistral": 32_768,
}


def facts_from_partial(config: Mapping[str, Any], *, parameters: int | None = None, name: str = "") -> ModelFacts:
    """As `facts_from_config`, also for a configuration with gaps. `name`: the model's own, if there is one. Raises ValueError when not even
    a size is known."""
    try:
        return facts_from_config(config, parameters=parameters)
    except ValueError:
        filled, told = _filled(config, parameters, name)
    facts = facts_from_config(filled, parameters=parameters or _stated(config))
    return msgspec.structs.replace(facts, assumed=(*facts.assumed, told))


def _filled(config: Mapping[str, Any], parameters: int | None, name: str) -> tuple[dict[str, Any], str]:
    """The configuration with its gaps closed, and the sentence about it."""
    own = {key: value for key, value in config.items() if value is not None}
    missing = ", ".join(key for key in NEEDED if not own.get(key))
    for known in (name, *(str(own.get(key, "")) for key in NAMES)):
        found = config_by_name(known) if known else None
        if found is not None and all(own[key] == found[key] for key in own.keys() & found.keys() & _SHAPE):
            return {
                **found,
                **own,
            }, f"the configuration leaves out {missing}: those of the public model {known} are assumed"
    size = parameters or _stated(own)
    if size is not None:
        shape = usual_shape(size / 1e9)
        why = f"those that are usual at {size / 1e9:.3g} billion parameters"
    elif width := own.get("hidden_size") or _width(own.get("intermediate_size")):
        shape = usual_shape(width=int(width))
        why = "the usual ones beside what it does say"
    else:
        raise ValueError("The configuration says neither the model's shape nor its size.")
    family = family_name(str(own.get("architecture") or (own.get("architectures") or [""])[0]))
    shape["vocab_size"] = _USUAL_VOCABULARY.get(family, shape["vocab_size"])
    if own.get("head_dim") and not own.get("num_attention_heads"):
        shape["num_attention_heads"] = max(1, int(own.get("hidden_size", shape["hidden_size"])) // int(own["head_dim"]))
    return {**shape, **own}, f"the configuration leaves out {missing}: {why} are assumed"


_SHAPE: Final = frozenset({*NEEDED, "num_key_value_heads", "intermediate_size"})


def _stated(config: Mapping[str, Any]) -> int | None:
    for key in SIZES:
        value = config.get(key)
        if isinstance(value, int | float) and value > 0:
            return int(value if value > 1e5 else value * 1e9)  # some state billions
    return None


def _width(feed_forward: Any) -> int | None:
    if not isinstance(feed_forward, int) or feed_forward <= 0:
        return None
    return min(_WIDTHS, key=lambda width: abs(feed_forward / width - _USUAL_RATIO))
