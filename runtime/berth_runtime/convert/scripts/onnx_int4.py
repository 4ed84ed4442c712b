"""A Hugging Face folder to an ONNX folder with 4-bit weights that keep what the model knows.

The library's builder makes the graph in 32 bits; the weights are rounded here. Each block of 32 gets the scale and zero that lose least
of what a neutral text sends through its inputs. The result is held against the 32 bits on a part of the text that is kept apart for that,
and while it is further away than `--divergence` (or agrees less, or is more surprised), the matrices that lose most get 8 bits, an eighth
of all weights more each time.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnx_nbits import Packed, gather_nodes, matmul_node, rounded
from transformers import AutoTokenizer

_WINDOW = 256  # tokens read in one go
_HELD_OUT = 4  # every so many windows one is kept apart to measure with
_STEPS = (0.0, 0.125, 0.25, 0.375, 0.5, 0.75, 1.0)  # share of the weights that get 8 bits
_NOT_TAKEN = ("model.onnx", "model.onnx.data", "shown.onnx")


@dataclass
class Matrix:
    """A constant matrix that something is multiplied with."""

    node: Any
    weight: np.ndarray  # (rows of the input, columns of the output), 32 bits
    energy: np.ndarray  # mean square of each input
    packed: Packed
    tied: bool  # the table of embeddings, too

    @property
    def loss(self) -> float:
        """Part of the output's energy that 4 bits lose, as far as the inputs are independent."""
        lost: float = self.packed.error / max(1e-30, float((self.energy[:, None] * self.weight**2).sum()))
        return lost


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--source", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--work", required=True, type=Path, help="a folder for the 32 bits; removed in the end")
    parser.add_argument("--text", required=True, type=Path)
    parser.add_argument("--divergence", required=True, type=float, help="nats a token, at most")
    parser.add_argument("--perplexity", required=True, type=float, help="0.15: 15 %% worse at most")
    parser.add_argument("--agreement", required=True, type=float, help="share of the same likeliest tokens, at least")
    given = parser.parse_args()
    exact = given.work / "exact"
    _build(given.source, exact, given.work / "cache")
    tokenizer = AutoTokenizer.from_pretrained(given.source, local_files_only=True, trust_remote_code=False)
    tokens = tokenizer(given.text.read_text(encoding="utf-8"), add_special_tokens=False)["input_ids"]
    seen, held = _parted(tokens)
    model = onnx.load(str(exact / "model.onnx"))
    matrices = _matrices(model, exact / "model.onnx", seen)
    reference = list(_logits(exact / "model.onnx", held))
    given.out.mkdir(parents=True)
    for file in exact.iterdir():
        if file.name not in _NOT_TAKEN:
            shutil.copyfile(file, given.out / file.name)
    ranked = sorted((each for each in matrices if not each.tied), key=lambda each: -each.loss)
    protected: list[Matrix] = []
    for share in _STEPS:
        protected = _first(ranked, share)
        for each in protected:
            if each.packed.bits == 4:
                each.packed = rounded(each.weight, each.energy, 8)
        _write(model, matrices, given.out / "model.onnx")
        if _good(given, reference, list(_logits(given.out / "model.onnx", held)), held):
            break
    shutil.rmtree(given.work, ignore_errors=True)
    (given.out / "notes.json").write_text(json.dumps({"fallbacks": _told(matrices)}))


def _build(source: Path, out: Path, cache: Path) -> None:
    command = [sys.executable, "-B", "-m", "onnxruntime_genai.models.builder", "-i", str(source), "-o", str(out)]
    subprocess.run([*command, "-e", "cpu", "-p", "fp32", "-c", str(cache)], check=True)


def _parted(tokens: list[int]) -> tuple[list[list[int]], list[list[int]]]:
    """Windows to calibrate with, and windows to measure with."""
    windows = [tokens[start : start + _WINDOW] for start in range(0, len(tokens) - 1, _WINDOW)]
    held = windows[_HELD_OUT - 1 :: _HELD_OUT] or windows
    return [each for number, each in enumerate(windows) if number % _HELD_OUT != _HELD_OUT - 1], held


