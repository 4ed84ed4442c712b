"""Which of a repository's files a model consists of: everything an engine needs, and nothing else. Pure."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from typing import Final

from berth.catalog.intake.kinds import NAME_FORM, TO_SAFETENSORS
from berth.catalog.sources.source import RemoteFile, SourceRefused

_SHARD: Final = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<count>\d{5})\.(?:gguf|safetensors)")
_SIDE_NAMES: Final = re.compile(
    r"(?:config|generation_config|tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab|chat_template|preprocessor_config"
    r"|processor_config|video_preprocessor_config|quantize_config|quant_config|hf_quant_config|modules|sentence_bert_config"
    r"|config_sentence_transformers|adapter_config|genai_config|params|tekken|model\.safetensors\.index)\.json"
    r"|merges\.txt|vocab\.txt|tokenizer\.model|chat_template\.jinja|recipe\.yaml|.+\.tiktoken"
)
_PICKLES: Final = (".bin", ".pt", ".pth", ".ckpt")
MOST_SHOWN: Final = 40


def choose(files: Sequence[RemoteFile], pattern: str = "") -> list[RemoteFile]:
    """`pattern`: of names, as in `*Q4_K_M*` or `folder/*`. Raises SourceRefused, with the choices where there are several models."""
    folder, _, glob = pattern.rpartition("/")
    here = [each for each in files if each.location.rpartition("/")[0] == folder]
    wanted = [each for each in here if not glob or fnmatch.fnmatchcase(each.name, glob)]
    ggufs = [each for each in wanted if each.name.lower().endswith(".gguf")]
    tensors = [each for each in wanted if each.name.endswith(".safetensors")]
    graphs = [each for each in wanted if each.name.endswith((".onnx", ".onnx.data", ".onnx_data"))]
    if ggufs and not (tensors and not glob):
        return _checked(_one_gguf(ggufs))
    sides = [each for each in here if _SIDE_NAMES.fullmatch(each.name)]
    names = {each.name for each in here}
    if "genai_config.json" in names and graphs:
        return _checked([*graphs, *sides])
    if tensors:
        if "adapter_config.json" in names and "config.json" not in names:
            return _checked(
                [each for each in here if each.name in {"adapter_config.json", "adapter_model.safetensors"}]
            )
        if "model.safetensors.index.json" in names:
            tensors = [each for each in tensors if _SHARD.fullmatch(each.name)]
        elif "model.safetensors" in names:
            tensors = [each for each in tensors if each.name == "model.safetensors"]
        return _checked([*tensors, *sides])
    raise _nothing(files, here)


def _one_gguf(files: list[RemoteFile]) -> list[RemoteFile]:
    """One file, or all parts of one model."""
    models: dict[str, list[RemoteFile]] = {}
    for each in files:
        shard = _SHARD.fullmatch(each.name)
        models.setdefault(f"{shard['stem']}-*.gguf" if shard else each.name, []).append(each)
    if len(models) == 1:
        return files
    choices = sorted(models)
    raise SourceRefused(
        "several_models",
        f"There are {len(choices)} GGUF models there. Say which one, for example {choices[0]}.",
        field="files",
        params={"choices": choices[:MOST_SHOWN], "count": len(choices)},
    )


def _checked(files: list[RemoteFile]) -> list[RemoteFile]:
    for each in files:
        if not NAME_FORM.fullmatch(each.name):
            raise SourceRefused(
                "file_name", "A file there has a name that is not a plain one.", params={"count": len(files)}
            )
    return sorted(files, key=lambda each: each.name)


def _nothing(files: Sequence[RemoteFile], here: Sequence[RemoteFile]) -> SourceRefused:
    if any(each.name.endswith(_PICKLES) for each in here):
        return SourceRefused(
            "pickle", f"Its weights are only there as pickles, which run code when they are loaded. {TO_SAFETENSORS}"
        )
    folders = sorted({each.location.rpartition("/")[0] for each in files if "/" in each.location})[:MOST_SHOWN]
    return SourceRefused(
        "no_weights",
        "There is no model there: no GGUF, safetensors or ONNX file"
        + (" in this folder. Name one of its folders, as in folder/*." if folders else "."),
        field="files",
        params={"folders": folders},
    )
