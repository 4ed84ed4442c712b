"""A model in the hub's layout: config.json, safetensors in one file or in shards with an index, tokenizer, chat template."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from berth.catalog.architecture import facts_from_config
from berth.catalog.facts import FACTS_FORMAT, ArtefactFacts, ModelFacts
from berth.catalog.intake.bounded import read_json
from berth.catalog.intake.refused import Refused
from berth.catalog.intake.safetensors import Tensor, read_safetensors
from berth.catalog.intake.support import VLLM, engines_for_safetensors
from berth.catalog.intake.tokenizer import Tokens, read_tokenizer, templates_of
from berth.catalog.intake.verdict import Note, Verdict

INDEX: Final = "model.safetensors.index.json"
MAX_INDEX_BYTES: Final = 32 << 20
_SHARD: Final = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors")
_EMBEDDING: Final = re.compile(r"(embed_tokens|wte|word_embeddings|tok_embeddings)\.weight$")
_EXPERT: Final = re.compile(r"\.experts\.")
_NAMES: Final = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
_RECIPE_BYTES: Final = 64 << 10
_PACKED: Final = {"I8": "INT8 W8A8", "I32": "INT4 W4A16", "U8": "NVFP4", "F8_E4M3": "FP8"}
_FOUR_BITS: Final = {"gptq": "GPTQ-Int4", "awq": "AWQ-INT4"}

_ROLES: Final = {
    "config.json": "config", INDEX: "index", "generation_config.json": "generation", "tokenizer.json": "tokenizer",
    "tokenizer.model": "tokenizer", "tokenizer_config.json": "tokenizer", "special_tokens_map.json": "tokenizer",
    "added_tokens.json": "tokenizer", "vocab.json": "tokenizer", "vocab.txt": "tokenizer", "merges.txt": "tokenizer",
    "tekken.json": "tokenizer", "chat_template.jinja": "template", "chat_template.json": "template",
    "preprocessor_config.json": "config", "processor_config.json": "config", "video_preprocessor_config.json": "config",
    "quantize_config.json": "config", "quant_config.json": "config", "hf_quant_config.json": "config", "recipe.yaml": "config",
    "sentence_bert_config.json": "config", "modules.json": "config", "config_sentence_transformers.json": "config",
    "params.json": "config",
}  # fmt: skip
_NO_JSON: Final = {"tokenizer.json", "vocab.json", "tekken.json", INDEX}  # large ones, which are read on their own


def judge_transformer(files: Mapping[str, Path]) -> Verdict:
    """Raises Refused."""
    config = read_json(files["config.json"], "config.json")
    for name in files.keys() & _ROLES.keys():
        if name.endswith(".json") and name not in _NO_JSON:
            read_json(files[name], name)
    tensors, weights = read_weights(files)
    facts = _facts(config, tensors)
    tokens, templates = read_tokenizer(files), templates_of(files)
    quantization = _quantization(facts, tensors)
    if quantization == "INT4 W4A16" and _made_by_awq(files):
        quantization = _FOUR_BITS["awq"]
    facts = msgspec.structs.replace(facts, has_chat_template="default" in templates)
    architecture = facts.architecture
    notes = [*_notes(config, facts, tokens, templates), *_generation_notes(files, facts)]
    if architecture not in VLLM:
        notes.append(
            Note(
                "architecture_untested",
                f"{architecture} is not among the architectures that vLLM is known to serve; it may refuse the model when it starts.",
                {"architecture": architecture},
            )
        )
    roles = dict.fromkeys(weights, "weights") | {name: role for name, role in _ROLES.items() if name in files}
    roles |= {name: "tokenizer" for name in files if name.endswith(".tiktoken")}
    return Verdict(
        format="safetensors",
        quantization=quantization,
        model=facts,
        artefact=_artefact(facts, tensors, quantization, templates),
        engines=engines_for_safetensors(architecture, quantization),
        roles=roles,
        templates=templates,
        notes=notes,
        unneeded=sorted(files.keys() - roles.keys()),
    )


def read_weights(files: Mapping[str, Path]) -> tuple[dict[str, Tensor], list[str]]:
    """All tensors, and the files they are in. Raises Refused when a shard is missing or the index tells something else."""
    found = sorted(name for name in files if name.endswith(".safetensors"))
    if INDEX in files:
        return _indexed(files, found)
    if len(found) == 1:
        if _SHARD.fullmatch(found[0]):
            _complete(found)
        return read_safetensors(files[found[0]], found[0]), found
    if "model.safetensors" in found:
        return read_safetensors(files["model.safetensors"], "model.safetensors"), ["model.safetensors"]
    _complete(found)
    raise Refused(
        "index_missing",
        f"The model's weights are in {len(found)} files, and the index that says which tensor is where ({INDEX}) is missing.",
        file=INDEX,
    )


def _complete(names: list[str]) -> None:
    """Raises Refused, naming the first missing shard."""
    sets: dict[tuple[str, int], set[int]] = {}
    for name in names:
        if match := _SHARD.fullmatch(name):
            sets.setdefault((match["stem"], int(match["count"])), set()).add(int(match["number"]))
    for (stem, count), numbers in sets.items():
        if missing := sorted(set(range(1, min(count, 10_000) + 1)) - numbers):
            raise missing_shard(f"{stem}-{missing[0]:05d}-of-{count:05d}.safetensors", len(missing), count)


def missing_shard(name: str, missing: int, count: int) -> Refused:
    return Refused(
        "shard_missing",
        f"{missing} of the model's {count} parts are missing, {name} among them. Bring all of them.",
        file=name,
        missing=missing,
        count=count,
    )


def _indexed(files: Mapping[str, Path], found: list[str]) -> tuple[dict[str, Tensor], list[str]]:
    places = read_json(files[INDEX], INDEX, most=MAX_INDEX_BYTES, safe=False).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(each, str) for each in places.values()):
        raise Refused("index_broken", "it does not say in which file each tensor is. Save the model again.", file=INDEX)
    named = sorted(set(places.values()))
    for name in named:
        if "/" in name or "\\" in name or name in {".", ".."} or not name.endswith(".safetensors"):
            raise Refused("index_path", "it names something that is no safetensors file beside it.", file=INDEX)
    if missing := [name for name in named if name not in files]:
        raise missing_shard(missing[0], len(missing), len(named))
    tensors: dict[str, Tensor] = {}
    for name in named:
        for key, tensor in read_safetensors(files[name], name).items():
            if places.get(key) != name:
                raise Refused(
                    "index_mismatch",
                    "it has a tensor that the index places elsewhere or does not know: the files are not of one model.",
                    file=name,
                )
            tensors[key] = tensor
    if len(tensors) != len(places):
        raise Refused(
            "index_mismatch",
            f"the index names {len(places)} tensors, and its files have {len(tensors)}: a file is of another model.",
            file=INDEX,
        )
    return tensors, [name for name in named if name in found]


def _facts(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> ModelFacts:
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures or not re.fullmatch(r"\w{1,80}", str(architectures[0])):
        raise Refused(
            "architecture_missing", 'it does not name the model\'s architecture ("architectures").', file="config.json"
        )
    packed = any(each.dtype in {"I32", "U32", "U8", "I64"} and len(each.shape) == 2 for each in tensors.values())
    exact = None if packed else sum(each.elements for each in tensors.values() if each.dtype not in {"I64", "BOOL"})
    try:
        facts = facts_from_config(config, parameters=exact)
    except (ValueError, TypeError, KeyError, AttributeError, ZeroDivisionError, OverflowError):
        raise Refused(
            "config_incomplete",
            "it does not say the model's width, layers, heads and vocabulary in a form that is known here.",
            file="config.json",
        ) from None
    if not (
        0 < facts.layers <= 4096
        and 0 < facts.context_length <= 1 << 24
        and facts.vocabulary <= 1 << 24
        and facts.parameters > 0
    ):
        raise Refused("config_absurd", "it gives sizes that no model has.", file="config.json")
    for key, tensor in tensors.items():
        if (
            _EMBEDDING.search(key)
            and len(tensor.shape) == 2
            and tensor.shape[-1] != facts.embedding_length
            and not packed
        ):
            raise Refused(
                "config_mismatch",
                f"it says that the model is {facts.embedding_length} wide, and its embedding table is {tensor.shape[-1]}: the files are "
                "not of one model.",
                file="config.json",
            )
    return facts


def _made_by_awq(files: Mapping[str, Path]) -> bool:
    """As the recipe says that llmcompressor leaves beside what it made; the weights alone do not tell."""
    if "recipe.yaml" not in files:
        return False
    with files["recipe.yaml"].open("rb") as recipe:
        return b"AWQModifier" in recipe.read(_RECIPE_BYTES)


def _quantization(facts: ModelFacts, tensors: Mapping[str, Tensor]) -> str:
    by_type: Counter[str] = Counter()
    for tensor in tensors.values():
        by_type[tensor.dtype] += tensor.size
    most = by_type.most_common(1)[0][0]
    if (told := _FOUR_BITS.get(facts.native_quantization)) is not None:
        return told
    if most.startswith("F8"):
        return "FP8"
    if facts.native_quantization == "mxfp4":
        return "MXFP4"
    if facts.native_quantization in {"compressed-tensors", "modelopt"}:
        # Of small models the table of embeddings, which stays as it was, is larger than all that was packed.
        packed = [(size, dtype) for dtype, size in by_type.items() if dtype in _PACKED]
        return _PACKED[max(packed)[1]] if packed else most
    return most if most in {"BF16", "F16", "F32"} else _NAMES.get(facts.native_dtype, most)


def _artefact(
    facts: ModelFacts, tensors: Mapping[str, Tensor], quantization: str, templates: Mapping[str, str]
) -> ArtefactFacts:
    total = token = 0
    for key, tensor in tensors.items():
        total += tensor.size
        if _EMBEDDING.search(key) and not facts.tied_embeddings and len(tensor.shape) == 2 and tensor.shape[0]:
            token += tensor.size // tensor.shape[0]
        elif _EXPERT.search(key) and facts.experts:
            token += tensor.size * facts.experts_per_token // facts.experts
        else:
            token += tensor.size
    return ArtefactFacts(
        format=FACTS_FORMAT,
        quantization=quantization,
        tensors=len(tensors),
        tensor_bytes=total,
        token_bytes=token,
        alignment=1,
        chat_template_bytes=len(templates.get("default", "").encode()),
    )


def _notes(config: Mapping[str, Any], facts: ModelFacts, tokens: Tokens, templates: Mapping[str, str]) -> list[Note]:
    notes = [Note("assumed", text, {}) for text in facts.assumed]
    if "generate" in facts.tasks and "default" not in templates:
        notes.append(
            Note(
                "chat_template_missing",
                "The model has no chat template, so it completes texts and cannot be chatted with. Instruction-tuned models have one.",
            )
        )
    if "generate" in facts.tasks and "eos_token" not in tokens.names and config.get("eos_token_id") is None:
        notes.append(Note("eos_missing", "No token is named that ends an answer; answers may run to their limit."))
    for content, number in tokens.ids.items():
        if number >= facts.vocabulary and content in tokens.names.values():
            raise Refused(
                "token_out_of_range",
                f"a special token has the number {number}, and the model has {facts.vocabulary} tokens: the tokenizer is another model's.",
                file="tokenizer.json",
            )
    return notes


def _generation_notes(files: Mapping[str, Path], facts: ModelFacts) -> list[Note]:
    if "generation_config.json" not in files:
        return []
    ends = read_json(files["generation_config.json"], "generation_config.json").get("eos_token_id")
    numbers = ends if isinstance(ends, list) else [ends]
    if any(isinstance(each, int) and each >= facts.vocabulary for each in numbers):
        raise Refused(
            "token_out_of_range",
            "the token that ends an answer is not in the vocabulary.",
            file="generation_config.json",
        )
    return []
