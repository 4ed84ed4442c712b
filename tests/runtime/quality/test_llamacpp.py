"""The real engine's predictions tell good quantizations from bad and broken ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gguf
import msgspec
import pytest

from berth_runtime.convert.job import ConversionJob, Failed
from berth_runtime.convert.requantize import requantize
from berth_runtime.convert.workdir import WorkDir
from berth_runtime.quality.floors import BROKEN, FLOORS, falls_short
from berth_runtime.quality.job import QualityJob, QualityReport
from berth_runtime.spec import ModelFile
from tests.runtime.agents import environment, file_of, model_file


def made(folder: Path, target: str, source: ModelFile) -> ModelFile:
    result = requantize(ConversionJob(1, "job", (source,), "gguf", target, str(folder), 2), WorkDir(folder))
    return file_of(folder / result.files[0].name)


def measure(folder: Path, reference: ModelFile, measured: ModelFile, places: int) -> QualityReport | Failed:
    folder.mkdir()
    job = QualityJob(1, (reference,), (measured,), str(folder), places=places)
    (folder / "job.json").write_bytes(msgspec.json.encode(job))
    status = subprocess.run(
        [sys.executable, "-m", "berth_runtime.quality", str(folder / "job.json")], env=environment(), check=False
    ).returncode
    report = WorkDir(folder).load("quality.json", QualityReport)
    failed = WorkDir(folder).load("failure.json", Failed)
    assert (status == 0) == (report is not None)
    found = report or failed
    assert found
    return found


def broken(folder: Path, good: ModelFile) -> ModelFile:
    """The same file with the scales of some matrices ruined: it loads, answers, and talks nonsense."""
    path = folder / "broken.gguf"
    path.write_bytes(Path(good.path).read_bytes())
    reader = gguf.GGUFReader(path, "r+")
    for tensor in reader.tensors:
        if tensor.name.endswith("ffn_down.weight"):
            tensor.data[:] = tensor.data[::-1].copy()
    reader.data.flush()
    return file_of(path)


def test_a_good_quantization_passes_and_a_broken_one_is_refused(tmp_path: Path) -> None:
    good = made(tmp_path / "q8", "Q8_0", model_file())
    report = measure(tmp_path / "good", model_file(), good, 40)
    assert isinstance(report, QualityReport)
    assert (report.quality.tokens, report.text) == (40, "neutral")
    assert falls_short(report.quality, FLOORS["balanced"]) is None
    ruined = measure(tmp_path / "bad", model_file(), broken(tmp_path, good), 40)
    assert isinstance(ruined, QualityReport)
    assert falls_short(ruined.quality, BROKEN)


def test_a_file_that_no_engine_loads_is_told_apart(tmp_path: Path) -> None:
    torn = tmp_path / "torn.gguf"
    torn.write_bytes(Path(model_file().path).read_bytes()[:50_000_000])
    failed = measure(tmp_path / "out", model_file(), file_of(torn), 5)
    assert isinstance(failed, Failed)
    assert failed.reason == "not_loadable"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_fewer_bits_are_measured_as_worse(tmp_path: Path) -> None:
    reference = made(tmp_path / "f16", "F16", model_file())
    divergences = []
    for target in ("Q8_0", "Q5_K_M", "Q4_K_M", "Q2_K"):
        report = measure(tmp_path / f"m-{target}", reference, made(tmp_path / target, target, reference), 400)
        assert isinstance(report, QualityReport)
        divergences.append(report.quality.divergence)
    assert divergences == sorted(divergences)
    assert divergences[-1] > 5 * divergences[1]
