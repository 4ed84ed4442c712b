"""GGUF files out of GGUF files: the right sizes, the same metadata, and the same bytes after any interruption."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import gguf
import msgspec
import numpy as np
import pytest

from berth_runtime.convert.job import ConversionJob, ConversionResult, Failed, Progress
from berth_runtime.convert.requantize import requantize
from berth_runtime.convert.workdir import WorkDir
from berth_runtime.failure import Failure
from berth_runtime.spec import ModelFile
from tests.runtime.agents import environment, model_file
from tests.runtime.convert import small_gguf


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ModelFile:
    return small_gguf.write(tmp_path_factory.mktemp("source") / "model.gguf")


def a_job(folder: Path, target: str, *files: ModelFile) -> ConversionJob:
    return ConversionJob(1, "job-1", files, "gguf", target, str(folder), threads=2)


def make(folder: Path, target: str, *files: ModelFile) -> tuple[ConversionResult, gguf.GGUFReader]:
    result = requantize(a_job(folder, target, *files), WorkDir(folder))
    return result, gguf.GGUFReader(folder / result.files[0].name)


@pytest.mark.parametrize("target", ["F16", "BF16", "Q8_0", "Q4_K_M", "Q2_K"])
def test_a_mixture_keeps_the_metadata_and_is_near_its_source(tmp_path: Path, source: ModelFile, target: str) -> None:
    result, made = make(tmp_path, target, source)
    before = gguf.GGUFReader(source.path)
    told = made.get_field("berth.test")
    assert told and told.contents() == "kept as it is: é"
    assert made.get_field("tokenizer.ggml.tokens").contents() == ["a", "ü", "\n", "<|x|>"]  # type: ignore[union-attr]
    assert [t.name for t in made.tensors] == [t.name for t in before.tensors]
    worst = {"F16": 0, "BF16": 1e-5, "Q8_0": 1e-4, "Q6_K": 1e-3, "Q2_K": 0.1}.get(target, 0.03)
    for old, new in zip(before.tensors, made.tensors, strict=True):
        a, b = (gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float64) for t in (old, new))
        assert np.square(a - b).mean() / np.square(a).mean() <= worst, new.name
    assert result.files[0].size == (tmp_path / result.files[0].name).stat().st_size
    assert not result.requantized


def test_rows_that_do_not_fit_are_reported(tmp_path: Path, source: ModelFile) -> None:
    result, _ = make(tmp_path, "Q4_K_M", source)
    assert {(f.wanted, f.given, f.row) for f in result.fallbacks} == {("Q4_K", "Q5_0", 576), ("Q6_K", "Q8_0", 576)}
    # The embeddings, and all of a layer but its down projection.
    assert sum(each.tensors for each in result.fallbacks) == 1 + 3 * 5


def test_shards_become_one_file(tmp_path: Path, source: ModelFile) -> None:
    second = small_gguf.write(tmp_path / "second.gguf", layers=1, first=3)
    result, made = make(tmp_path / "out", "Q8_0", source, second)
    assert len(made.tensors) == len(gguf.GGUFReader(source.path).tensors) + len(gguf.GGUFReader(second.path).tensors)
    assert result.types["Q8_0"] == 1 + 4 * 6


def test_the_real_sample_model_gets_the_sizes_that_llama_quantize_gives(tmp_path: Path) -> None:
    result, _ = make(tmp_path, "Q8_0", model_file())
    assert result.files[0].size == pytest.approx(144_811_072, abs=4096)  # as published for SmolLM2-135M-Instruct
    assert result.requantized


def test_a_target_that_does_not_exist_is_named(tmp_path: Path, source: ModelFile) -> None:
    with pytest.raises(Failure, match="Q4_K_M") as caught:
        requantize(a_job(tmp_path, "Q4_X", source), WorkDir(tmp_path))
    assert caught.value.reason == "target_unknown"


def test_weights_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    file = small_gguf.write(tmp_path / "model.gguf", layers=1)
    reader = gguf.GGUFReader(file.path, "r+")
    reader.tensors[0].data[3, 5] = np.nan
    reader.data.flush()
    with pytest.raises(Failure) as caught:
        requantize(a_job(tmp_path / "out", "Q8_0", file), WorkDir(tmp_path / "out"))
    assert caught.value.reason == "source_damaged"


def run(folder: Path, target: str, *files: ModelFile) -> subprocess.Popen[bytes]:
    folder.mkdir(exist_ok=True)
    (folder / "job.json").write_bytes(msgspec.json.encode(a_job(folder, target, *files)))
    return subprocess.Popen(
        [sys.executable, "-m", "berth_runtime.convert", str(folder / "job.json")],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def test_killed_at_any_moment_it_goes_on_to_the_same_bytes(tmp_path: Path, source: ModelFile) -> None:
    whole = run(tmp_path / "whole", "Q6_K", source)
    begun = time.monotonic()
    assert whole.wait(120) == 0
    took = time.monotonic() - begun
    expected = WorkDir(tmp_path / "whole").result()
    chance = random.Random(11)
    folder = tmp_path / "killed"
    killed = 0
    for _ in range(5):
        with run(folder, "Q6_K", source) as process:
            try:
                process.wait(took * chance.random())
            except subprocess.TimeoutExpired:
                process.kill()
                killed += 1
    assert killed
    assert run(folder, "Q6_K", source).wait(120) == 0
    assert WorkDir(folder).result() == expected


def test_told_to_stop_it_says_so_and_goes_on_later(tmp_path: Path, source: ModelFile) -> None:
    with run(tmp_path / "out", "Q5_K_M", source) as process:
        while not (tmp_path / "out" / "progress.json").exists() and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) in (0, 3)  # 0: it was done already
    assert WorkDir(tmp_path / "out").load("progress.json", Progress)
    assert run(tmp_path / "out", "Q5_K_M", source).wait(120) == 0


def test_a_source_with_one_flipped_byte_is_refused(tmp_path: Path, source: ModelFile) -> None:
    wrong = msgspec.structs.replace(source, sha256="0" * 64)
    assert run(tmp_path / "out", "Q8_0", wrong).wait(60) == 1
    failed = WorkDir(tmp_path / "out").load("failure.json", Failed)
    assert failed and failed.reason == "checksum_mismatch"
    assert WorkDir(tmp_path / "out").result() is None
