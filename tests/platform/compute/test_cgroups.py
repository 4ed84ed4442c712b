"""Limits by control group, on a folder that looks like one: this machine's kernel gives none away."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec
import pytest

from berth.compute.launch import ModelFile
from berth.compute.providers.cgroups import Cgroups, limits
from tests.platform.compute.test_gpus import spec

MIB = 1 << 20


@pytest.fixture
def group(tmp_path: Path) -> Path:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    (tmp_path / "cgroup.subtree_control").write_text("")
    return tmp_path


def test_a_group_that_is_not_ours_or_lacks_a_controller_is_not_used(group: Path, tmp_path: Path) -> None:
    assert Cgroups.at(None) is None
    assert Cgroups.at(tmp_path / "nowhere") is None
    (group / "cgroup.controllers").write_text("cpu pids\n")
    assert Cgroups.at(group) is None


@pytest.mark.threat("E5")
def test_a_replica_is_limited_from_its_first_instruction(group: Path) -> None:
    cgroups = Cgroups.at(group)
    assert cgroups is not None
    assert (group / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"
    file = ModelFile(path="/m", role="weights", size=100 * MIB, sha256="0" * 64)
    limited = msgspec.structs.replace(spec("r-1"), files=(file,), memory_limit=50 * MIB, threads=3, slots=2)
    command = cgroups.enter(limited, ["/bin/echo", "a b", "$HOME"])
    assert (group / "r-1" / "memory.max").read_text() == str((100 + 50 + 256) * MIB)
    assert (group / "r-1" / "memory.swap.max").read_text() == "0"
    assert (group / "r-1" / "cpu.max").read_text() == "400000 100000"
    assert int((group / "r-1" / "pids.max").read_text()) < 200
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "a b $HOME\n"  # nothing is read a second time
    assert (group / "r-1" / "cgroup.procs").read_text().strip().isdecimal()


def test_without_a_memory_limit_none_is_set() -> None:
    assert "memory.max" not in limits(spec("r-1"))


def test_what_is_left_is_ended_with_its_group(group: Path) -> None:
    cgroups = Cgroups.at(group)
    assert cgroups is not None
    (group / "r-1").mkdir()
    cgroups.end("r-1")
    assert (group / "r-1" / "cgroup.kill").read_text() == "1"
    cgroups.end("r-2")  # what was never there
