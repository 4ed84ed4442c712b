"""From a model's `config.json` to the facts that plans are made of. Pure: the caller reads the file.

Parameters are counted from the shapes that the architecture's own code gives its matrices. What a family does differently
(two feed-forward matrices instead of three, biases, sandwich norms) is in `_FAMILIES`; an architecture that is not there is
counted as a gated transformer and says so in `assumed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from berth.catalog.facts import FACTS_FORMAT, AttentionGroup, ModelFacts

CHUNK_WINDOW: Final = 8_192  # Llama 4's chunked attention, where the configuration does not say


class Family(msgspec.Struct, frozen=True):
    gated: bool = True
    qkv_bias: bool = False
    qk_norm: bool = False
    norms: int = 2  # per layer
    biases: bool = False  # on every matrix
    tied: bool = False  # when the configuration does not say
    positions: bool = False  # learned, one row each


_FAMILIES: Final[dict[str, Family]] = {
    "llama": Family(), "mistral": Family(), "mixtral": Family(), "qwen2": Family(qkv_bias=True), "qwen": Family(qkv_bias=True),
    "qwen2moe": Family(qkv_bias=True), "qwen3": Family(qk_norm=True), "qwen3moe": Family(qk_norm=True), "qwen3next": Family(qk_norm=True),
    "gemma": Family(tied=True), "gemma2": Family(tied=True, norms=4), "gemma3": Family(tied=True, norms=4, qk_norm=True),
    "phi": Family(gated=False, biases=True, norms=1), "phi3": Family(), "phi3small": Family(), "phimoe": Family(qkv_bias=True),
    "falcon": Family(gated=False, tied=True, norms=1), "mpt": Family(gated=False, tied=True), "gptneox": Family(gated=False, biases=True),
    "gptj": Family(gated=False, norms=1), "opt": Family(gated=False, biases=True, tied=True, positions=True),
    "bloom": Family(gated=False, biases=True, tied=True), "gpt2": Family(gated=False, biases=True, tied=True, positions=True),
    "gptbigcode": Family(gated=False, biases=True, tied=True, positions=True), "starcoder2": Family(gated=False, biases=True, tied=True),
    "nemotron": Family(gated=False), "cohere": Family(tied=True, norms=1), "cohere2": Family(tied=True, norms=1), "granite": Family(),
    "granitemoe": Family(), "stablelm": Family(), "olmo": Family(norms=0), "olmo2": Family(qk_norm=True), "baichuan": Family(),
    "internlm": Family(qkv_bias=True), "internlm2": Family(), "internlm3": Family(), "chatglm": Family(qkv_bias=True),
    "glm": Family(qkv_bias=True), "glm4": Family(norms=4, qkv_bias=True), "glm4moe": Family(qkv_bias=True, qk_norm=True),
    "deepseek": Family(), "deepseekv2": Family(), "deepseekv3": Family(), "kimik2": Family(), "gptoss": Family(qkv_bias=True),
    "llama4": Family(), "dbrx": Family(), "exaone": Family(), "solar": Family(), "minimaxm1": Family(), "smollm3": Family(tied=True),
}  # fmt: skip

_SUFFIXES: Final = ("forconditionalgeneration", "forcausallm", "lmheadmodel", "model")


def family_name(architecture: str) -> str:
    """ "Qwen2ForCausalLM" -> "qwen2"."""
    name = architecture.lower().replace("_", "").replace("-", "")
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return {"mistral3": "mistral", "llavanext": "granite", "pixtral": "mistral", "falconh1": "falcon", "rw": "falcon",
            "mimo": "qwen2", "qwen3vl": "qwen3", "qwen2vl": "qwen2", "qwen25vl": "qwen2", "gemma3text": "gemma3",
            }.get(name, name)  # fmt: skip


def facts_from_config(config: Mapping[str, Any], *, parameters: int | None = None) -> ModelFacts:
    """`parameters`: the exact count from the safetensors headers, where they were read. Raises ValueError when the shape of
    the model cannot be told."""
    text = config.get("text_config") or config.get("llm_config") or config
    outer = config if text is not config else {}
    architecture = str(
        (config.get("architectures") or [config.get("architecture", "")])[0] or config.get("model_type", "")
    )
    read = _Reader(text, outer, family_name(architecture))
    known = read.family_name in _FAMILIES
    family = _FAMILIES.get(read.family_name, Family())
    embeddings = read.vocabulary * read.hidden
    tied = bool(read.flag("tie_word_embeddings", family.tied))
    attention = read.layers * (read.attention_parameters(family) + family.norms * read.hidden)
    dense_ff, experts, shared = read.feed_forward(family)
    positions = read.number("max_position_embeddings", 0) * read.hidden if family.positions else 0
    counted = embeddings * (1 if tied else 2) + positions + attention + dense_ff + shared + experts + read.hidden
    towers = read.number("tower_parameters", 0)
    total = parameters or counted + towers
    # What the counting missed is spread over what every token passes through.
    active = total - towers - experts + (experts * read.per_token // max(1, read.experts) if read.experts else 0)
    return ModelFacts(
        format=FACTS_FORMAT,
        architecture=architecture,
        name=None,
        parameters=total,
        active_parameters=active - (0 if tied else embeddings),
        layers=read.layers,
        embedding_length=read.hidden,
        feed_forward_length=read.widest(),
        heads=read.heads,
        context_length=read.number("max_position_embeddings", 0) or read.number("n_positions", 2_048),
        vocabulary=read.vocabulary,
        attention=read.groups(),
        sliding_window=read.window(),
        recurrent=bool(read.linear_layers()),
        has_chat_template=True,
        tied_embeddings=tied,
        gated=family.gated,
        query_heads_length=read.heads * read.head,
        experts=read.experts,
        experts_per_token=read.per_token,
        expert_parameters=experts,
        expert_layers=read.expert_layers(),
        expert_feed_forward=read.expert_width(),
        tower_parameters=towers,
        state_bytes=read.state_bytes(),
        native_dtype=str(text.get("torch_dtype") or text.get("dtype") or outer.get("torch_dtype") or "bfloat16"),
        native_quantization=read.quantization(),
        tasks=_tasks(architecture),
        assumed=() if known else (f"the architecture {architecture or '(unnamed)'} is counted as a gated transformer",),
    )


def _tasks(architecture: str) -> tuple[str, ...]:
    if "SequenceClassification" in architecture:
        return ("rerank", "classify")
    return ("embed",) if architecture.endswith("Model") and "LMHead" not in architecture else ("generate",)


class _Reader:
    """The configuration's numbers under the names that families give them."""

    def __init__(self, text: Mapping[str, Any], outer: Mapping[str, Any], family: str) -> None:
        self.text, self.outer, self.family_name = text, outer, family
        self.hidden = self._first("hidden_size", "n_embd", "d_model")
        self.layers = self._first("num_hidden_layers", "n_layer", "n_layers")
        self.heads = self._first("num_attention_heads", "n_head", "n_heads")
        self.vocabulary = self._first("vocab_size", "padded_vocab_size")
        if not (self.hidden and self.layers and self.heads and self.vocabulary):
            raise ValueError("The configuration does not say the model's width, layers, heads and vocabulary.")
        self.head = self.number("head_dim", 0) or self.hidden // self.heads
        self.kv_heads = self._kv_heads()
        moe = text.get("moe") or {}
        self.experts = self._first("num_local_experts", "num_experts", "n_routed_experts", where=moe) or 0
        self.per_token = self._first("num_experts_per_tok", "moe_top_k", "moe_topk", where=moe) or 0

    def number(self, key: str, absent: int, where: Mapping[str, Any] | None = None) -> int:
        value = (self.text if where is None else where).get(key)
        return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else absent

    def flag(self, key: str, absent: bool) -> bool:
        value = self.text.get(key, self.outer.get(key))
        return absent if value is None else bool(value)

    def _first(self, *keys: str, where: Mapping[str, Any] | None = None) -> int:
        for source in (where, self.text):
            for key in keys if source else ():
                if value := self.number(key, 0, source):
                    return value
        return 0

    def _kv_heads(self) -> int:
        told = self._first("num_key_value_heads", "num_kv_heads", "multi_query_group_num", "n_head_kv")
        if told:
            return told
        one = self.text.get("multi_query")
        return 1 if one and not self.text.get("new_decoder_architecture") else self.heads

    @property
    def mla(self) -> Mapping[str, Any]:
        nested = self.text.get("mla")
        return nested if isinstance(nested, Mapping) else (self.text if self.number("kv_lora_rank", 0) else {})

    def attention_parameters(self, family: Family) -> int:
        """Of one layer."""
        h = self.hidden
        if mla := self.mla:
            rank, rope = self.number("kv_lora_rank", 0, mla), self.number("qk_rope_head_dim", 0, mla)
            nope, value = self.number("qk_nope_head_dim", 0, mla), self.number("v_head_dim", 0, mla)
            q_rank = self.number("q_lora_rank", 0, mla)
            query = self.heads * (nope + rope)
            into_query = h * q_rank + q_rank * query if q_rank else h * query
            return into_query + h * (rank + rope) + rank * self.heads * (nope + value) + self.heads * value * h
        query, kv = self.heads * self.head, self.kv_heads * self.head
        total = h * query * 2 + 2 * h * kv
        if family.qkv_bias or family.biases:
            total += query + 2 * kv
        if family.biases or self.flag("attention_bias", False):
            total += h
        return total + (2 * self.head if family.qk_norm else 0)

    def widest(self) -> int:
        return self._first("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim") or 4 * self.hidden

    def _matrices(self, family: Family, width: int) -> int:
        bias = self.hidden + width if family.biases else 0
        return (3 if family.gated else 2) * self.hidden * width + bias

    def expert_layers(self) -> int:
        if not self.experts:
            return 0
        moe = self.text.get("moe") or self.text
        first = self._first("first_k_dense_replace", where=moe)
        step = self._first("interleave_moe_layer_step", "decoder_sparse_step", where=moe) or 1
        return (self.layers - first) // step

    def expert_width(self) -> int:
        if not self.experts:
            return 0
        moe = self.text.get("moe") or {}
        return self._first("moe_intermediate_size", "ffn_hidden_size", where=moe) or self.widest()

    def feed_forward(self, family: Family) -> tuple[int, int, int]:
        """Parameters of dense blocks, of routed experts, of routers and shared experts; of all layers."""
        moe_layers = self.expert_layers()
        width = self.number("intermediate_size_mlp", 0) or self.widest()
        dense = (self.layers - moe_layers) * self._matrices(family, width)
        if not moe_layers:
            return dense, 0, 0
        moe = self.text.get("moe") or self.text
        one = self._matrices(family, self.expert_width())
        if self.family_name == "gptoss":
            one += 2 * self.expert_width() + self.hidden
        shared_width = self._first("shared_expert_intermediate_size", where=moe)
        shared_count = self._first("num_shared_experts", "n_shared_experts", where=moe)
        if self.family_name == "llama4":
            shared_count = 1
        shared = self._matrices(family, shared_width) if shared_width else shared_count * one
        routers = self.experts * self.hidden
        return dense, moe_layers * self.experts * one, moe_layers * (shared + routers)

    def window(self) -> int | None:
        if self.text.get("use_sliding_window") is False:
            return None
        if self.family_name == "llama4":
            return self.number("attention_chunk_size", CHUNK_WINDOW)
        return self.number("sliding_window", 0) or None

    def linear_layers(self) -> int:
        kinds = self._kinds()
        return kinds.get("linear_attention", 0) + kinds.get("mamba", 0)

    def _kinds(self) -> dict[str, int]:
        """Layers by kind."""
        if counted := self.text.get("layer_types_count"):
            return {str(kind): int(count) for kind, count in counted.items()}
        named = self.text.get("layer_types") or self.text.get("layers_block_type")
        if isinstance(named, list) and len(named) == self.layers:
            return {kind: named.count(kind) for kind in sorted(set(named))}
        if self.window() is None:
            return {"full_attention": self.layers}
        if every := self.number("sliding_window_pattern", 0) or _PATTERNS.get(self.family_name, 0):
            full = self.layers // every
            return {"full_attention": full, "sliding_attention": self.layers - full}
        return {"sliding_attention": self.layers}

    def groups(self) -> tuple[AttentionGroup, ...]:
        if mla := self.mla:
            kept = self.number("kv_lora_rank", 0, mla) + self.number("qk_rope_head_dim", 0, mla)
            return (AttentionGroup(self.layers, 1, kept, 0, None, latent=True),)
        groups = []
        for kind, count in self._kinds().items():
            if kind in ("linear_attention", "mamba") or not count:
                continue
            window = self.window() if kind in ("sliding_attention", "chunked_attention") else None
            groups.append(AttentionGroup(count, self.kv_heads, self.head, self.head, window))
        return tuple(groups)

    def state_bytes(self) -> int:
        """Of one sequence in the linear-attention and Mamba layers: F32 states and a short convolution's inputs."""
        layers = self.linear_layers()
        if not layers:
            return 0
        heads = self._first("linear_num_value_heads", "mamba_n_heads") or self.heads
        key = self._first("linear_key_head_dim", "mamba_d_state") or 128
        value = self._first("linear_value_head_dim", "mamba_d_head") or self.head
        return layers * heads * value * (4 * key + 2 * 3)

    def quantization(self) -> str:
        stated = (
            self.text.get("quantization_in_config")
            or self.text.get("quantization_config")
            or self.outer.get("quantization_config")
        )
        if isinstance(stated, Mapping):
            return str(stated.get("quant_method", ""))
        return str(stated or "")


_PATTERNS: Final = {"gemma2": 2, "gemma3": 6, "gptoss": 2, "cohere2": 4, "llama4": 4}
