"""What the machine has is what our cgroup leaves of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from berth.compute.providers import machine

GIB = 1 << 30


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    return tmp_path


def test_without_limits_it_is_the_machine(cgroup: Path) -> None:
    (cgroup / "cpu.max").write_text("max 100000\n")
    (cgroup / "memory.max").write_text("max\n")
    assert machine.cores() >= 1
    assert machine.memory() >= machine.free_memory() > 0


@pytest.mark.parametrize(("line", "cores"), [("100000 100000", 1), ("50000 100000", 1), ("99900000 100000", None)])
def test_a_cpu_limit_bounds_the_cores(cgroup: Path, line: str, cores: int | None) -> None:
    whole = machine.cores()
    (cgroup / "cpu.max").write_text(line + "\n")
    assert machine.cores() == (cores or whole)


def test_a_memory_limit_bounds_the_memory(cgroup: Path) -> None:
    (cgroup / "memory.max").write_text(f"{GIB}\n")
    (cgroup / "memory.current").write_text(f"{GIB - 5}\n")
    assert machine.memory() == GIB
    assert machine.free_memory() == 5
    (cgroup / "memory.current").write_text(f"{GIB + 5}\n")
    assert machine.free_memory() == 0


def test_memory_bandwidth_is_plausible_and_measured_once() -> None:
    first = machine.memory_bandwidth()
    assert 10**8 < first < 10**13
    assert machine.memory_bandwidth() == first
