"""Weights in blocks of 4 or 8 bits, as ONNX Runtime's MatMulNBits and GatherBlockQuantized read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch

_CHUNK = 1 << 22  # weights rounded at once
# How much of a block's span the numbers cover: a little less gives the many small weights finer steps.
_SPANS = (1.0, 0.97, 0.94, 0.91, 0.88, 0.85, 0.81, 0.77)
_INT8_ACTIVATIONS = 4  # the fast kernels for processors


@dataclass
class Packed:
    """A matrix of `rows` (inputs) by `columns` (outputs)."""

    rows: int
    columns: int
    bits: int
    block: int
    codes: np.ndarray  # (columns, blocks, bytes)
    scales: np.ndarray  # (columns, blocks), 32 bits
    zeros: np.ndarray  # (columns, bytes)
    error: float  # squared, weighted by the energy of the inputs

    def tensors(self, name: str) -> list[Any]:
        return [
            onnx.numpy_helper.from_array(self.codes, f"{name}_Q{self.bits}"),
            onnx.numpy_helper.from_array(self.scales, f"{name}_scales"),
            onnx.numpy_helper.from_array(self.zeros, f"{name}_zeros"),
        ]


def rounded(weight: np.ndarray, energy: np.ndarray, bits: int) -> Packed:
    """The scale and zero of each block that lose least of what comes through its inputs."""
    rows, columns = weight.shape
    block = 32 if bits == 4 else next(size for size in (128, 64, 32) if rows % size == 0 or size == 32)
    blocks = -(-rows // block)
    padded = np.pad(energy, (0, blocks * block - rows)).reshape(1, blocks, block)
    importance = torch.from_numpy(padded)
    step = max(1, _CHUNK // rows)
    parts = []
    for start in range(0, columns, step):
        part = np.ascontiguousarray(weight[:, start : start + step].T)
        part = np.pad(part, ((0, 0), (0, blocks * block - rows))).reshape(len(part), blocks, block)
        parts.append(_best(torch.from_numpy(part), importance, bits))
    codes, scales, zeros, errors = (torch.cat(each).numpy() for each in zip(*parts, strict=True))
    return Packed(rows, columns, bits, block, _packed(codes, bits), scales, _packed(zeros, bits), float(errors.sum()))


def _best(weight: Any, importance: Any, bits: int) -> tuple[Any, Any, Any, Any]:
    top = 2**bits - 1
    low, high = weight.amin(-1, keepdim=True).clamp(max=0), weight.amax(-1, keepdim=True).clamp(min=0)
    best: tuple[Any, Any, Any, Any] | None = None
    for span in _SPANS if bits == 4 else _SPANS[:1]:
        scale = ((high - low) * span / top).clamp(min=1e-12)
        zero = (-low * span / scale).round().clamp(0, top)
        codes = (weight / scale + zero).round().clamp(0, top)
        # Given the codes, the scale that fits best follows.
        steps = codes - zero
        fitted = (importance * steps * weight).sum(-1, keepdim=True) / (importance * steps**2).sum(
            -1, keepdim=True
        ).clamp(min=1e-30)
        scale = torch.where(fitted > 0, fitted, scale)
        error = (importance * (steps * scale - weight) ** 2).sum(-1, keepdim=True)
        if best is None:
            best = (codes, scale, zero, error)
        else:
            better = error < best[3]
            best = tuple(
                torch.where(better, new, old) for new, old in zip((codes, scale, zero, error), best, strict=True)
            )
    if best is None:
        raise AssertionError("There is always a span to try.")
    codes, scale, zero, error = best
    return codes.to(torch.uint8), scale[..., 0].float(), zero[..., 0].to(torch.uint8), error.double().sum()[None]


def _packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """Two of four bits share a byte, the first below."""
    if bits == 8:
        return codes
    if codes.shape[-1] % 2:
        codes = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, 1)])
    halves: np.ndarray = codes[..., ::2] | (codes[..., 1::2] << 4)
    return halves


def matmul_node(node: Any, packed: Packed) -> Any:
    name = node.input[1]
    return onnx.helper.make_node(
        "MatMulNBits",
        [node.input[0], f"{name}_Q{packed.bits}", f"{name}_scales", f"{name}_zeros"],
        list(node.output),
        name=node.name,
        domain="com.microsoft",
        K=packed.rows,
        N=packed.columns,
        bits=packed.bits,
        block_size=packed.block,
        accuracy_level=_INT8_ACTIVATIONS,
    )


def gather_nodes(node: Any, name: str, packed: Packed) -> list[Any]:
    """A table of 8 bits. Its codes are those of the matrix, a row after the other."""
    codes = f"{name}_table"
    reshape = onnx.helper.make_node(
        "Reshape", [f"{name}_Q{packed.bits}", f"{name}_table_shape"], [codes], name=f"{node.name}/Reshape"
    )
    gather = onnx.helper.make_node(
        "GatherBlockQuantized",
        [codes, node.input[1], f"{name}_scales", f"{name}_zeros"],
        list(node.output),
        name=node.name,
        domain="com.microsoft",
        bits=packed.bits,
        block_size=packed.block,
        gather_axis=0,
        quantize_axis=1,
    )
    return [reshape, gather]
