"""Which type each tensor of a GGUF file gets in a mixture, and what it gets where its rows do not fit.

The names and the choice by position are those of llama.cpp's `llama-quantize`: a mixture's name says the base type; values, down
projections, output and embeddings get more bits. A K type packs 256 numbers of a row together, so a row that is no multiple
of 256 falls back to a type of 32.
"""

from __future__ import annotations

from typing import Final

import msgspec

# What this can make, from the most exact to the smallest. The figure is llama.cpp's own number of the mixture (`general.file_type`).
MIXTURES: Final[dict[str, int]] = {
    "F32": 0, "F16": 1, "BF16": 32, "Q8_0": 7, "Q6_K": 18, "Q5_K_M": 17, "Q5_K_S": 16, "Q4_K_M": 15, "Q4_K_S": 14, "Q4_1": 3,
    "Q4_0": 2, "Q3_K_M": 12, "Q2_K": 10,
}  # fmt: skip
_FALLBACK: Final = {"Q2_K": "IQ4_NL", "Q3_K": "IQ4_NL", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
_UNQUANTIZED: Final = ("F32", "F16", "BF16")
# Small or sensitive: llama.cpp's quantizer leaves these as they are.
_KEPT: Final = (
    "_norm.weight", "ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "position_embd.weight", "token_types.weight",
    "ssm_conv1d.weight", "shortconv.conv.weight", "attn_rel_b.weight", "altup", "laurel", "per_layer_model_proj",
)  # fmt: skip


class Shape(msgspec.Struct, frozen=True):
    """What of a model decides types."""

    layers: int
    heads_per_kv_head: int
    experts: int
    tied: bool  # the embeddings serve as output layer too


class Choice(msgspec.Struct, frozen=True):
    """A tensor's type, and the one it would have had if its rows were multiples of 256."""

    type: str
    wanted: str

    @property
    def fell_back(self) -> bool:
        return self.type != self.wanted


def choose(mixture: str, name: str, dims: tuple[int, ...], shape: Shape) -> Choice | None:
    """The type of a tensor; None: it stays as it is, in full precision.

    `dims` are GGUF's: the first is the length of a row. Raises KeyError for a mixture that is not in MIXTURES.
    """
    if mixture not in MIXTURES:
        raise KeyError(mixture)
    base = mixture.removesuffix("_M").removesuffix("_S")
    if len(dims) < 2 or not name.endswith(".weight") or any(part in name for part in _KEPT):
        return None
    if base in _UNQUANTIZED:
        return Choice(base, base)
    wanted = _wanted(mixture, base, name, shape)
    return Choice(wanted if dims[0] % _block(wanted) == 0 else _fitting(wanted, dims[0]), wanted)


def _block(kind: str) -> int:
    return 256 if kind.endswith("_K") else 32


def _fitting(wanted: str, row: int) -> str:
    """A type whose blocks tile the row. Rows that are no multiple of 32 either stay in 16 bits."""
    return _FALLBACK.get(wanted, "F16") if row % 32 == 0 else "F16"


def _wanted(mixture: str, base: str, name: str, shape: Shape) -> str:
    if name == "output.weight" or (name == "token_embd.weight" and shape.tied):
        return "Q8_0" if base == "Q8_0" else "Q6_K"
    if not name.startswith("blk."):
        return base
    _, number, part, *_ = name.split(".")
    return _of_layer(mixture, base, part.removesuffix("_exps"), int(number), shape)


def _of_layer(mixture: str, base: str, part: str, layer: int, shape: Shape) -> str:
    if shape.experts == 8 and part in ("attn_v", "attn_k"):
        return "Q8_0"
    if base in ("Q8_0", "Q6_K", "Q4_0", "Q4_1"):
        return base
    if part == "attn_v":
        return _values(mixture, base, layer, shape)
    if part == "ffn_down":
        return _down(mixture, base, layer, shape)
    if part == "attn_output":
        if shape.experts == 8 and base != "Q5_K":
            return "Q5_K"
        return {"Q2_K": "Q3_K", "Q3_K_M": "Q4_K"}.get(mixture, base)
    return base


def _values(mixture: str, base: str, layer: int, shape: Shape) -> str:
    grouped = shape.heads_per_kv_head >= 4
    chosen = base
    if mixture == "Q2_K":
        chosen = "Q4_K" if grouped else "Q3_K"
    elif mixture == "Q3_K_M":
        chosen = "Q5_K" if layer < 2 else "Q4_K"
    elif mixture in ("Q4_K_M", "Q5_K_M") and _more_bits(layer, shape.layers):
        chosen = "Q6_K"
    elif mixture == "Q4_K_S" and layer < 4:
        chosen = "Q5_K"
    if shape.layers == 80 and grouped and chosen in ("Q3_K", "Q4_K"):
        return "Q5_K"  # the quantizer knows 70B models, whose values eight heads share
    return chosen


def _down(mixture: str, base: str, layer: int, shape: Shape) -> str:
    if mixture == "Q2_K":
        return "Q3_K"
    if mixture == "Q3_K_M":
        return "Q5_K" if layer < shape.layers // 16 else "Q4_K"
    if mixture in ("Q4_K_M", "Q5_K_M") and _more_bits(layer, shape.layers):
        return "Q6_K"
    if mixture == "Q4_K_S" and layer < shape.layers // 8:
        return "Q5_K"
    return base


def _more_bits(layer: int, layers: int) -> bool:
    """The first and last eighth of the layers, and every third between."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
