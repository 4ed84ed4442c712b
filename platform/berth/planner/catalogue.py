"""Public models by name: their shapes are data, so that a plan or a measurement can name a model without its files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import msgspec

from berth.catalog.facts import ModelFacts
from berth.planner.architecture import facts_from_config
from berth.planner.tables import rows

_DROPPED: Final = re.compile(
    r"-(instruct|chat|it|hf|base|text|bnb|awq|gptq|gguf|fp8|int8|int4|nvfp4|mxfp4|fp4|bf16|fp16|dynamic|quantized|quant|w8a8|w4a16"
    r"|w8a16|\d{4}|latest|preview|thinking|q\d\w*|autofp8|kv|4bit|8bit|int\d|channel|block|v0\.1|v0\.2)$"
)
_ORGANISATION: Final = re.compile(r"^.*/")
_LLAMA: Final = re.compile(r"^llama(?:-?(\d(?:\.\d)?)-)?-?(\d+(?:\.\d+)?b)(?!-vision)")


def normalised(name: str) -> str:
    """ "meta-llama/Llama-3.1-8B-Instruct" -> "llama-3.1-8b"."""
    return _spellings(name)[-1]


def _spellings(name: str) -> list[str]:
    """From the name as it is, without its organisation, to what is left when everything that does not change the shape is gone."""
    text = _ORGANISATION.sub("", name.strip().lower()).replace("quantized.", "")
    text = re.sub(r"[\s_:]+", "-", text).removeprefix("meta-").removeprefix("nvidia-")
    text = re.sub(r"[()]", "", text)
    text = re.sub(r"^(qwen|smollm|starcoder|baichuan|internlm)-(\d(?:\.\d)?)-", r"\1\2-", text)
    found = [text]
    while (shorter := _DROPPED.sub("", found[-1])) != found[-1]:
        found.append(shorter)
    if match := _LLAMA.match(found[-1]):
        version = f"{match.group(1)}-" if match.group(1) else ""
        found.append(f"llama-{version}{match.group(2)}")
    return found


@cache
def _configs() -> Mapping[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}
    for row in rows("models.csv", delimiter=";"):
        config = {
            "architecture": row["architecture"],
            "hidden_size": int(row["hidden"]),
            "num_hidden_layers": int(row["layers"]),
            "num_attention_heads": int(row["heads"]),
            "num_key_value_heads": int(row["kv"]),
            "head_dim": int(row["head"]),
            "intermediate_size": int(row["ffn"]),
            "vocab_size": int(row["vocab"]),
            "tie_word_embeddings": row["tied"] == "1",
            "max_position_embeddings": int(row["context"]),
            **json.loads(row["extra"]),
        }
        for name in (row["key"], *filter(None, row["also"].split("|"))):
            found[name] = config
    return found


def known_models() -> tuple[str, ...]:
    return tuple(_configs())


@cache
def model_by_name(name: str) -> ModelFacts | None:
    """None: no model of this name is known."""
    for spelling in _spellings(name):
        if config := _configs().get(spelling):
            return facts_from_config(config)
    return None


@cache
def model_by_size(billions: float, layout: str) -> ModelFacts:
    """The usual shape of a model of this size, where only the size is known. `layout`: "dense MHA" or anything else."""
    for width, layers in _SHAPES:
        facts = facts_from_config(_shape(width, layers, mha="mha" in layout.lower()))
        if facts.parameters >= billions * 1e9:
            break
    scale = billions * 1e9 / facts.parameters
    sized = msgspec.structs.replace(
        facts,
        parameters=int(facts.parameters * scale),
        active_parameters=int(facts.active_parameters * scale),
        assumed=(f"only the size is known ({billions:g} billion): the usual shape of that size is assumed",),
    )
    return _with_experts(sized, layout) if "moe" in layout.lower() else sized


USUAL_EXPERTS, USUAL_CHOSEN, USUAL_ACTIVE = 128, 8, 0.125


def _with_experts(dense: ModelFacts, layout: str) -> ModelFacts:
    """Total = shared + routed and active = shared + routed x chosen / experts, solved for what is routed. `layout`: "MoE 22B active"."""
    told = re.search(r"(\d+(?:\.\d+)?)\s*B active", layout)
    active = float(told.group(1)) * 1e9 if told else dense.parameters * USUAL_ACTIVE
    routed = (dense.parameters - active) / (1.0 - USUAL_CHOSEN / USUAL_EXPERTS)
    routed = max(0.0, min(routed, 0.97 * dense.parameters))
    return msgspec.structs.replace(
        dense,
        active_parameters=int(active),
        experts=USUAL_EXPERTS,
        experts_per_token=USUAL_CHOSEN,
        expert_parameters=int(routed),
        expert_layers=dense.layers,
        expert_feed_forward=max(256, dense.embedding_length // 4),
        assumed=(*dense.assumed, f"{USUAL_CHOSEN} of {USUAL_EXPERTS} experts a token are assumed"),
    )


_SHAPES: Final = (
    (1024, 16), (2048, 16), (2560, 28), (3072, 28), (4096, 32), (5120, 40), (5120, 64), (8192, 48), (8192, 80), (12288, 88),
    (16384, 126),
)  # fmt: skip


def _shape(width: int, layers: int, *, mha: bool) -> dict[str, Any]:
    heads = width // 128
    return {
        "architecture": "LlamaForCausalLM",
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads if mha else min(8, heads),
        "intermediate_size": int(3.5 * width) // 256 * 256,
        "vocab_size": 128_256,
        "tie_word_embeddings": width < 4096,
        "max_position_embeddings": 32_768,
    }
