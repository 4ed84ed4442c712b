"""From a checked GGUF header to the facts that the planner needs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final

from berth.catalog.facts import FACTS_FORMAT, ArtefactFacts, AttentionGroup, ModelFacts
from berth.catalog.intake.header import Header, Tensor, read_header
from berth.catalog.intake.refused import Refused

MAX_LAYERS: Final = 4_096
MAX_LENGTH: Final = 1 << 24  # tokens, elements, entries: no model is near it

# general.file_type, as llama.cpp numbers its mixtures.
_FILE_TYPES: Final[dict[int, str]] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS",
    21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M",
    30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
}  # fmt: skip


def read_gguf(path: Path) -> tuple[ModelFacts, ArtefactFacts, str | None]:
    """Facts of the model, facts of the file, and its chat template. Raises Refused."""
    header = read_header(path)
    if _whole(header, "split.count", 0) > 1:
        raise Refused(
            "gguf_shard", "It is one part of a model that was split. Join the parts with llama-gguf-split --merge."
        )
    if not header.tensors:
        raise Refused("gguf_no_tensors", "It has no tensors: it is a vocabulary or a part of a model.")
    kind = header.values.get("general.type", "model")
    if kind != "model":
        raise Refused("gguf_not_a_model", "It is an adapter or a projector, not a whole model.")
    return model_of(header), artefact_of(header), header.template


# llama.cpp's numbers; 0 is none.
_POOLINGS = {1: "mean", 2: "cls", 3: "last", 4: "rank"}


def model_of(header: Header) -> ModelFacts:
    architecture = header.values.get("general.architecture")
    if not isinstance(architecture, str) or not architecture.replace("-", "").replace("_", "").isalnum():
        raise Refused("gguf_architecture", "Its header does not name an architecture.")
    layers = _positive(header, f"{architecture}.block_count", MAX_LAYERS)
    name = header.values.get("general.name")
    wide = _per_layer(header, f"{architecture}.feed_forward_length", layers, 0)
    return ModelFacts(
        format=FACTS_FORMAT,
        architecture=architecture,
        name=name if isinstance(name, str) and name.isprintable() else None,
        parameters=sum(tensor.elements for tensor in header.tensors),
        active_parameters=sum(int(tensor.elements * _share(header, tensor)) for tensor in header.tensors),
        layers=layers,
        embedding_length=_positive(header, f"{architecture}.embedding_length"),
        feed_forward_length=max(wide),
        heads=max(_per_layer(header, f"{architecture}.attention.head_count", layers, 0)),
        context_length=_positive(header, f"{architecture}.context_length"),
        vocabulary=_vocabulary(header, architecture),
        attention=_attention(header, architecture, layers),
        sliding_window=_whole(header, f"{architecture}.attention.sliding_window", 0) or None,
        recurrent=any(key.startswith((f"{architecture}.ssm.", f"{architecture}.wkv.")) for key in header.values),
        has_chat_template=header.template is not None,
        **_more(header, architecture),
    )


def _more(header: Header, architecture: str) -> dict[str, Any]:
    """What only planning on other hardware and in other formats needs."""
    names = {tensor.name for tensor in header.tensors}
    routed = [tensor for tensor in header.tensors if "_exps." in tensor.name]
    heads = _whole(header, f"{architecture}.attention.head_count", 0)
    pooling = _POOLINGS.get(_whole(header, f"{architecture}.pooling_type", 0))
    return {
        "pooling": pooling,
        "tasks": ("generate",) if pooling is None else ("rerank",) if pooling == "rank" else ("embed",),
        "tied_embeddings": "output.weight" not in names,
        "gated": not names or any("ffn_gate" in name for name in names),
        "query_heads_length": heads * _whole(header, f"{architecture}.attention.key_length", 0),
        "experts": _whole(header, f"{architecture}.expert_count", 0) if routed else 0,
        "experts_per_token": _whole(header, f"{architecture}.expert_used_count", 0) if routed else 0,
        "expert_parameters": sum(tensor.elements for tensor in routed),
        "expert_layers": len({tensor.name.split(".")[1] for tensor in routed}),
        "expert_feed_forward": _whole(header, f"{architecture}.expert_feed_forward_length", 0) if routed else 0,
    }


def _attention(header: Header, architecture: str, layers: int) -> tuple[AttentionGroup, ...]:
    """Layers by the size of their cache.

    A window counts only for layers that the header itself marks as sliding: a cache planned too large wastes memory,
    one planned too small kills the replica.
    """
    prefix = f"{architecture}.attention"
    heads = _per_layer(header, f"{prefix}.head_count", layers, 0)
    kv_heads = _per_layer(header, f"{prefix}.head_count_kv", layers, None) or heads
    default = _positive(header, f"{architecture}.embedding_length") // max(1, *heads) if max(heads) else 0
    key = _whole(header, f"{prefix}.key_length", default)
    value = _whole(header, f"{prefix}.value_length", default)
    latent = _whole(header, f"{prefix}.kv_lora_rank", 0)
    if latent and set(kv_heads) == {1}:  # one compressed vector for all heads, which is all that is kept
        return (AttentionGroup(layers, 1, key, 0, None, latent=True),)
    window = _whole(header, f"{prefix}.sliding_window", 0) or None
    slides = header.arrays.get(f"{prefix}.sliding_window_pattern", ())
    marked = len(slides) == layers and all(isinstance(mark, bool) for mark in slides)
    groups: Counter[AttentionGroup] = Counter()
    for layer in range(layers):
        if kv_heads[layer]:
            own_window = window if marked and slides[layer] else None
            groups[AttentionGroup(0, kv_heads[layer], key, value, own_window)] += 1
    return tuple(
        AttentionGroup(count, group.kv_heads, group.key_length, group.value_length, group.window)
        for group, count in groups.items()
    )


def artefact_of(header: Header) -> ArtefactFacts:
    file_type = _whole(header, "general.file_type", -1)
    by_type: Counter[str] = Counter()
    for tensor in header.tensors:
        by_type[tensor.type] += tensor.size
    return ArtefactFacts(
        format=FACTS_FORMAT,
        quantization=_FILE_TYPES.get(file_type) or by_type.most_common(1)[0][0],
        tensors=len(header.tensors),
        tensor_bytes=sum(tensor.size for tensor in header.tensors),
        token_bytes=sum(int(tensor.size * _share(header, tensor)) for tensor in header.tensors),
        alignment=header.alignment,
        chat_template_bytes=len((header.template or "").encode()),
    )


def _share(header: Header, tensor: Tensor) -> float:
    """How much of a tensor one token needs: one row of the embedding table, the experts in use, else all."""
    names = {other.name for other in header.tensors} if tensor.name == "token_embd.weight" else set()
    if tensor.name == "token_embd.weight" and "output.weight" in names:
        return 1 / tensor.shape[-1]
    if "_exps." in tensor.name:
        architecture = header.values.get("general.architecture")
        count = _whole(header, f"{architecture}.expert_count", 0)
        used = _whole(header, f"{architecture}.expert_used_count", 0)
        return used / count if 0 < used <= count else 1.0
    return 1.0


def _vocabulary(header: Header, architecture: str) -> int:
    told = header.lengths.get("tokenizer.ggml.tokens", 0)
    return told or _positive(header, f"{architecture}.vocab_size")


def _whole(header: Header, key: str, absent: int) -> int:
    value = header.values.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_LENGTH else absent


def _positive(header: Header, key: str, most: int = MAX_LENGTH) -> int:
    value = _whole(header, key, 0)
    if not 0 < value <= most:
        raise Refused("gguf_fact_missing", f"Its header has no sensible {key}.", value=key)
    return value


def _per_layer(header: Header, key: str, layers: int, absent: int | None) -> list[int]:
    """One number for each layer: headers have either one for all or an array. Empty when there is neither and `absent` is None."""
    array = header.arrays.get(key)
    if array is not None:
        if len(array) != layers or not all(type(item) is int and 0 <= item <= MAX_LENGTH for item in array):
            raise Refused(
                "gguf_fact_missing", f"Its header's {key} does not have one sensible number for each layer.", value=key
            )
        return [int(item) for item in array]
    value = _whole(header, key, -1 if absent is None else absent)
    return [] if value < 0 else [value] * layers
