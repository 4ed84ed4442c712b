"""With the intake's check out of the way: what runs code when it is loaded reaches no engine."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest

from berth_runtime.failure import Failure
from berth_runtime.inert import UNSAFE, require_inert
from berth_runtime.spec import ModelFile, Phase
from tests.runtime.agents import ONNX_FOLDER, Agent, a_spec, engine_spec, file_of, folder_files, model_file


class Touches:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.path),))


def pickled(file: Path, canary: Path) -> ModelFile:
    file.write_bytes(pickle.dumps(Touches(canary)))
    return file_of(file)


def archived(file: Path, canary: Path) -> ModelFile:
    """As PyTorch saves: a pickle in an archive."""
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Touches(canary)))
    return file_of(file)


@pytest.mark.threat("M1")
@pytest.mark.threat("M2")
@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.gguf", "model.safetensors"])
@pytest.mark.parametrize("make", [pickled, archived])
def test_a_pickle_under_any_name_is_never_opened_by_an_engine(tmp_path: Path, make: Any, name: str) -> None:
    canary = tmp_path / "it-ran"
    with Agent(a_spec(tmp_path, files=(make(tmp_path / name, canary),))) as agent:
        status = agent.wait(Phase.FAILED)
    assert status.reason == UNSAFE
    assert "loading" not in [timing.phase for timing in status.phases]  # no engine was started
    assert not canary.exists()


@pytest.mark.threat("M2")
@pytest.mark.parametrize("where", ["config.json", "tokenizer_config.json", "preprocessor_config.json"])
def test_code_that_a_configuration_names_at_any_depth_reaches_no_engine(tmp_path: Path, where: str) -> None:
    canary, module = tmp_path / "it-ran", tmp_path / "modeling_x"
    module.write_text(f"import os\nos.mkdir({str(canary)!r})\n")
    named = tmp_path / where
    named.write_text(json.dumps({"model_type": "x", "vision_config": [{"auto_map": {"AutoModel": "modeling_x.X"}}]}))
    rest = tuple(file for file in folder_files(ONNX_FOLDER) if file.name != where)
    files = (*rest, _as(file_of(named)), _as(file_of(module)))
    with Agent(engine_spec("onnxruntime", tmp_path, files=files)) as agent:
        status = agent.wait(Phase.FAILED)
    assert status.reason == UNSAFE
    assert where in (status.message or "")
    assert not canary.exists()


@pytest.mark.threat("M2")
@pytest.mark.parametrize("name", ["modeling_x.py", "x.so", "model.ckpt", "engine.engine", "weights.PT", "x.nemo"])
def test_files_that_are_code_by_name_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"anything")
    with pytest.raises(Failure) as refused:
        require_inert((file_of(tmp_path / name),))
    assert refused.value.reason == UNSAFE


def test_what_is_only_data_passes(tmp_path: Path) -> None:
    words = tmp_path / "tokenizer.json"
    words.write_text(json.dumps({"model": {"vocab": {"auto_map": 7, "a": 1}}}))
    require_inert((model_file(), *folder_files(ONNX_FOLDER), file_of(words)))


def _as(file: ModelFile) -> ModelFile:
    return ModelFile(file.path, "config", file.size, file.sha256, name=Path(file.path).name)
