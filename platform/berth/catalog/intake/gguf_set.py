"""GGUF as files: one, the parts of a split model, or an adapter."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from berth.catalog.facts import FACTS_FORMAT, AdapterFacts, ArtefactFacts, ModelFacts
from berth.catalog.intake.gguf import artefact_of, model_of
from berth.catalog.intake.header import Header, read_header
from berth.catalog.intake.lora import mismatch
from berth.catalog.intake.refused import Refused
from berth.catalog.intake.support import LLAMACPP, engines_for_gguf
from berth.catalog.intake.transformer import missing_shard
from berth.catalog.intake.verdict import Note, Verdict

PART: Final = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
MAX_PARTS: Final = 999


def judge_gguf(files: Mapping[str, Path], base: ModelFacts | None) -> Verdict:
    """Raises Refused."""
    names = sorted(name for name in files if name.lower().endswith(".gguf"))
    parts = _parts(names)
    headers = {name: _read(files[name], name) for name in parts}
    first = headers[parts[0]]
    _check_parts(parts, headers)
    kind = first.values.get("general.type", "model")
    unneeded = sorted(files.keys() - set(parts))
    if kind == "adapter":
        return _adapter(parts[0], first, base, unneeded)
    if kind != "model":
        raise Refused("gguf_not_a_model", "It is a projector or a vocabulary, not a whole model.", file=parts[0])
    first.tensors = [tensor for name in parts for tensor in headers[name].tensors]
    if not first.tensors:
        raise Refused("gguf_no_tensors", "It has no tensors: it is a vocabulary or a part of a model.", file=parts[0])
    try:
        model, artefact = model_of(first), artefact_of(first)
    except Refused as refused:
        refused.file = refused.file or parts[0]
        raise
    licence = first.values.get("general.license")
    return Verdict(
        format="gguf",
        quantization=artefact.quantization,
        model=model,
        artefact=artefact,
        engines=engines_for_gguf(model.architecture, parts=len(parts)),
        roles=dict.fromkeys(parts, "weights"),
        templates={"default": first.template} if first.template is not None else {},
        licence=licence[:80] if isinstance(licence, str) and licence.isprintable() else "",
        notes=_notes(model),
        unneeded=unneeded,
    )


def _read(path: Path, name: str) -> Header:
    try:
        return read_header(path)
    except Refused as refused:
        refused.file = name
        raise


def _parts(names: list[str]) -> list[str]:
    """The files in order. Raises Refused for a missing part, or several models at once."""
    matches = [PART.fullmatch(name) for name in names]
    if len(names) == 1 and matches[0] is None:
        return names
    told = {(match["stem"], match["count"]) for match in matches if match}
    if len(told) != 1 or None in matches:
        raise Refused(
            "several_models",
            f"There are {len(names)} GGUF files that are not the parts of one model. Import each on its own, or name one.",
            file=names[0],
        )
    [(stem, digits)] = told
    count = int(digits)
    if not 1 <= count <= MAX_PARTS:
        raise Refused("gguf_parts", f"A model has 1 to {MAX_PARTS} parts.", file=names[0])
    wanted = [f"{stem}-{number:05d}-of-{digits}.gguf" for number in range(1, count + 1)]
    if missing := sorted(set(wanted) - set(names)):
        raise missing_shard(missing[0], len(missing), count)
    return wanted


def _check_parts(parts: list[str], headers: Mapping[str, Header]) -> None:
    """What each says of itself agrees with its name and with the others."""
    first = headers[parts[0]]
    count = first.values.get("split.count", 0)
    if len(parts) == 1 and not (isinstance(count, int) and count > 1):
        return
    if count != len(parts):
        code = "gguf_shard" if len(parts) == 1 else "gguf_parts"
        raise Refused(
            code,
            f"It says that it is one of {count} parts, and here are {len(parts)}. Bring all of them.",
            file=parts[0],
        )
    names: set[str] = set()
    total = 0
    for number, name in enumerate(parts):
        header = headers[name]
        if header.values.get("split.no") != number or header.values.get("split.count") != count:
            raise Refused("gguf_parts", "it says that it is another part than its name says.", file=name)
        for tensor in header.tensors:
            if tensor.name in names:
                raise Refused("gguf_tensor_name", "a tensor is in two parts.", file=name)
            names.add(tensor.name)
        total += len(header.tensors)
    told = first.values.get("split.tensors.count")
    if told != total:
        raise Refused(
            "gguf_parts", f"the first part tells of {told} tensors, and all parts together have {total}.", file=parts[0]
        )


def _notes(model: ModelFacts) -> list[Note]:
    notes = []
    if model.tasks == ("generate",) and not model.has_chat_template:
        notes.append(
            Note(
                "chat_template_missing",
                "The model has no chat template, so it completes texts and cannot be chatted with.",
            )
        )
    if model.architecture not in LLAMACPP:
        notes.append(
            Note(
                "architecture_untested",
                f"{model.architecture} is not among the architectures that llama.cpp is known to load; it may refuse the model when it "
                "starts.",
                {"architecture": model.architecture},
            )
        )
    return notes


def _adapter(name: str, header: Header, base: ModelFacts | None, unneeded: list[str]) -> Verdict:
    if header.values.get("adapter.type") != "lora":
        raise Refused("adapter_kind", "It is an adapter of another kind than LoRA.", file=name)
    halves = [tensor for tensor in header.tensors if tensor.name.endswith((".lora_a", ".lora_b"))]
    ranks = [tensor.shape[1] for tensor in halves if tensor.name.endswith(".lora_a") and len(tensor.shape) == 2]
    if not ranks:
        raise Refused("adapter_empty", "it has none of the matrices that a LoRA adapter consists of.", file=name)
    blocks = [int(match[1]) + 1 for tensor in halves if (match := re.match(r"blk\.(\d{1,4})\.", tensor.name))]
    layers = max(blocks, default=0)
    if base is not None:
        if layers > base.layers:
            raise mismatch(f"it changes layer {layers}, and the base has {base.layers}")
        for tensor in halves:
            if re.search(r"attn_[qkv]\.weight\.lora_a$", tensor.name) and tensor.shape[0] != base.embedding_length:
                raise mismatch(
                    f"it is made for a model that is {tensor.shape[0]} wide, and the base is {base.embedding_length}"
                )
    alpha = header.values.get("adapter.lora.alpha", 1.0)
    size = sum(tensor.size for tensor in header.tensors)
    kind = max(header.tensors, key=lambda each: each.size).type
    return Verdict(
        format="lora-gguf",
        quantization=kind,
        model=None,
        artefact=ArtefactFacts(FACTS_FORMAT, kind, len(header.tensors), size, size, header.alignment),
        engines=[],
        roles={name: "adapter"},
        adapter=AdapterFacts(
            format=FACTS_FORMAT,
            rank=max(ranks),
            alpha=float(alpha) if isinstance(alpha, int | float) else 1.0,
            target_modules=tuple(
                sorted({tensor.name.split(".")[-3] for tensor in halves if tensor.name.count(".") >= 3})
            ),
            base_name="",
            parameters=sum(tensor.elements for tensor in header.tensors),
            layers=layers,
            engines=("llamacpp",),
        ),
        unneeded=unneeded,
    )