def _matrices(model: Any, file: Path, windows: list[list[int]]) -> list[Matrix]:
    """All of them in 4 bits (8, if it is also the table of embeddings)."""
    constants = {each.name: each for each in model.graph.initializer}
    nodes = [
        node
        for node in model.graph.node
        if node.op_type == "MatMul" and node.input[1] in constants and len(constants[node.input[1]].dims) == 2
    ]
    tables = {node.input[0] for node in model.graph.node if node.op_type == "Transpose"}
    energies = _energies(file, sorted({node.input[0] for node in nodes}), windows)
    found = []
    for node in nodes:
        weight, energy = onnx.numpy_helper.to_array(constants[node.input[1]]), energies[node.input[0]]
        tied = node.input[1] in tables and _fits(weight.shape[0])
        found.append(Matrix(node, weight, energy, rounded(weight, energy, 8 if tied else 4), tied))
    return found


def _energies(file: Path, names: list[str], windows: list[list[int]]) -> dict[str, np.ndarray]:
    """Mean square of each column of the named values; a hundredth of their mean is added, so that what this text leaves
    silent still counts."""
    shown = onnx.load(str(file), load_external_data=False)
    shown.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names)
    beside = file.with_name("shown.onnx")
    onnx.save_model(shown, str(beside))
    sums: dict[str, np.ndarray] = {}
    session = _session(beside)
    for window in windows:
        values = session.run(names, _inputs(session, window))
        for name, value in zip(names, values, strict=True):
            flat = value.reshape(-1, value.shape[-1]).astype(np.float64)
            sums[name] = sums.get(name, 0.0) + (flat**2).sum(axis=0)
    means = {name: total / sum(map(len, windows)) for name, total in sums.items()}
    return {name: (mean + mean.mean() / 100).astype(np.float32) for name, mean in means.items()}


def _logits(file: Path, windows: list[list[int]]) -> Iterator[torch.Tensor]:
    session = _session(file)
    for window in windows:
        (logits,) = session.run(["logits"], _inputs(session, window))
        yield torch.log_softmax(torch.from_numpy(logits[0]), dim=-1)


def _session(file: Path) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = torch.get_num_threads()
    return ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def _inputs(session: Any, window: list[int]) -> dict[str, np.ndarray]:
    """One sequence with nothing before it."""
    whole = {
        "input_ids": np.array([window], dtype=np.int64),
        "attention_mask": np.ones((1, len(window)), dtype=np.int64),
        "position_ids": np.arange(len(window), dtype=np.int64)[None],
    }
    fed = {}
    for asked in session.get_inputs():
        if asked.name in whole:
            fed[asked.name] = whole[asked.name]
        elif asked.name.startswith("past_key_values."):
            heads, width = asked.shape[1], asked.shape[3]
            fed[asked.name] = np.zeros((1, heads, 0, width if isinstance(width, int) else _width(session)), np.float32)
        else:
            raise SystemExit(f"GraphUnknown: the graph asks for {asked.name}")
    return fed


def _width(session: Any) -> int:
    """Of a head: the builder leaves it out of the inputs' shapes, and writes it beside the graph."""
    config = json.loads((Path(session._model_path).parent / "genai_config.json").read_text())
    return int(config["model"]["decoder"]["head_size"])


def _good(given: Any, reference: list[torch.Tensor], measured: list[torch.Tensor], windows: list[list[int]]) -> bool:
    one, other = torch.cat([each[:-1] for each in reference]), torch.cat([each[:-1] for each in measured])
    actual = torch.tensor([token for window in windows for token in window[1:]])[:, None]
    divergence = float((one.exp() * (one - other)).sum(-1).mean())
    surprise = float((one.gather(1, actual) - other.gather(1, actual)).mean())
    agreement = float((one.argmax(-1) == other.argmax(-1)).float().mean())
    worse = float(np.exp(surprise)) - 1
    return not (divergence > given.divergence or worse > given.perplexity or agreement < given.agreement)


