"""A folder of ONNX Runtime GenAI: genai_config.json, the graphs it names, their data files, the tokenizer.

A graph is a protocol buffer. Only its skeleton is walked: initialisers that lie outside of it must name a file beside it, and
lie within that file (threat M6). Nothing of it is loaded.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from berth.catalog.architecture import facts_from_config
from berth.catalog.facts import FACTS_FORMAT, ArtefactFacts, ModelFacts
from berth.catalog.intake.bounded import read_json, regular_size
from berth.catalog.intake.kinds import NAME_FORM
from berth.catalog.intake.refused import Refused
from berth.catalog.intake.tokenizer import read_tokenizer, templates_of
from berth.catalog.intake.verdict import Note, Verdict

CONFIG: Final = "genai_config.json"
MAX_DEPTH: Final = 12
MAX_FIELDS: Final = 2_000_000  # of all graphs together
_PROVIDERS: Final = {
    "cpu",
    "cuda",
    "dml",
    "webgpu",
    "openvino",
    "qnn",
    "nvtensorrtrtx",
    "vitisai",
    "rocm",
    "trt-rtx",
    "js",
}

# Message: the fields of it that can hold, further in, a tensor with data outside. Numbers are those of onnx.proto.
_INTO: Final[dict[str, dict[int, str]]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}


def judge_onnx(files: Mapping[str, Path]) -> Verdict:
    """Raises Refused."""
    config = read_json(files[CONFIG], CONFIG)
    graphs = _graphs(config, files)
    _check_options(config)
    data: set[str] = set()
    outside = 0
    budget = _Budget()
    for name in graphs:
        for location, offset, length in external_data(files[name], name, budget):
            _check_location(name, location, offset, length, files)
            data.add(location)
            outside += length
    size = sum(regular_size(files[name], name) for name in {*graphs, *data})
    read_tokenizer(files)
    templates = templates_of(files)
    facts = msgspec.structs.replace(_facts(config), has_chat_template="default" in templates)
    quantization = _quantization(size, facts.parameters)
    roles = dict.fromkeys(graphs, "weights") | dict.fromkeys(sorted(data), "data") | {CONFIG: "config"}
    for name in files:
        if name in {"tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
                    "vocab.json", "merges.txt"}:  # fmt: skip
            roles[name] = "tokenizer"
        elif name.startswith("chat_template."):
            roles[name] = "template"
        elif name in {"config.json", "generation_config.json"}:
            roles[name] = "config"
    notes = [Note("assumed", "Parameters are counted from the configuration; the graph does not say them.")]
    if "default" not in templates:
        notes.append(
            Note(
                "chat_template_missing",
                "The model has no chat template, so it completes texts and cannot be chatted with.",
            )
        )
    return Verdict(
        format="onnx",
        quantization=quantization,
        model=facts,
        artefact=ArtefactFacts(
            FACTS_FORMAT, quantization, 0, size, size, 1, len(templates.get("default", "").encode())
        ),
        engines=["onnxruntime"],
        roles=roles,
        templates=templates,
        notes=notes,
        unneeded=sorted(files.keys() - roles.keys()),
    )


def _graphs(config: Mapping[str, Any], files: Mapping[str, Path]) -> list[str]:
    """The graphs that the configuration names, all of which must be there."""
    model = config.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("decoder"), dict):
        raise Refused(
            "onnx_config",
            "it does not describe a decoder. Make the folder with onnxruntime-genai's model builder.",
            file=CONFIG,
        )
    named = sorted(set(_filenames(config)))
    if not named:
        raise Refused("onnx_config", "it names no graph.", file=CONFIG)
    for name in named:
        if not NAME_FORM.fullmatch(name) or not name.endswith(".onnx"):
            raise Refused("path_in_file", "it names a graph that is not a plain *.onnx beside it.", file=CONFIG)
        if name not in files:
            raise Refused("onnx_graph_missing", f"The graph {name}, which {CONFIG} names, is missing.", file=name)
    return named


def _filenames(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, part in value.items():
            if key == "filename" and isinstance(part, str):
                yield part
            else:
                yield from _filenames(part)
    elif isinstance(value, list):
        for part in value:
            yield from _filenames(part)


def _check_options(value: Any, key: str = "") -> None:
    """Session options can make the runtime load libraries and write files."""
    if isinstance(value, dict):
        for name, part in value.items():
            if name == "provider_options" and isinstance(part, list):
                for each in part:
                    told = {str(one).lower() for one in each} if isinstance(each, dict) else {""}
                    if not told <= _PROVIDERS:
                        raise Refused(
                            "onnx_options", "it asks for an execution provider that is not known here.", file=CONFIG
                        )
            _check_options(part, name)
    elif isinstance(value, list):
        for part in value:
            _check_options(part, key)
    elif isinstance(value, str) and ("/" in value or "\\" in value) and key not in {"content"}:
        raise Refused(
            "path_in_file", "it holds a path. Everything that belongs to the model lies beside it.", file=CONFIG
        )


def _check_location(graph: str, location: str, offset: int, length: int, files: Mapping[str, Path]) -> None:
    if not NAME_FORM.fullmatch(location) or location in {".", ".."}:
        raise Refused("path_in_file", "it keeps weights at a place that is not a file beside it.", file=graph)
    if location not in files:
        raise Refused(
            "onnx_data_missing", f"The file {location}, in which {graph} keeps its weights, is missing.", file=location
        )
    if offset + length > regular_size(files[location], location):
        raise Refused(
            "onnx_data_truncated", "weights reach beyond its end: it is cut short. Download it again.", file=location
        )


class _Budget:
    def __init__(self) -> None:
        self.left = MAX_FIELDS

    def take(self, name: str) -> None:
        self.left -= 1
        if self.left < 0:
            raise Refused("onnx_graph", "it has more parts than any real graph.", file=name)


def external_data(path: Path, name: str, budget: _Budget | None = None) -> Iterator[tuple[str, int, int]]:
    """Location, offset and length of each initialiser outside the graph."""
    if regular_size(path, name) < 8:
        raise Refused("onnx_graph", "it is too short to be a graph.", file=name)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        yield from _Walker(view, name, budget or _Budget()).tensors("model", 0, len(view), 0)


class _Walker:
    def __init__(self, view: mmap.mmap, name: str, budget: _Budget) -> None:
        self.view, self.name, self.budget = view, name, budget

    def broken(self) -> Refused:
        return Refused("onnx_graph", "it is no ONNX graph, or it is cut short. Download it again.", file=self.name)

    def number(self, at: int, end: int) -> tuple[int, int]:
        value = shift = 0
        while at < end and shift < 70:
            byte = self.view[at]
            value |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if not byte & 0x80:
                return value, at
        raise self.broken()

    def fields(self, at: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Number, begin and end of each field that has a length; the others are stepped over."""
        while at < end:
            self.budget.take(self.name)
            tag, at = self.number(at, end)
            field, wire = tag >> 3, tag & 7
            if wire == 0:
                _, at = self.number(at, end)
            elif wire in (1, 5):
                at += 8 if wire == 1 else 4
            elif wire == 2:
                length, at = self.number(at, end)
                if length > end - at:
                    raise self.broken()
                yield field, at, at + length
                at += length
            else:
                raise self.broken()
            if at > end:
                raise self.broken()

    def tensors(self, kind: str, at: int, end: int, depth: int) -> Iterator[tuple[str, int, int]]:
        if depth > MAX_DEPTH:
            raise Refused("onnx_graph", "it has graphs within graphs, deeper than any real one.", file=self.name)
        into = _INTO[kind]
        entries: dict[str, str] = {}
        for field, begin, stop in self.fields(at, end):
            inner = into.get(field)
            if inner == "entry":
                key, value = self.entry(begin, stop)
                entries[key] = value
            elif inner is not None:
                yield from self.tensors(inner, begin, stop, depth + 1)
        if kind == "tensor" and entries:
            yield self.place(entries)

    def entry(self, at: int, end: int) -> tuple[str, str]:
        found = {1: "", 2: ""}
        for field, begin, stop in self.fields(at, end):
            if field in found:
                found[field] = self.view[begin : min(stop, begin + 4096)].decode("utf-8", "replace")
        return found[1], found[2]

    def place(self, entries: Mapping[str, str]) -> tuple[str, int, int]:
        try:
            offset, length = (int(entries.get(key) or 0) for key in ("offset", "length"))
        except ValueError:
            raise self.broken() from None
        if offset < 0 or length < 0:
            raise self.broken()
        return entries.get("location", ""), offset, length


def _facts(config: Mapping[str, Any]) -> ModelFacts:
    model = config["model"]
    decoder = model["decoder"]
    kind = model.get("type")
    shape = {
        "architecture": kind if isinstance(kind, str) else "",
        "hidden_size": decoder.get("hidden_size"),
        "num_hidden_layers": decoder.get("num_hidden_layers"),
        "num_attention_heads": decoder.get("num_attention_heads"),
        "num_key_value_heads": decoder.get("num_key_value_heads"),
        "head_dim": decoder.get("head_size"),
        "vocab_size": model.get("vocab_size"),
        "max_position_embeddings": model.get("context_length"),
    }
    try:
        facts = facts_from_config(shape)
    except (ValueError, TypeError, ZeroDivisionError):
        raise Refused(
            "onnx_config", "it does not say the model's width, layers, heads and vocabulary.", file=CONFIG
        ) from None
    if not 0 < facts.layers <= 4096 or not 0 < facts.context_length <= 1 << 24:
        raise Refused("config_absurd", "it gives sizes that no model has.", file=CONFIG)
    return facts


def _quantization(size: int, parameters: int) -> str:
    bits = size * 8 / max(1, parameters)
    return "INT4 W4A16" if bits < 9 else "F16" if bits < 24 else "F32"
