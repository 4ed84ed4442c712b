"""A PEFT LoRA adapter: adapter_config.json and adapter_model.safetensors, held against its base where that is known."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from berth.catalog.facts import FACTS_FORMAT, AdapterFacts, ArtefactFacts, ModelFacts
from berth.catalog.intake.bounded import read_json
from berth.catalog.intake.refused import Refused
from berth.catalog.intake.safetensors import Tensor, read_safetensors
from berth.catalog.intake.support import LLAMACPP_LORA, VLLM_LORA
from berth.catalog.intake.verdict import Note, Verdict

CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"
MAX_RANK: Final = 512  # vLLM's own limit
_MODULE: Final = re.compile(r"[A-Za-z0-9_.]{1,128}")
_BASE: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")
_LAYER: Final = re.compile(r"\.(?:layers|h|blocks|block)\.(\d{1,4})\.")
_MATRIX: Final = re.compile(
    r"(?P<module>[\w]+)\.(?P<which>lora_A|lora_B|lora_embedding_A|lora_embedding_B)(?:\.\w+)?(?:\.weight)?$"
)
_FROM_HIDDEN: Final = {
    "q_proj",
    "k_proj",
    "v_proj",
    "qkv_proj",
    "query_key_value",
    "gate_proj",
    "up_proj",
    "gate_up_proj",
}
_TO_HIDDEN: Final = {"o_proj", "down_proj"}


def judge_lora(files: Mapping[str, Path], base: ModelFacts | None) -> Verdict:
    """Raises Refused."""
    config = read_json(files[CONFIG], CONFIG)
    if WEIGHTS not in files:
        raise Refused(
            "adapter_weights_missing",
            f"The adapter has its configuration but no {WEIGHTS}. Save it with PEFT's save_pretrained, which writes it.",
            file=WEIGHTS,
        )
    tensors = read_safetensors(files[WEIGHTS], WEIGHTS)
    rank, alpha = _check_config(config)
    modules, layers = _check_tensors(tensors, rank)
    notes: list[Note] = []
    if base is not None:
        _check_base(tensors, layers, base)
    facts = AdapterFacts(
        format=FACTS_FORMAT,
        rank=rank,
        alpha=alpha,
        target_modules=tuple(sorted(modules)),
        base_name=_base_name(config, notes),
        parameters=sum(each.elements for each in tensors.values()),
        layers=layers,
        engines=_engines(config, base),
    )
    if not facts.engines:
        notes.append(
            Note("adapter_needs_merging", "No engine loads this adapter beside its base; it has to be merged into it.")
        )
    roles = {CONFIG: "adapter", WEIGHTS: "adapter"}
    return Verdict(
        format="lora",
        quantization=_dtype(tensors),
        model=None,
        artefact=ArtefactFacts(
            format=FACTS_FORMAT,
            quantization=_dtype(tensors),
            tensors=len(tensors),
            tensor_bytes=sum(each.size for each in tensors.values()),
            token_bytes=sum(each.size for each in tensors.values()),
            alignment=1,
        ),
        engines=[],
        roles=roles,
        adapter=facts,
        notes=notes,
        unneeded=sorted(files.keys() - roles.keys()),
    )


def _check_config(config: Mapping[str, Any]) -> tuple[int, float]:
    if config.get("peft_type") != "LORA":
        raise Refused(
            "adapter_kind", "it describes no LoRA adapter; other kinds are not served by any engine here.", file=CONFIG
        )
    rank, alpha = config.get("r"), config.get("lora_alpha", 1)
    if not isinstance(rank, int) or isinstance(rank, bool) or not 1 <= rank <= MAX_RANK:
        raise Refused("adapter_rank", f'its rank ("r") is not between 1 and {MAX_RANK}.', file=CONFIG, limit=MAX_RANK)
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 < alpha <= 65_536:
        raise Refused("adapter_alpha", 'its scale ("lora_alpha") is no sensible number.', file=CONFIG)
    modules = config.get("target_modules")
    listed = modules if isinstance(modules, list) else [modules]
    if not listed or not all(isinstance(each, str) and len(each) <= 512 for each in listed):
        raise Refused(
            "adapter_modules", 'it does not say which parts of its base it changes ("target_modules").', file=CONFIG
        )
    if isinstance(modules, list) and not all(_MODULE.fullmatch(each) for each in modules):
        raise Refused("adapter_modules", "it names parts of its base by something that is no name.", file=CONFIG)
    return rank, float(alpha)


def _check_tensors(tensors: Mapping[str, Tensor], rank: int) -> tuple[set[str], int]:
    """The modules it changes, and how many layers its base must have at least."""
    modules: set[str] = set()
    layers = 0
    for key, tensor in tensors.items():
        if match := _LAYER.search(key):
            layers = max(layers, int(match[1]) + 1)
        matrix = _MATRIX.search(key)
        if matrix is None:
            continue
        modules.add(matrix["module"])
        if len(tensor.shape) != 2:
            raise Refused("adapter_shape", "one of its matrices does not have two dimensions.", file=WEIGHTS)
        own = tensor.shape[0] if matrix["which"].endswith("_A") else tensor.shape[1]
        if not 1 <= own <= MAX_RANK:
            raise Refused("adapter_rank", f"one of its matrices has the rank {own}.", file=WEIGHTS)
    if not modules:
        raise Refused("adapter_empty", "it has none of the matrices that a LoRA adapter consists of.", file=WEIGHTS)
    ranks = {
        tensor.shape[0]
        for key, tensor in tensors.items()
        if (match := _MATRIX.search(key)) and match["which"] == "lora_A"
    }
    if ranks and max(ranks) > rank:
        raise Refused(
            "adapter_rank",
            f"its matrices have the rank {max(ranks)}, and its configuration says {rank}: the files are not of one adapter.",
            file=WEIGHTS,
            rank=max(ranks),
            told=rank,
        )
    return modules, layers


def _check_base(tensors: Mapping[str, Tensor], layers: int, base: ModelFacts) -> None:
    if layers > base.layers:
        raise mismatch(f"it changes layer {layers}, and the base has {base.layers}")
    for key, tensor in tensors.items():
        matrix = _MATRIX.search(key)
        if matrix is None:
            continue
        if matrix["module"] in _FROM_HIDDEN and matrix["which"] == "lora_A":
            width = tensor.shape[1]
        elif matrix["module"] in _TO_HIDDEN and matrix["which"] == "lora_B":
            width = tensor.shape[0]
        else:
            continue
        if width != base.embedding_length:
            raise mismatch(f"it is made for a model that is {width} wide, and the base is {base.embedding_length}")


def mismatch(how: str) -> Refused:
    return Refused(
        "adapter_base_mismatch",
        f"it does not fit the base that was named: {how}. Name the model it was trained on.",
        file=WEIGHTS,
    )


def _base_name(config: Mapping[str, Any], notes: list[Note]) -> str:
    """For people. A path of whoever trained it says nothing here and is never opened."""
    told = config.get("base_model_name_or_path")
    if isinstance(told, str) and _BASE.fullmatch(told):
        return told
    notes.append(Note("adapter_base_unnamed", "The adapter does not say on which published model it was trained."))
    return ""


def _engines(config: Mapping[str, Any], base: ModelFacts | None) -> tuple[str, ...]:
    """vLLM takes plain LoRA only: no DoRA, no bias, no fully trained extra modules. llama.cpp needs it converted, which its engine does."""
    if config.get("use_dora") or config.get("modules_to_save") or config.get("bias", "none") != "none":
        return ()
    architecture = base.architecture if base else ""
    found = []
    if not base or architecture in VLLM_LORA:
        found.append("vllm")
    if architecture in LLAMACPP_LORA:
        found.append("llamacpp")
    return tuple(found)


def _dtype(tensors: Mapping[str, Tensor]) -> str:
    return max(tensors.values(), key=lambda each: each.size).dtype
