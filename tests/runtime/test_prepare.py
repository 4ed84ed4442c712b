"""A model's folder: links by name, or second names where a library wants to find the files side by side."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from berth_runtime import prepare
from berth_runtime.prepare import lay_out, model_folder
from berth_runtime.spec import ModelFile
from tests.runtime.test_fetch import spec_for


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir()
    return folder


def stored(folder: Path, name: str) -> ModelFile:
    """As a content-addressed store keeps it: each in a folder of its own."""
    place = folder / name[::-1] / "content"
    place.parent.mkdir(parents=True)
    place.write_bytes(name.encode())
    return ModelFile(str(place), "weights", len(name), "0" * 64, name=name)


@pytest.mark.parametrize(("form", "linked"), [("safetensors", True), ("onnx", False)])
def test_onnx_files_lie_side_by_side(tmp_path: Path, state: Path, form: str, linked: bool) -> None:
    files = [stored(tmp_path / "store", name) for name in ("model.onnx", "model.onnx.data")]
    spec = msgspec.structs.replace(spec_for(state, *files), model_format=form)
    Path(spec.state_dir).mkdir()
    lay_out(spec)
    for file in files:
        place = model_folder(spec) / file.name
        assert place.is_symlink() is linked
        assert place.samefile(file.path)
        assert (place.resolve().parent == model_folder(spec).resolve()) is not linked


def test_on_another_disk_they_are_copies(tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_self: Path, _target: Path) -> None:
        raise OSError(prepare.errno.EXDEV, "another disk")

    monkeypatch.setattr(Path, "hardlink_to", refused)
    file = stored(tmp_path / "store", "model.onnx")
    spec = msgspec.structs.replace(spec_for(state, file), model_format="onnx")
    Path(spec.state_dir).mkdir()
    lay_out(spec)
    place = model_folder(spec) / file.name
    assert place.read_bytes() == b"model.onnx"
    assert not place.samefile(file.path)
