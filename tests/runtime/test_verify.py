"""Files are checked byte for byte, and again whenever they were written to."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from berth_runtime import verify
from berth_runtime.failure import Failure
from berth_runtime.spec import ModelFile
from tests.runtime.agents import file_of


def check(file: ModelFile, memory: Path) -> list[tuple[int, int]]:
    """Progress calls of a check that found nothing wrong."""
    seen: list[tuple[int, int]] = []
    verify.verify_files((file,), memory, lambda done, total: seen.append((done, total)))
    return seen


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(os.urandom(10_000_000))
    return path


def test_progress_rises_to_the_size(weights: Path, tmp_path: Path) -> None:
    seen = check(file_of(weights), tmp_path / "memory")
    assert [total for _, total in seen] == [10_000_000] * len(seen)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (10_000_000, 10_000_000)
    assert len(seen) > 2


@pytest.mark.threat("M7")
@pytest.mark.parametrize("remembered", [False, True])
@pytest.mark.parametrize("place", [0, 5_000_000, 9_999_999])
def test_one_flipped_byte_is_found(weights: Path, tmp_path: Path, place: int, remembered: bool) -> None:
    file = file_of(weights)
    if remembered:
        check(file, tmp_path / "memory")
    with weights.open("r+b") as stream:
        stream.seek(place)
        old = stream.read(1)
        stream.seek(place)
        stream.write(bytes([old[0] ^ 1]))
    # Somebody who hides the change by setting the time back cannot set back when the inode was changed.
    times = (weights.stat().st_atime_ns, weights.stat().st_mtime_ns)
    os.utime(weights, ns=times)
    with pytest.raises(Failure) as failure:
        check(file, tmp_path / "memory")
    assert failure.value.reason == "checksum_mismatch"
    assert "model.gguf" in failure.value.message


@pytest.mark.threat("M7")
def test_another_file_in_its_place_is_found(weights: Path, tmp_path: Path) -> None:
    file = file_of(weights)
    check(file, tmp_path / "memory")
    other = tmp_path / "other"
    other.write_bytes(os.urandom(10_000_000))
    other.replace(weights)
    with pytest.raises(Failure, match="SHA-256"):
        check(file, tmp_path / "memory")


@pytest.mark.threat("M7")
@pytest.mark.parametrize("change", [1, -1])
def test_a_wrong_size_is_found_without_reading(weights: Path, tmp_path: Path, change: int) -> None:
    file = msgspec.structs.replace(file_of(weights), size=10_000_000 + change)
    with pytest.raises(Failure, match="bytes instead of"):
        check(file, tmp_path / "memory")


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(Failure) as failure:
        check(ModelFile(str(tmp_path / "none"), "weights", 1, "0" * 64), tmp_path / "memory")
    assert failure.value.reason == "file_unreadable"


def test_an_unchanged_file_is_not_read_again(weights: Path, tmp_path: Path) -> None:
    file = file_of(weights)
    first = check(file, tmp_path / "memory")
    again = check(file, tmp_path / "memory")
    assert len(first) > 1
    assert again == [(10_000_000, 10_000_000)]


def test_a_damaged_memory_only_costs_time(weights: Path, tmp_path: Path) -> None:
    file = file_of(weights)
    check(file, tmp_path / "memory")
    (tmp_path / "memory").write_bytes((tmp_path / "memory").read_bytes()[:-5])
    assert len(check(file, tmp_path / "memory")) > 1
