"""Weight formats by the names people give them: how many bits each kind of matrix keeps, and what it is multiplied in.

Bits count the scales and zero points that are stored beside the weights. Embeddings and the output layer stay unquantized in
every checkpoint format but GGUF and EXL2. GGUF mixtures choose a type for each tensor: see `gguf_layout`.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

import msgspec

from berth.planner.gguf_layout import BITS, MIXTURES


class Scheme(msgspec.Struct, frozen=True):
    name: str
    linear_bits: float
    embedding_bits: float = 16.0
    expert_bits: float = 0.0  # 0: as linear_bits
    compute: str = "fp16"  # the type whose peak rate bounds a prefill: fp16, fp8, int8, fp4
    unpacked: bool = False  # weights become FP16 on the way into the multiplication
    gguf: str = ""  # the mixture's name
    kv_bits: int = 16  # of the cache, where the checkpoint or the recipe says so

    @property
    def packing(self) -> tuple[str, ...]:
        """How weights are packed, the most particular first. K-quants and I-quants take more arithmetic to unpack than the older forms."""
        if not self.unpacked:
            return ()
        return (
            ("kquant", "unpacked") if self.gguf and ("_K" in self.gguf or self.gguf.startswith("IQ")) else ("unpacked",)
        )

    @property
    def routed_bits(self) -> float:
        return self.expert_bits or self.linear_bits


_GROUP: Final = (16 + 4) / 128  # a half-precision scale and a 4-bit zero point for 128 weights
_SCHEMES: Final[dict[str, Scheme]] = {
    "f32": Scheme("F32", 32, 32),
    "bf16": Scheme("BF16", 16),
    "fp8": Scheme("FP8", 8.0, compute="fp8"),
    "int8-w8a8": Scheme("INT8 W8A8", 8.0, compute="int8"),
    "int8-w8a16": Scheme("INT8 W8A16", 8 + 16 / 128, unpacked=True),
    "gptq-int8": Scheme("GPTQ-Int8", 8 + (16 + 8) / 128, unpacked=True),
    "gptq-int4": Scheme("GPTQ-Int4", 4 + _GROUP, unpacked=True),
    "awq": Scheme("AWQ-INT4", 4 + _GROUP, unpacked=True),
    "int4-w4a16": Scheme("INT4 W4A16", 4 + 16 / 128, unpacked=True),
    "nf4": Scheme("NF4", 4.5, unpacked=True),
    "q4f16": Scheme("q4f16_1", 4.5, 4.5, unpacked=True),
    "nvfp4": Scheme("NVFP4", 4.5, compute="fp4"),
    "w4a8": Scheme("W4A8", 4 + _GROUP, compute="int8", unpacked=True),
    "fp6": Scheme("FP6", 6 + 16 / 128, unpacked=True),
    "mxfp8": Scheme("MXFP8", 8.25, compute="fp8"),
    "mxfp6": Scheme("MXFP6", 6.25, unpacked=True),
    "int3": Scheme("INT3", 3 + _GROUP, unpacked=True),
    "int2": Scheme("INT2", 2 + _GROUP, unpacked=True),
    "mxfp4": Scheme("MXFP4", 16, expert_bits=4.25, unpacked=True),
}
_EXL2: Final = re.compile(r"(?:exl2|exl3)?\s*(\d+(?:\.\d+)?)\s*bpw")
_PLAIN: Final = re.compile(
    r"^(?:native.*|none|unquanti[sz]ed|original|default|auto|-+|n/?a|no|full(?: precision)?|as published|checkpoint"
    r"|compressed-tensors|modelopt"
    r"|not stated|unknown)$"
)
_GGUF_NAME: Final = re.compile(r"\b(?:ud-)?(i?q\d(?:_k)?(?:_(?:xxs|xs|nl|xl|[sml01]))?|tq\d_0|iq4_nl)\b", re.IGNORECASE)


@cache
def scheme(name: str, *, engine: str = "", native: str = "") -> Scheme | None:
    """From a name such as "GPTQ-Int4", "Q4_K_M", "FP8 W8A8", "EXL2 4.0bpw". Empty or "native": what the model's own files have, and for
    engines that read GGUF their usual mixture. None: the name is not known."""
    text = name.strip().lower()
    kv_bits = _kv_bits(text)
    text = re.sub(
        r"\b(bf16|fp16|fp8|int8|f16|auto)\s*kv\b.*|kv.*(bf16|fp16|fp8|int8)$|gemm=.*|\(.*\)|act-order|weights|,",
        " ",
        text,
    ).strip()
    found = _named(text, engine, native)
    if found is None or kv_bits == found.kv_bits:
        return found
    return msgspec.structs.replace(found, kv_bits=kv_bits)


def _kv_bits(text: str) -> int:
    return 8 if re.search(r"(fp8|int8)\s*kv|kv.*(fp8|int8)", text) else 16


def _named(text: str, engine: str, native: str) -> Scheme | None:
    if not text or _PLAIN.match(text):
        if engine in ("llamacpp", "ollama"):
            return _gguf("MXFP4" if native == "mxfp4" else "Q4_K_M")
        return _SCHEMES.get(_NATIVE.get(native, ""), _SCHEMES["bf16"])
    if match := _EXL2.search(text):
        bits = float(match.group(1))
        return Scheme(f"EXL2 {bits:g}bpw", bits, 6.0, unpacked=True)
    if engine in ("llamacpp", "ollama"):
        text = _LLAMACPP.get(text, text)
        text = re.sub(r"(q\d_k)_xl\b", _without_xl, text)
    if (match := _GGUF_NAME.search(text)) and match.group(1).upper() in MIXTURES:
        return _gguf(match.group(1).upper())
    if engine in ("llamacpp", "ollama") and text.upper() in MIXTURES:
        return _gguf(text.upper())
    if engine == "mlc" and re.search(r"int4|q4", text):
        return _SCHEMES["q4f16"]
    for pattern, key in _PATTERNS:
        if re.search(pattern, text):
            return _SCHEMES[key]
    return None


_LLAMACPP: Final = {
    "int4": "q4_0", "int8": "q8_0", "4-bit": "q4_k_m", "4bit": "q4_k_m", "fp16": "f16", "fp8": "q8_0", "8-bit": "q8_0", "8bit": "q8_0",
    "q4": "q4_k_m", "q8": "q8_0", "q5": "q5_k_m", "q6": "q6_k", "half": "f16", "float16": "f16", "5bit": "q5_k_m", "6bit": "q6_k",
    "fp32": "f32", "float32": "f32", "bfloat16": "bf16", "q3": "q3_k_m", "q2": "q2_k", "3-bit": "q3_k_m",
}  # fmt: skip


def _without_xl(match: re.Match[str]) -> str:
    """Unsloth's "extra large" mixtures are nearest to these."""
    return {"q2_k": "q2_k_l", "q3_k": "q3_k_xl", "q4_k": "q4_k_l", "q5_k": "q5_k_l", "q6_k": "q6_k_l", "q8_k": "q8_0"}[
        match.group(1)
    ]


