"""Small models in the layouts of the hub, PEFT and ONNX Runtime GenAI, which can lie."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HIDDEN, LAYERS, VOCABULARY, WIDE = 16, 2, 32, 32
TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": WIDE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
    "rope_theta": 10000.0,
    "_name_or_path": "meta-llama/Llama-3.1-8B",
}
TOKENIZER: dict[str, Any] = {
    "version": "1.0",
    "added_tokens": [{"id": 2, "content": "</s>", "special": True}],
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "</s>": 2}, "merges": []},
}
TOKENIZER_CONFIG: dict[str, Any] = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "eos_token": "</s>",
    "chat_template": TEMPLATE,
}


def shapes() -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCABULARY, HIDDEN),
        "lm_head.weight": (VOCABULARY, HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        found |= {
            f"{at}.self_attn.q_proj.weight": (HIDDEN, HIDDEN),
            f"{at}.self_attn.k_proj.weight": (HIDDEN // 2, HIDDEN),
            f"{at}.self_attn.v_proj.weight": (HIDDEN // 2, HIDDEN),
            f"{at}.self_attn.o_proj.weight": (HIDDEN, HIDDEN),
            f"{at}.mlp.gate_proj.weight": (WIDE, HIDDEN),
            f"{at}.mlp.up_proj.weight": (WIDE, HIDDEN),
            f"{at}.mlp.down_proj.weight": (HIDDEN, WIDE),
            f"{at}.input_layernorm.weight": (HIDDEN,),
            f"{at}.post_attention_layernorm.weight": (HIDDEN,),
        }
    return found


def header_of(tensors: Mapping[str, tuple[int, ...]], dtype: str = "BF16", width: int = 2) -> dict[str, Any]:
    header: dict[str, Any] = {}
    at = 0
    for name, shape in tensors.items():
        size = width
        for length in shape:
            size *= length
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    return header


def packed(header: Mapping[str, Any] | bytes, data: bytes | None = None, length: int | None = None) -> bytes:
    """A safetensors file; data that fits the header unless it is given."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    if data is None:
        assert not isinstance(header, bytes)
        data = b"\0" * max(
            (each["data_offsets"][1] for key, each in header.items() if key != "__metadata__"), default=0
        )
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


Files = dict[str, bytes]


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def model(**changes: bytes | None) -> Files:
    """A sound llama. `changes`: other content by name with `__` for a dot, None for: leave it out."""
    files: Files = {
        "config.json": as_json(CONFIG),
        "tokenizer.json": as_json(TOKENIZER),
        "tokenizer_config.json": as_json(TOKENIZER_CONFIG),
        "model.safetensors": packed(header_of(shapes())),
    }
    return changed(files, changes)


def changed(files: Files, changes: Mapping[str, bytes | None]) -> Files:
    made = files | {key.replace("__", "."): value for key, value in changes.items() if value is not None}
    for key, value in changes.items():
        if value is None:
            del made[key.replace("__", ".")]
    return made


def sharded(**changes: bytes | None) -> Files:
    files = model(model__safetensors=None)
    tensors = list(shapes().items())
    parts = [dict(tensors[:10]), dict(tensors[10:])]
    places = {}
    for number, part in enumerate(parts, 1):
        name = f"model-{number:05d}-of-{len(parts):05d}.safetensors"
        files[name] = packed(header_of(part))
        places |= dict.fromkeys(part, name)
    files["model.safetensors.index.json"] = as_json({"metadata": {"total_size": 1}, "weight_map": places})
    return changed(files, changes)


def adapter(rank: int = 4, hidden: int = HIDDEN, told: int | None = None, **config: Any) -> Files:
    """A PEFT LoRA adapter for `model()`."""
    tensors: dict[str, tuple[int, ...]] = {}
    for layer in range(LAYERS):
        at = f"base_model.model.model.layers.{layer}.self_attn"
        for module in ("q_proj", "v_proj"):
            tensors[f"{at}.{module}.lora_A.weight"] = (rank, hidden)
            tensors[f"{at}.{module}.lora_B.weight"] = (hidden if module == "q_proj" else hidden // 2, rank)
    settings = {
        "peft_type": "LORA",
        "r": rank if told is None else told,
        "lora_alpha": 16,
        "target_modules": ["q_proj", "v_proj"],
        "base_model_name_or_path": "meta-llama/Llama-3.1-8B",
        "bias": "none",
    }
    return {
        "adapter_config.json": as_json(settings | config),
        "adapter_model.safetensors": packed(header_of(tensors, "F32", 4)),
    }


def field(number: int, content: bytes) -> bytes:
    """A field of a protocol buffer with a length."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def graph(location: str = "model.onnx.data", offset: int = 0, length: int = 64) -> bytes:
    """An ONNX model with one initialiser outside."""
    pairs = {"location": location, "offset": str(offset), "length": str(length)}
    entries = b"".join(field(13, field(1, key.encode()) + field(2, value.encode())) for key, value in pairs.items())
    return varint(1 << 3) + varint(8) + field(2, b"berth") + field(7, field(5, field(8, b"weight") + entries))


def onnx(**changes: bytes | None) -> Files:
    config = {
        "model": {
            "type": "llama",
            "context_length": 256,
            "vocab_size": VOCABULARY,
            "decoder": {
                "filename": "model.onnx",
                "head_size": 4,
                "hidden_size": HIDDEN,
                "num_attention_heads": 4,
                "num_hidden_layers": LAYERS,
                "num_key_value_heads": 2,
                "session_options": {"provider_options": []},
            },
        },
        "search": {"max_length": 256},
    }
    files = {
        "genai_config.json": as_json(config),
        "model.onnx": graph(),
        "model.onnx.data": b"\1" * 64,
        "tokenizer.json": as_json(TOKENIZER),
        "tokenizer_config.json": as_json(TOKENIZER_CONFIG),
    }
    return changed(files, changes)


def written(files: Files, folder: Path) -> dict[str, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    places = {}
    for name, content in files.items():
        places[name] = folder / name
        places[name].write_bytes(content)
    return places
