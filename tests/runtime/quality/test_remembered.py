"""What a reference said is kept for the next comparison with it, of the bundled text alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from berth_runtime.convert.workdir import WorkDir
from berth_runtime.quality import __main__ as quality
from berth_runtime.quality.job import QualityJob
from berth_runtime.quality.measure import Prediction
from berth_runtime.quality.remembered import remembered
from berth_runtime.spec import ModelFile
from tests.runtime.agents import file_of

SAID = [Prediction(7, {7: -0.5, 9: -1.25}, 100)]
FILES = (ModelFile("/a", "weights", 1, "a" * 64),)
OTHER = (ModelFile("/a", "weights", 1, "b" * 64),)


def test_the_same_question_is_asked_once(tmp_path: Path) -> None:
    place, asked = tmp_path / "reference", []

    def ask() -> list[Prediction]:
        asked.append(1)
        return SAID

    for _ in range(3):
        assert remembered(place, FILES, "text", 400, "v1", ask) == SAID
    moved = (msgspec.structs.replace(FILES[0], path="/elsewhere"),)
    assert remembered(place, moved, "text", 400, "v1", ask) == SAID
    assert len(asked) == 1


@pytest.mark.parametrize(
    "question",
    [(OTHER, "text", 400, "v1"), (FILES, "texts", 400, "v1"), (FILES, "text", 40, "v1"), (FILES, "text", 400, "v2")],
    ids=["files", "text", "places", "engine"],
)
def test_another_question_is_asked_anew(tmp_path: Path, question: tuple[Any, ...]) -> None:
    place, other = tmp_path / "reference", [Prediction(1, {1: -0.1}, 100)]
    assert remembered(place, FILES, "text", 400, "v1", lambda: SAID) == SAID
    assert remembered(place, *question, lambda: other) == other
    assert remembered(place, *question, lambda: SAID) == other


def test_what_cannot_be_read_or_written_is_asked_anew(tmp_path: Path) -> None:
    place = tmp_path / "reference"
    place.write_bytes(b"?")
    assert remembered(place, FILES, "text", 400, "v1", lambda: SAID) == SAID
    assert remembered(tmp_path / "none" / "reference", FILES, "text", 400, "v1", lambda: SAID) == SAID


def test_nothing_of_somebodys_own_text_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")
    sample = tmp_path / "sample"
    sample.write_text("a text of somebody's own")
    texts: list[tuple[str, str]] = []

    def predictions(files: tuple[ModelFile, ...], text: str, **_rest: Any) -> list[Prediction]:
        texts.append((files[0].role, text))
        token = 424242 if text.endswith("own") else 7
        return [Prediction(token, {token: -0.5}, 1 << 20)]

    monkeypatch.setattr(quality.llamacpp, "predictions", predictions)
    keep = tmp_path / "reference"
    reference = msgspec.structs.replace(file_of(model), role="reference")
    job = QualityJob(
        1, (reference,), (file_of(model),), str(tmp_path), sample_file=str(sample), reference_file=str(keep)
    )
    for _ in range(2):
        quality.check(job, WorkDir(tmp_path / "work"))
    asked = [text.endswith("own") for role, text in texts if role == "reference"]
    assert asked == [False, True, True], "the bundled text once, the other each time"
    kept: Callable[[bytes], Any] = msgspec.msgpack.decode
    assert [each["actual"] for each in kept(keep.read_bytes())["predictions"]] == [7]
