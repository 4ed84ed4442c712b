"""A model that 8 bits a weight spoil and 6 do not: beside every 16 channels of its feed-forward layers there are 16 that are never on, and
the weights behind those are large.

What they are multiplied by is always 0, so the 16 bits say what they said without them. `Q8_0` has one scale for 32 weights and keeps
little of those that matter; K types have one for 16.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any, Final

import numpy as np

_RUN: Final = 16  # channels side by side
_LARGE: Final = 0x4180  # 16.0 in BF16; the usual weights are near 0.1
Tensors = dict[str, "np.ndarray[Any, Any]"]


def with_dead_channels(source: Path, target: Path, *, layers: int) -> Path:
    """Writes a folder with the first layers of a Llama in BF16. `source`: its folder, of one file of weights."""
    target.mkdir()
    config = json.loads((source / "config.json").read_text())
    for each in source.iterdir():
        if each.name not in ("config.json", "model.safetensors"):
            (target / each.name).write_bytes(each.read_bytes())
    config |= {"num_hidden_layers": layers, "intermediate_size": 2 * config["intermediate_size"]}
    (target / "config.json").write_text(json.dumps(config))
    kept = {
        name: _spread(name, tensor)
        for name, tensor in _read(source / "model.safetensors").items()
        if not name.startswith("model.layers.") or int(name.split(".")[2]) < layers
    }
    _write(target / "model.safetensors", kept)
    return target


def _spread(name: str, tensor: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if name.endswith(("gate_proj.weight", "up_proj.weight")):
        return _between(tensor, 0)
    if name.endswith("down_proj.weight"):
        return np.ascontiguousarray(_between(np.ascontiguousarray(tensor.T), _LARGE).T)
    return tensor


def _between(rows: np.ndarray[Any, Any], filling: int) -> np.ndarray[Any, Any]:
    """With as many rows of the filling after every 16."""
    runs = rows.reshape(-1, _RUN, rows.shape[1])
    return np.concatenate([runs, np.full_like(runs, filling)], axis=1).reshape(-1, rows.shape[1])


def _read(file: Path) -> Tensors:
    raw = file.read_bytes()
    begin = 8 + struct.unpack("<Q", raw[:8])[0]
    head = json.loads(raw[8:begin])
    head.pop("__metadata__", None)
    return {
        name: np.frombuffer(raw[begin + at : begin + end], "<u2").reshape(told["shape"])
        for name, told in head.items()
        for at, end in [told["data_offsets"]]
    }


def _write(file: Path, tensors: Tensors) -> None:
    head, at = {}, 0
    for name, tensor in tensors.items():
        head[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    packed = json.dumps(head | {"__metadata__": {"format": "pt"}}).encode()
    with file.open("wb") as out:
        out.write(struct.pack("<Q", len(packed)) + packed)
        out.writelines(tensor.tobytes() for tensor in tensors.values())
