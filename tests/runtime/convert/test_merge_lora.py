"""An adapter merged into its base by the converters: each matrix that it names is W + scale * B @ A, every other one stays as it was."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from berth_runtime.convert.__main__ import convert
from berth_runtime.convert.converters import python_of_converters
from berth_runtime.convert.job import JOB_FORMAT, ConversionJob, ConversionResult
from berth_runtime.convert.workdir import WorkDir
from berth_runtime.failure import Failure
from berth_runtime.spec import ModelFile
from tests.runtime.lora_files import HIDDEN, RANK, peft_adapter

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(python_of_converters() is None, reason="the converters are not installed: make converters"),
]
LAYERS = 9  # one more than the adapter changes


def write(path: Path, tensors: dict[str, np.ndarray]) -> None:
    header, offset = {}, 0
    for name, value in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [offset, offset + value.nbytes]}
        offset += value.nbytes
    head = json.dumps(header).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + b"".join(each.tobytes() for each in tensors.values()))


def read(path: Path) -> dict[str, np.ndarray]:
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    return {
        name: np.frombuffer(data[8 + size :][slice(*each["data_offsets"])], np.float32).reshape(each["shape"])
        for name, each in header.items()
    }


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    folder.mkdir()
    random = np.random.default_rng(5)
    tensors = {
        f"model.layers.{layer}.self_attn.{name}.weight": random.normal(size=(HIDDEN, HIDDEN)).astype(np.float32)
        for layer in range(LAYERS)
        for name in ("q_proj", "k_proj", "o_proj")
    }
    write(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text("{}")
    return folder


def merged(folder: Path, base: Path, adapter: Path) -> ConversionResult:
    def file(path: Path, role: str) -> ModelFile:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        return ModelFile(str(path), role, path.stat().st_size, digest, name=path.name)

    files = [file(path, "adapter") for path in sorted(adapter.iterdir())]
    files += [file(path, "weights" if path.suffix == ".safetensors" else "config") for path in sorted(base.iterdir())]
    work = WorkDir(folder)
    convert(ConversionJob(JOB_FORMAT, "merge", tuple(files), "safetensors", "BF16", str(folder)), work)
    result = work.result()
    assert result is not None
    return result


def test_the_named_matrices_change_and_nothing_else(tmp_path: Path, base: Path) -> None:
    adapter = peft_adapter(tmp_path / "adapter")
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(config | {"lora_alpha": 2 * RANK}))
    result = merged(tmp_path / "work", base, adapter)
    assert {file.name for file in result.files} == {"model.safetensors", "config.json"}
    before, after = read(base / "model.safetensors"), read(tmp_path / "work" / "model.safetensors")
    halves = read(adapter / "adapter_model.safetensors")
    assert before.keys() == after.keys()
    changed = 0
    for name, weight in before.items():
        key = f"base_model.model.{name.removesuffix('.weight')}"
        change = 0.0
        if f"{key}.lora_A.weight" in halves:
            change = 2.0 * (halves[f"{key}.lora_B.weight"] @ halves[f"{key}.lora_A.weight"])
            changed += 1
        np.testing.assert_allclose(after[name], weight + change, rtol=1e-4, atol=1e-4)
    assert changed == 16


def test_an_adapter_of_another_model_is_refused(tmp_path: Path, base: Path) -> None:
    tensors = {name: value for name, value in read(base / "model.safetensors").items() if "layers.7" not in name}
    write(base / "model.safetensors", tensors)
    with pytest.raises(Failure) as caught:
        merged(tmp_path / "work", base, peft_adapter(tmp_path / "adapter"))
    assert caught.value.reason == "converter_failed"
