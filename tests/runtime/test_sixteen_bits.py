"""FP8 weights written out in 16 bits for processors, held against another way of reckoning the same."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from berth_runtime.engines.sixteen_bits import widen
from berth_runtime.failure import Failure

CHANNELS = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": {"type": "float", "num_bits": 8, "strategy": "channel"}}
    },
}
BLOCKS = {"quant_method": "fp8", "weight_block_size": [4, 8]}
INT4 = {
    "quant_method": "compressed-tensors",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"type": "int", "num_bits": 4}}},
}


def write(file: Path, tensors: dict[str, tuple[str, tuple[int, ...], bytes]]) -> None:
    header: dict[str, Any] = {}
    offset = 0
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(raw)]}
        offset += len(raw)
    head = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(head)) + head + b"".join(raw for _, _, raw in tensors.values()))


def read(file: Path) -> dict[str, tuple[str, Any]]:
    raw = file.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__", None)
    found = {}
    for name, told in header.items():
        begin, end = told["data_offsets"]
        found[name] = (told["dtype"], raw[8 + length + begin : 8 + length + end])
    return found


def numbers(raw: bytes) -> Any:
    """Of BF16."""
    return (np.frombuffer(raw, dtype="<u2").astype(np.uint32) << 16).view(np.float32)


def of_code(code: int) -> float:
    """An FP8 number (E4M3), read as a string of bits."""
    bits = f"{code:08b}"
    exponent, fraction = int(bits[1:5], 2), int(bits[5:], 2)
    size = fraction * 2.0**-9 if exponent == 0 else (8 + fraction) * 2.0 ** (exponent - 10)
    return -size if bits[0] == "1" else size


def codes(rows: int, columns: int) -> Any:
    """Every FP8 number but the two that are none."""
    usual = [code for code in range(256) if code & 0x7F != 0x7F]
    return np.resize(np.array(usual, dtype=np.uint8), (rows, columns))


def expected(matrix: Any, scales: Any) -> Any:
    return np.vectorize(of_code)(matrix) * scales


def folder_of(path: Path, quantization: dict[str, Any]) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"hidden_size": 16, "quantization_config": quantization}))
    return path


def test_a_scale_for_each_row(tmp_path: Path) -> None:
    matrix, scales = codes(20, 16), np.linspace(0.001, 0.5, 20, dtype=np.float32)
    stored = tmp_path / "stored.safetensors"
    write(
        stored,
        {
            "a.weight": ("F8_E4M3", (20, 16), matrix.tobytes()),
            "a.weight_scale": ("F32", (20, 1), scales.tobytes()),
            "norm.weight": ("BF16", (3,), b"\x01\x02\x03\x04\x05\x06"),
        },
    )
    before = stored.read_bytes()
    folder = folder_of(tmp_path / "model", CHANNELS)
    (folder / "model.safetensors").symlink_to(stored)
    assert widen(folder)
    assert stored.read_bytes() == before, "the store's own file was written to"
    made = read(folder / "model.safetensors")
    assert set(made) == {"a.weight", "norm.weight"}
    assert made["norm.weight"] == ("BF16", b"\x01\x02\x03\x04\x05\x06")
    assert made["a.weight"][0] == "BF16"
    wanted = expected(matrix, scales[:, None]).reshape(-1)
    assert np.allclose(numbers(made["a.weight"][1]), wanted, rtol=2**-8, atol=0)
    assert json.loads((folder / "config.json").read_text()) == {"hidden_size": 16}
    assert not widen(folder), "what is wide already is done again"


def test_blocks_whose_scales_are_in_another_file(tmp_path: Path) -> None:
    matrix = codes(10, 20)
    scales = (
        np.arange(1, 10, dtype=np.float32).reshape(3, 3) / 16
    )  # blocks of 4 rows and 8 columns, the last ones smaller
    folder = folder_of(tmp_path / "model", BLOCKS)
    write(folder / "model-1.safetensors", {"a.weight_scale_inv": ("F32", (3, 3), scales.tobytes())})
    write(folder / "model-2.safetensors", {"a.weight": ("F8_E4M3", (10, 20), matrix.tobytes())})
    weight_map = {"a.weight_scale_inv": "model-1.safetensors", "a.weight": "model-2.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert widen(folder)
    spread = np.repeat(np.repeat(scales, 4, axis=0), 8, axis=1)[:10, :20]
    made = numbers(read(folder / "model-2.safetensors")["a.weight"][1])
    assert np.allclose(made, expected(matrix, spread).reshape(-1), rtol=2**-8, atol=0)
    assert json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"] == {
        "a.weight": "model-2.safetensors"
    }


def test_one_scale_for_all(tmp_path: Path) -> None:
    matrix = codes(4, 8)
    folder = folder_of(tmp_path / "model", {"quant_method": "fp8"})
    half = np.array([0.5], dtype="<f4").view("<u2")[1:].tobytes()  # 16 bits of it are BF16
    tensors = {"a.weight": ("F8_E4M3", (4, 8), matrix.tobytes()), "a.weight_scale": ("BF16", (), half)}
    write(folder / "model.safetensors", tensors)
    assert widen(folder)
    assert np.array_equal(numbers(read(folder / "model.safetensors")["a.weight"][1]), expected(matrix, 0.5).reshape(-1))


@pytest.mark.parametrize("quantization", [INT4, CHANNELS, None])
def test_what_is_no_fp8_stays(tmp_path: Path, quantization: dict[str, Any] | None) -> None:
    folder = folder_of(tmp_path / "model", quantization or {})
    write(folder / "model.safetensors", {"a.weight": ("BF16", (2, 2), bytes(8))})
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert not widen(folder)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


@pytest.mark.parametrize("scales", [(3, 1), (7, 2)])
def test_scales_that_do_not_fit_are_told(tmp_path: Path, scales: tuple[int, int]) -> None:
    folder = folder_of(tmp_path / "model", BLOCKS)
    raw = np.ones(scales, dtype=np.float32).tobytes()
    tensors = {"a.weight": ("F8_E4M3", (20, 16), codes(20, 16).tobytes()), "a.weight_scale_inv": ("F32", scales, raw)}
    write(folder / "model.safetensors", tensors)
    with pytest.raises(Failure) as told:
        widen(folder)
    assert told.value.reason == "model_unreadable"


def test_a_file_that_promises_more_than_it_has(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model", CHANNELS)
    write(folder / "model.safetensors", {"a.weight": ("F8_E4M3", (1 << 20, 1 << 20), bytes(8))})
    with pytest.raises(Failure) as told:
        widen(folder)
    assert told.value.reason == "model_unreadable"
