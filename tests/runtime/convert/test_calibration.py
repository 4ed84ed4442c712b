"""What is calibrated is calibrated with other text than it is judged by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from berth_runtime.convert import converters
from berth_runtime.convert.job import ConversionJob
from berth_runtime.quality.floors import CALIBRATED, FLOORS
from tests.e2e.matrix import ANSWER, PROMPT

QUALITY = Path(converters.__file__).parents[1] / "quality" / "sample.txt"
RUN = 5  # words in a row


def runs(text: str) -> set[tuple[str, ...]]:
    words = text.lower().split()
    return {tuple(words[start : start + RUN]) for start in range(len(words) - RUN + 1)}


def command(monkeypatch: pytest.MonkeyPatch, folder: Path, **target: Any) -> list[str]:
    monkeypatch.setenv("BERTH_CONVERTER_PYTHON", "/usr/bin/python3")
    job = ConversionJob(format=1, job="j", files=(), work_dir=str(folder), **target)
    return converters._command(job, "safetensors", folder / "given", folder / "made", folder)[0]


@pytest.mark.parametrize(
    "target",
    [
        {"target_format": "safetensors", "target": "INT4 W4A16"},
        {"target_format": "safetensors", "target": "AWQ-INT4"},
        {"target_format": "onnx", "target": "INT4 W4A16"},
    ],
    ids=lambda target: "-".join(target.values()),
)
def test_nothing_is_calibrated_with_the_text_of_the_quality_check(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: dict[str, str]
) -> None:
    argv = command(monkeypatch, tmp_path, **target)
    given = dict(zip(argv[argv.index("--source") :: 2], argv[argv.index("--source") + 1 :: 2], strict=True))
    calibration = Path(given["--text"]).read_text(encoding="utf-8")
    assert len(calibration) > 10_000
    assert not runs(calibration) & runs(QUALITY.read_text(encoding="utf-8"))
    assert float(given["--divergence"]) == CALIBRATED.divergence


def test_the_text_says_nothing_of_what_the_tests_ask() -> None:
    calibration = converters._CALIBRATION.read_text(encoding="utf-8")
    assert ANSWER.strip() not in calibration
    assert PROMPT.removesuffix(" is").split("The ")[1] not in calibration


def test_what_is_calibrated_has_to_be_well_within_what_is_planned() -> None:
    balanced = FLOORS["balanced"]
    assert CALIBRATED.divergence < balanced.divergence
    assert CALIBRATED.perplexity_change < balanced.perplexity_change
    assert CALIBRATED.agreement > balanced.agreement
