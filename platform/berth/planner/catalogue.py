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
    r"|w8a16|\d\d-\d{4}|\d{4}|latest|preview|thinking|q\d\w*|autofp8|kv|4bit|8bit|int\d|channel|block|v\d(?:\.\d)?|qat|mlx|ggml|exl2|exl3|marlin"
    r"|unsloth|turbo|exp|sft|dpo|rlhf|bitsandbytes|onnx|\d+k|exp|experimental|beta|alpha|full|pretrained|f16|f32|float16|original"
    r"|iq\d\w*|ud|nf4|inst|instruction|tuned|model|weights|\d+bpw|eagle\d?|medusa)$"
)
_ORGANISATION: Final = re.compile(r"^.*/")
_VENDOR: Final = re.compile(
    r"^(?:meta|nvidia|google|microsoft|mistralai|mistral-ai|openai|ibm|ibm-granite|thebloke|neuralmagic|redhatai|alibaba|tiiuae"
    r"|eleutherai|facebook|bigscience|01-ai|lmsys|databricks|deepseek-ai|unsloth|huggingfacetb|cohere|cohereforai|c4ai|thudm|zai)-"
)
_LLAMA: Final = re.compile(r"^llama(?:-?(\d(?:\.\d)?)-)?-?(\d+(?:\.\d+)?b)(?!-vision)")
_SIZED: Final = re.compile(r"(?:^|-)(?:\d+x)?\d+(?:\.\d+)?[bm](?:-|$)")


def normalised(name: str) -> str:
    """ "meta-llama/Llama-3.1-8B-Instruct" -> "llama-3.1-8b"."""
    return _spellings(name)[-1]


@cache
def _spellings(name: str) -> tuple[str, ...]:
    """From the name as it is, without its organisation, to what is left when everything that does not change the shape is gone."""
    text = _ORGANISATION.sub("", name.strip().lower()).replace("quantized.", "").removesuffix(".gguf")
    text = re.sub(r"[\s_:()\[\],]+", "-", text).strip("-")
    text = re.sub(r"-{2,}", "-", text)
    text = _VENDOR.sub("", text)
    text = re.sub(r"^(qwen|smollm|starcoder|baichuan|internlm)-(\d(?:\.\d)?)-", r"\1\2-", text)
    text = re.sub(r"^internlm(\d)-(\d)-", r"internlm\1.\2-", text)
    text = re.sub(r"^(llama|gemma|phi|mixtral|mistral|falcon|yi|opt|gptj|gpt-neox|codellama)(?=\d)", r"\1-", text)
    found = [text]
    # The same words in the middle: "mistral-7b-instruct-v0.3".
    shorter = re.sub(r"-(?:instruct|chat|it|hf|base|text|inst)(?=-)", "", text)
    if shorter != text:
        found.append(shorter)
    while (shorter := _DROPPED.sub("", found[-1])) != found[-1]:
        found.append(shorter)
    bare = re.sub(r"-(?:\d{4}|coder|math|embedding|reranker|guard|prover)(?=-)", "", found[-1])
    if bare not in found:
        found.append(bare)
    if match := _LLAMA.match(found[-1]):
        version = f"{match.group(1)}-" if match.group(1) else ""
        found.append(f"llama-{version}{match.group(2)}")
    return tuple(found)


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
def config_by_name(name: str) -> Mapping[str, Any] | None:
    """None: no model of this name is known."""
    for spelling in _spellings(name):
        if config := _configs().get(spelling):
            return config
    # A tune of a known model often has its whole name within its own: "dolphin-2.5-mixtral-8x7b".
    for spelling in _spellings(name):
        inside = [known for known in _configs() if _SIZED.search(known) and f"-{known}-" in f"-{spelling}-"]
        if inside:
            return _configs()[max(inside, key=lambda known: (len(known), known))]
    return None


@cache
def model_by_name(name: str) -> ModelFacts | None:
    """None: no model of this name is known."""
    config = config_by_name(name)
    return None if config is None else facts_from_config(config)


def size_in_name(name: str) -> tuple[float, str] | None:
    """Billions of parameters, and what the name says of experts: "Ernie-4.5-21B-A3B" -> (21, "MoE 3B active")."""
    text = re.sub(r"[\s_:/]+", "-", name.lower())
    active = re.search(r"-a(\d+(?:\.\d+)?)b\b", text)
    mixed = re.search(r"(?:^|-)(\d+)x(\d+(?:\.\d+)?)b\b", text)
    plain = re.search(r"(?:^|-)(\d+(?:\.\d+)?)([bm])(?:-|$)", text)
    if mixed:  # attention and embeddings are shared, so a mixture has less than its parts
        count, each = int(mixed.group(1)), float(mixed.group(2))
        return 0.83 * count * each, f"MoE {2 * 0.9 * each:g}B active"
    if plain is None:
        return None
    billions = float(plain.group(1)) / (1.0 if plain.group(2) == "b" else 1000.0)
    return billions, f"MoE {active.group(1)}B active" if active else ""


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
    (512, 8), (768, 12), (1024, 16), (2048, 16), (2560, 28), (3072, 28), (4096, 32), (5120, 40), (5120, 64), (8192, 48), (8192, 80),
    (12288, 88), (16384, 126),
)  # fmt: skip


def usual_shape(billions: float | None = None, *, width: int | None = None) -> dict[str, Any]:
    """As a configuration: the smallest usual shape of at least this size or width."""
    for hidden, layers in _SHAPES:
        shape = _shape(hidden, layers, mha=False)
        if (width is not None and hidden >= width) or (
            billions is not None and facts_from_config(shape).parameters >= billions * 1e9
        ):
            break
    if width is not None:
        shape = _shape(width, shape["num_hidden_layers"], mha=False)
    return shape


def _shape(width: int, layers: int, *, mha: bool) -> dict[str, Any]:
    heads = max(1, width // (128 if width >= 1024 else 64))
    return {
        "architecture": "LlamaForCausalLM",
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads if mha else min(8, heads),
        "intermediate_size": int(3.5 * width) // 256 * 256,
        "vocab_size": 128_256 if width >= 1024 else 50_304,
        "tie_word_embeddings": width < 4096,
        "max_position_embeddings": 32_768,
    }
