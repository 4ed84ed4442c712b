"""Which kind of model a set of files is, and whether it is sound. Runs caged (`__main__.py`); does no more than read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from berth.catalog.facts import ModelFacts
from berth.catalog.intake import lora, onnx
from berth.catalog.intake.bounded import regular_size
from berth.catalog.intake.gguf_set import judge_gguf
from berth.catalog.intake.kinds import MAX_FILES, TO_SAFETENSORS, check_content, check_name
from berth.catalog.intake.refused import Refused
from berth.catalog.intake.transformer import judge_transformer
from berth.catalog.intake.verdict import Verdict


def judge(files: Mapping[str, Path], base: ModelFacts | None = None) -> Verdict:
    """Raises Refused, naming the file and the fault."""
    if not files:
        raise Refused("no_files", "There is no file in it that a model consists of.", file="The import")
    if len(files) > MAX_FILES:
        raise Refused("too_many_files", f"A model has at most {MAX_FILES} files.", file="The import", limit=MAX_FILES)
    for name, path in files.items():
        check_name(name)
        regular_size(path, name)
        check_content(path, name)
    if any(name.lower().endswith(".gguf") for name in files):
        return judge_gguf(files, base)
    if onnx.CONFIG in files:
        return onnx.judge_onnx(files)
    if lora.CONFIG in files:
        return lora.judge_lora(files, base)
    weights = [name for name in files if name.endswith(".safetensors")]
    if weights and "config.json" in files:
        return judge_transformer(files)
    raise _incomplete(weights, files)


def _incomplete(weights: list[str], files: Mapping[str, Path]) -> Refused:
    if weights:
        missing = lora.CONFIG if lora.WEIGHTS in weights else "config.json"
        return Refused(
            "config_missing",
            f"The weights are there and {missing}, which says what they are, is missing. Bring it too.",
            file=missing,
        )
    if any(name.endswith(".onnx") for name in files):
        return Refused(
            "config_missing",
            f"{onnx.CONFIG} is missing. Make the folder with onnxruntime-genai's model builder, which writes it.",
            file=onnx.CONFIG,
        )
    return Refused(
        "no_weights",
        f"There are no weights: no GGUF, safetensors or ONNX file. {TO_SAFETENSORS}",
        file="The import",
    )
