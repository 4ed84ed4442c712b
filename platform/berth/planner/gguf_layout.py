"""Which type llama.cpp's quantizer gives each tensor of a GGUF mixture, and so how large a file will be before it is made.

Transcribed as facts from llama.cpp's documented behaviour (`llama-quantize`, tensor type selection): a mixture's name says the
base type; values, down projections, output and embeddings get more bits by position. Exact sizes of files that exist come from
their headers, not from here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from berth.catalog.facts import ModelFacts

BITS: Final[dict[str, float]] = {
    "F32": 32, "F16": 16, "BF16": 16, "Q8_0": 8.5, "Q6_K": 6.5625, "Q5_K": 5.5, "Q5_0": 5.5, "Q5_1": 6.0, "Q4_K": 4.5, "Q4_0": 4.5,
    "Q4_1": 5.0, "Q3_K": 3.4375, "Q2_K": 2.625, "IQ4_NL": 4.5, "IQ4_XS": 4.25, "IQ3_S": 3.4375, "IQ3_XXS": 3.0625, "IQ2_S": 2.5625,
    "IQ2_XS": 2.3125, "IQ2_XXS": 2.0625, "IQ1_M": 1.75, "IQ1_S": 1.5625, "TQ1_0": 1.6875, "TQ2_0": 2.0625, "MXFP4": 4.25,
}  # fmt: skip
MIXTURES: Final[dict[str, str]] = {
    "F32": "F32", "F16": "F16", "BF16": "BF16", "Q8_0": "Q8_0", "Q6_K": "Q6_K", "Q6_K_L": "Q6_K", "Q5_K_M": "Q5_K", "Q5_K_S": "Q5_K",
    "Q5_K_L": "Q5_K", "Q5_K": "Q5_K", "Q5_0": "Q5_0", "Q5_1": "Q5_1", "Q4_K_M": "Q4_K", "Q4_K_S": "Q4_K", "Q4_K_L": "Q4_K",
    "Q4_K": "Q4_K", "Q4_0": "Q4_0", "Q4_1": "Q4_1", "Q3_K_L": "Q3_K", "Q3_K_M": "Q3_K", "Q3_K_S": "Q3_K", "Q3_K_XL": "Q3_K",
    "Q3_K": "Q3_K", "Q2_K": "Q2_K", "Q2_K_S": "Q2_K", "Q2_K_L": "Q2_K", "IQ4_NL": "IQ4_NL", "IQ4_XS": "IQ4_XS", "IQ3_M": "IQ3_S",
    "IQ3_S": "IQ3_S", "IQ3_XS": "IQ3_S", "IQ3_XXS": "IQ3_XXS", "IQ2_M": "IQ2_S", "IQ2_S": "IQ2_XS", "IQ2_XS": "IQ2_XS",
    "IQ2_XXS": "IQ2_XXS", "IQ1_M": "IQ1_M", "IQ1_S": "IQ1_S", "TQ1_0": "TQ1_0", "TQ2_0": "TQ2_0", "MXFP4": "MXFP4",
}  # fmt: skip

_SAME: Final = {"Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M", "Q3_K": "Q3_K_M", "Q4_K_L": "Q4_K_M", "Q5_K_L": "Q5_K_M", "Q3_K_XL": "Q3_K_L",
                "Q6_K_L": "Q6_K", "Q2_K_L": "Q2_K"}  # fmt: skip
_WIDE_ENDS: Final = ("Q4_K_L", "Q5_K_L", "Q3_K_XL", "Q6_K_L", "Q2_K_L")  # published with embeddings and output in Q8_0
_TINY: Final = ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "IQ1_S", "IQ1_M")
_FALLBACK: Final = {
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
}  # rows that are no multiple of 256; the rest: IQ4_NL
_ROW_32: Final = ("F32", "F16", "BF16", "Q8_0", "Q5_0", "Q5_1", "Q4_0", "Q4_1", "IQ4_NL", "MXFP4")


def more_bits(index: int, count: int) -> bool:
    """The first and last eighth of the layers, and every third between."""
    eighth = count // 8
    return index < eighth or index >= 7 * count // 8 or (index - eighth) % 3 == 2


def tensors(model: ModelFacts, mixture: str) -> Iterator[tuple[str, int, str]]:
    """(kind, elements, type) of every matrix, and one entry for all that stays F32."""
    kind = _SAME.get(mixture, mixture)
    base = MIXTURES[mixture]
    table = model.vocabulary * model.embedding_length
    ends = "Q8_0" if mixture in _WIDE_ENDS else ""
    if model.tied_embeddings:
        yield "output", table, ends or _fit(_output(kind, base, model), model.embedding_length)
    else:
        yield "token_embd", table, ends or _fit(_embedding(kind, base), model.embedding_length)
        yield "output", table, ends or _fit(_output(kind, base, model), model.embedding_length)
    counted = table * (1 if model.tied_embeddings else 2)
    for layer in range(model.layers):
        for name, elements, row in _matrices(model, layer):
            counted += elements
            yield name, elements, _fit(_type(name, kind, base, layer, model), row)
    yield "rest", max(0, model.parameters - model.tower_parameters - counted), "F32"


def _matrices(model: ModelFacts, layer: int) -> Iterator[tuple[str, int, int]]:
    """(name, elements, length of a row)."""
    h = model.embedding_length
    query = model.query_heads_length or h
    group = model.attention[0] if model.attention else None
    if group is not None and group.latent:
        per_layer = _mla_elements(model)
        yield "attn_q", per_layer, h
    elif group is not None:
        yield "attn_q", h * query, h
        yield "attn_k", h * group.kv_heads * group.key_length, h
        yield "attn_v", h * group.kv_heads * group.value_length, h
        yield "attn_output", query * h, query
    inner = 2 if model.gated else 1
    if model.experts and layer >= model.layers - model.expert_layers:
        width, count = model.expert_feed_forward, model.experts
        yield "ffn_up_exps", inner * h * width * count, h
        yield "ffn_down_exps", h * width * count, width
        return
    width = model.feed_forward_length
    yield "ffn_up", inner * h * width, h
    yield "ffn_down", h * width, width


def _mla_elements(model: ModelFacts) -> int:
    """What is left of a layer with latent attention after everything else is counted, spread evenly."""
    h, tables = model.embedding_length, model.vocabulary * model.embedding_length * (1 if model.tied_embeddings else 2)
    dense = (model.layers - model.expert_layers) * 3 * h * model.feed_forward_length
    left = model.parameters - model.tower_parameters - tables - dense - model.expert_parameters
    return max(0, left // model.layers)


def _fit(kind: str, row: int) -> str:
    if row % 256 == 0 or kind in _ROW_32:
        return kind
    return _FALLBACK.get(kind, "IQ4_NL")


def _output(kind: str, base: str, model: ModelFacts) -> str:
    if base in ("F32", "F16", "BF16", "Q8_0"):
        return base
    if kind == "MXFP4" or "falcon" in model.architecture.lower():
        return "Q8_0"
    return "Q5_K" if kind in (*_TINY, "IQ3_XXS") else "Q6_K"


def _embedding(kind: str, base: str) -> str:
    if kind in ("IQ2_XXS", "IQ2_XS", "IQ1_S", "IQ1_M"):
        return "Q2_K"
    if kind in ("IQ2_S", "IQ2_M", "IQ3_XXS"):
        return "IQ3_S"
    if kind == "MXFP4":
        return "Q8_0"
    return "Q4_K" if kind in ("TQ1_0", "TQ2_0") else base


def _type(name: str, kind: str, base: str, layer: int, model: ModelFacts) -> str:
    if kind == "MXFP4":
        return "MXFP4" if name.endswith("_exps") else "Q8_0"
    if base in ("F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_0", "Q5_1", "Q4_0", "Q4_1", "TQ1_0", "TQ2_0"):
        return (
            "Q8_0"
            if model.experts == 8 and name in ("attn_v", "attn_k") and base not in ("F32", "F16", "BF16")
            else base
        )
    chosen = _TINY_CHOICE if kind in _TINY else _CHOICE
    return chosen(name.removesuffix("_exps"), kind, base, layer, model)


def _groups(model: ModelFacts) -> int:
    return model.heads // max(1, model.attention[0].kv_heads)


def _TINY_CHOICE(name: str, kind: str, base: str, layer: int, model: ModelFacts) -> str:  # noqa: N802
    better = "IQ3_S" if kind in ("IQ2_S", "IQ2_M") else "Q2_K"
    if name == "attn_v":
        return "Q4_K" if _groups(model) >= 4 or model.experts >= 4 else better
    if name == "attn_k" and model.experts == 8:
        return "Q4_K"
    if name == "ffn_down" and layer < model.layers // 8:
        return better
    if name == "attn_output":
        if model.experts == 8:
            return "Q5_K"
        return {"IQ1_S": "IQ2_XXS", "IQ1_M": "IQ2_XXS", "IQ2_S": "IQ3_S", "IQ2_M": "IQ3_S"}.get(kind, base)
    return base


def _CHOICE(name: str, kind: str, base: str, layer: int, model: ModelFacts) -> str:  # noqa: N802
    if name == "attn_v":
        return _values(kind, base, layer, model)
    if name == "attn_k" and model.experts == 8:
        return "Q8_0"
    if name in ("attn_k", "attn_q"):
        return {"IQ3_XS": "IQ3_XXS", "IQ3_XXS": "IQ2_S"}.get(kind, base)
    if name == "ffn_down":
        return _down(kind, base, layer, model)
    if name == "attn_output":
        if model.experts == 8 and base not in ("Q5_K",):
            return "Q5_K"
        return {"Q2_K": "Q3_K", "IQ3_XXS": "IQ3_S", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K", "IQ3_M": "Q4_K"}.get(kind, base)
    inner = model.layers // 8 <= layer < 7 * model.layers // 8
    return "IQ3_XXS" if kind == "IQ3_XS" and inner and name == "ffn_up" else base


def _values(kind: str, base: str, layer: int, model: ModelFacts) -> str:
    grouped = _groups(model) >= 4
    chosen = base
    if kind == "Q2_K":
        chosen = "Q4_K" if grouped else "Q3_K"
    elif kind in ("Q2_K_S", "IQ3_XXS", "IQ3_XS", "IQ3_S"):
        chosen = "Q4_K" if grouped else ("IQ3_S" if kind == "IQ3_XXS" else base)
    elif kind == "IQ3_M":
        chosen = "Q4_K"
    elif kind == "Q3_K_M":
        chosen = "Q5_K" if layer < 2 else "Q4_K"
    elif kind == "Q3_K_L":
        chosen = "Q5_K"
    elif kind in ("IQ4_NL", "IQ4_XS"):
        chosen = "Q5_K" if grouped else base
    elif kind in ("Q4_K_M", "Q5_K_M"):
        chosen = "Q6_K" if more_bits(layer, model.layers) else base
    elif kind == "Q4_K_S":
        chosen = "Q5_K" if layer < 4 else base
    if model.layers == 80 and grouped and chosen in ("Q3_K", "Q4_K"):
        chosen = "Q5_K"  # the quantizer knows 70B models, whose values eight heads share
    return "Q8_0" if model.experts == 8 else chosen


def _down(kind: str, base: str, layer: int, model: ModelFacts) -> str:
    first = layer < model.layers // 8
    if kind == "Q2_K":
        return "Q3_K"
    if kind == "Q2_K_S":
        return "Q4_K" if first else base
    if kind == "Q3_K_M":
        return "Q5_K" if layer < model.layers // 16 else "Q4_K"
    if kind == "Q3_K_L":
        return "Q5_K"
    if kind == "IQ3_M":
        return "Q4_K" if first or (model.experts == 8 and more_bits(layer, model.layers)) else base
    if kind in ("Q4_K_M", "Q5_K_M"):
        return "Q6_K" if more_bits(layer, model.layers) else base
    if kind in ("Q4_K_S", "IQ4_NL", "IQ4_XS"):
        return "Q5_K" if first and kind == "Q4_K_S" else base
    return base
