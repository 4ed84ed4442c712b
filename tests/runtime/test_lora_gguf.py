"""From what PEFT saves to the GGUF file that llama.cpp loads: names, order of rows, scale, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from berth_runtime.engines.lora_gguf import reordered, write_gguf
from berth_runtime.failure import Failure
from tests.runtime.agents import model_file
from tests.runtime.lora_files import HIDDEN, RANK, peft_adapter

HEADS = 9  # query heads of the sample model
QUERY, OUTPUT = (f"base_model.model.model.layers.0.self_attn.{name}" for name in ("q_proj", "o_proj"))


def tensors_of(folder: Path) -> dict[str, Any]:
    raw = (folder / "adapter_model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    found = {}
    for key, told in json.loads(raw[8 : 8 + length]).items():
        begin, end = (8 + length + each for each in told["data_offsets"])
        found[key] = np.frombuffer(raw[begin:end], dtype=np.float32).reshape(told["shape"])
    return found


def save(folder: Path, tensors: dict[str, Any], **config: Any) -> Path:
    header, offset = {}, 0
    for key, value in tensors.items():
        kind = "BF16" if value.dtype == np.uint16 else "F32"
        header[key] = {"dtype": kind, "shape": list(value.shape), "data_offsets": [offset, offset + value.nbytes]}
        offset += value.nbytes
    head = json.dumps(header).encode()
    raw = len(head).to_bytes(8, "little") + head + b"".join(value.tobytes() for value in tensors.values())
    (folder / "adapter_model.safetensors").write_bytes(raw)
    told = json.loads((folder / "adapter_config.json").read_text()) | config
    (folder / "adapter_config.json").write_text(json.dumps(told))
    return folder


def written(folder: Path) -> tuple[dict[str, Any], gguf.GGUFReader]:
    target = folder / "made.gguf"
    write_gguf(folder, Path(model_file().path), target)
    reader = gguf.GGUFReader(target)
    return {tensor.name: np.array(tensor.data) for tensor in reader.tensors}, reader


def test_names_rows_and_scale(tmp_path: Path) -> None:
    folder = peft_adapter(tmp_path / "peft")
    before = tensors_of(folder)
    made, reader = written(folder)
    assert len(made) == len(before)
    for half in ("a", "b"):
        key = f"{OUTPUT}.lora_{half.upper()}.weight"
        assert np.array_equal(made[f"blk.0.attn_output.weight.lora_{half}"], before[key])
    assert np.array_equal(made["blk.0.attn_q.weight.lora_a"], before[f"{QUERY}.lora_A.weight"])
    query = made["blk.0.attn_q.weight.lora_b"]
    # The change of the weights, put in llama.cpp's order, is the change of the weights in llama.cpp's order.
    change = before[f"{QUERY}.lora_B.weight"] @ before[f"{QUERY}.lora_A.weight"]
    assert np.allclose(query @ made["blk.0.attn_q.weight.lora_a"], reordered(change, HEADS), atol=1e-3)
    half_head = HIDDEN // HEADS // 2
    assert np.array_equal(query[1], before[f"{QUERY}.lora_B.weight"][half_head])  # the pair of row 0 comes next to it
    told = {name: reader.get_field(name) for name in ("general.type", "adapter.type", "adapter.lora.alpha")}
    assert [field.contents() for field in told.values() if field] == ["adapter", "lora", RANK]


@pytest.mark.parametrize(
    ("config", "factor"),
    [
        ({"use_rslora": True}, RANK**0.5),
        ({"alpha_pattern": {"o_proj": 4.0 * RANK}}, 4.0),
        ({"rank_pattern": {"o_proj": RANK // 2}}, 2.0),
        ({"lora_alpha": 2 * RANK}, 1.0),
    ],
)
def test_each_way_of_scaling_ends_in_the_matrix(tmp_path: Path, config: dict[str, Any], factor: float) -> None:
    folder = peft_adapter(tmp_path / "peft")
    before = tensors_of(folder)
    made, _ = written(save(folder, before, **config))
    assert np.allclose(made["blk.0.attn_output.weight.lora_b"], factor * before[f"{OUTPUT}.lora_B.weight"], rtol=1e-5)


def test_sixteen_bits(tmp_path: Path) -> None:
    folder = peft_adapter(tmp_path / "peft")
    before = tensors_of(folder)
    short = {key: (value.view(np.uint32) >> 16).astype(np.uint16) for key, value in before.items()}
    made, _ = written(save(folder, short))
    assert np.allclose(made["blk.0.attn_output.weight.lora_b"], before[f"{OUTPUT}.lora_B.weight"], rtol=1e-2)


def broken_offsets(folder: Path) -> None:
    raw = (folder / "adapter_model.safetensors").read_bytes()
    (folder / "adapter_model.safetensors").write_bytes(raw[:-4])


def other_size(folder: Path) -> None:
    save(folder, {f"{QUERY}.lora_A.weight": np.zeros((RANK, HIDDEN + 1), np.float32)})


def beyond_the_base(folder: Path) -> None:
    key = QUERY.replace("layers.0", "layers.99")
    save(folder, {f"{key}.lora_A.weight": np.zeros((RANK, HIDDEN), np.float32)})


def embeddings(folder: Path) -> None:
    key = "base_model.model.model.embed_tokens.lora_embedding_A"
    save(folder, {key: np.zeros((RANK, 64), np.float32)})


def not_plain(folder: Path) -> None:
    save(folder, tensors_of(folder), use_dora=True)


@pytest.mark.threat("M4")
@pytest.mark.parametrize("how", [broken_offsets, other_size, beyond_the_base, embeddings, not_plain])
def test_what_does_not_fit_is_refused(tmp_path: Path, how: Any) -> None:
    folder = peft_adapter(tmp_path / "peft")
    how(folder)
    with pytest.raises(Failure) as failed:
        write_gguf(folder, Path(model_file().path), folder / "made.gguf")
    assert failed.value.reason == "adapter_unreadable"