def _gguf(mixture: str) -> Scheme:
    base = BITS[MIXTURES[mixture]]
    return Scheme(mixture, base, base, gguf=mixture, unpacked=base < 16)


_NATIVE: Final = {"fp8": "fp8", "mxfp4": "mxfp4", "gptq": "gptq-int4", "awq": "awq", "compressed-tensors": "int8-w8a8",
                  "modelopt": "fp8", "nvfp4": "nvfp4", "float32": "f32"}  # fmt: skip
_PATTERNS: Final = (
    (r"mxfp8", "mxfp8"),
    (r"mxfp6", "mxfp6"),
    (r"w4a8|qserve", "w4a8"),
    (r"fp6", "fp6"),
    (r"int-?3\b|3-?bit", "int3"),
    (r"int-?2\b|2-?bit", "int2"),
    (r"nvfp4|^fp4\b|w4a4", "nvfp4"),
    (r"mxfp4", "mxfp4"),
    (r"gptq.*(int-?8|8-?bit)", "gptq-int8"),
    (r"gptq", "gptq-int4"),
    (r"awq", "awq"),
    (r"w4a16", "int4-w4a16"),
    (r"nf4|bnb.*4|4-?bit.*bnb", "nf4"),
    (r"int8.*w8a16|w8a16", "int8-w8a16"),
    (r"w8a8.*fp8|fp8|f8_e|float8", "fp8"),
    (r"weight[- _]?only|eetq|llm\.int8", "int8-w8a16"),
    (r"w8a8|smoothquant|int8 sq", "int8-w8a8"),
    (r"int-?8|8-?bit", "gptq-int8"),
    (r"int-?4|4-?bit|q4", "gptq-int4"),
    (r"bf16|fp16|f16|float16|bfloat16|half", "bf16"),
    (r"f32|fp32|float32|tf32", "f32"),
)