def _first(ranked: list[Matrix], share: float) -> list[Matrix]:
    """Those that lose most, up to this share of all their weights."""
    most, taken, found = share * sum(each.weight.size for each in ranked), 0, []
    for each in ranked:
        if taken + each.weight.size > most + 1:
            break
        taken += each.weight.size
        found.append(each)
    return found


def _write(model: Any, matrices: list[Matrix], file: Path) -> None:
    """The graph with packed weights in the place of the plain ones."""
    by_name = {each.node.name: each for each in matrices}
    written = onnx.ModelProto()
    written.ir_version = model.ir_version
    written.opset_import.extend(model.opset_import)
    replaced = {each.node.input[1] for each in matrices}
    constants = {each.name: each for each in model.graph.initializer}
    transposed = {node.output[0]: node for node in model.graph.node if node.op_type == "Transpose"}
    tied = {each.node.input[1]: each for each in matrices if each.tied}
    graph = written.graph
    graph.name = model.graph.name
    graph.input.extend(model.graph.input)
    graph.output.extend(model.graph.output)
    graph.value_info.extend(model.graph.value_info)
    for node in model.graph.node:
        if node.name in by_name:
            each = by_name[node.name]
            graph.initializer.extend(each.packed.tensors(node.input[1]))
            graph.node.append(matmul_node(node, each.packed))
        elif node.op_type == "Transpose" and node.input[0] in tied:
            continue
        elif node.op_type == "Gather" and (before := transposed.get(node.input[0])) and before.input[0] in tied:
            _add_table(graph, node, before.input[0], tied[before.input[0]].packed)
        elif node.op_type == "Gather" and _is_table(constants.get(node.input[0])):
            table = onnx.numpy_helper.to_array(constants[node.input[0]]).T
            packed = rounded(table, np.ones(table.shape[0], np.float32), 8)
            graph.initializer.extend(packed.tensors(node.input[0]))
            replaced.add(node.input[0])
            _add_table(graph, node, node.input[0], packed)
        else:
            graph.node.append(node)
    # What is still needed as it was (a table that does not fit into blocks) stays.
    read = {name for node in graph.node for name in node.input}
    graph.initializer.extend(each for each in model.graph.initializer if each.name not in replaced or each.name in read)
    (file.parent / f"{file.name}.data").unlink(missing_ok=True)
    onnx.save_model(written, str(file), save_as_external_data=True, location=f"{file.name}.data", size_threshold=1024)


def _add_table(graph: Any, node: Any, name: str, packed: Packed) -> None:
    graph.initializer.append(
        onnx.numpy_helper.from_array(np.array([packed.columns, packed.rows], dtype=np.int64), f"{name}_table_shape")
    )
    graph.node.extend(gather_nodes(node, name, packed))


def _is_table(constant: Any) -> bool:
    float32 = onnx.TensorProto.FLOAT
    return (
        constant is not None and len(constant.dims) == 2 and constant.data_type == float32 and _fits(constant.dims[1])
    )


def _fits(row: int) -> bool:
    """Whether a table with rows of that length can be kept in blocks."""
    return row % 32 == 0


def _told(matrices: list[Matrix]) -> list[dict[str, Any]]:
    """Those with 8 bits, by the length of their rows."""
    rows: dict[int, list[str]] = {}
    for each in matrices:
        if each.packed.bits == 8:
            rows.setdefault(each.weight.shape[0], []).append(each.node.name)
    return [
        {"wanted": "4 bits", "given": "8 bits", "row": row, "tensors": len(names), "examples": names[:3]}
        for row, names in sorted(rows.items())
    ]


if __name__ == "__main__":
    main()
