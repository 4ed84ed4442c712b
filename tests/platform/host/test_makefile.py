"""What `make` does before there is anything else: takes turns, and looks whether it can write."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).resolve().parents[3] / "Makefile"
# A part that takes its time, behind the real lock.
PROBE = """
probe:
\t+@$(call LOCKED,part)
part:
\t@echo begin >> story && echo building && sleep 1 && echo end >> story && touch $@
"""
TOOLS = ("sh", "make", "mkdir", "rm", "cat", "sleep", "touch", "find", "awk", "df", "id")


@pytest.fixture
def checkout() -> Iterator[Path]:
    """A folder that everybody may enter, with the real Makefile and nothing else."""
    with tempfile.TemporaryDirectory(prefix="berth-make-") as folder:
        Path(folder).chmod(0o755)
        (Path(folder) / "Makefile").write_text(MAKEFILE.read_text() + PROBE)
        yield Path(folder)


def environment(**changes: str) -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("MAKE") and k != "MFLAGS"} | changes


def tools(folder: Path) -> str:
    """A PATH with what the Makefile cannot do without, and no flock."""
    folder.mkdir()
    for name in TOOLS:
        found = shutil.which(name)
        assert found, name
        (folder / name).symlink_to(found)
    return str(folder)


@pytest.mark.parametrize("with_flock", [True, False], ids=["flock", "mkdir"])
def test_two_at_once_take_turns(checkout: Path, tmp_path: Path, with_flock: bool) -> None:
    path = os.environ["PATH"] if with_flock else tools(tmp_path / "bin")
    if with_flock and shutil.which("flock") is None:
        pytest.fail("util-linux's flock is needed to test the lock that it holds")
    both = [
        subprocess.Popen(
            ["make", "probe"],
            cwd=checkout,
            env=environment(PATH=path),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(2)
    ]
    said = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert (checkout / "story").read_text() == "begin\nend\n", "made once"
    assert sorted(text.count("Another make is setting this up; waiting for it.") for text in said) == [0, 1]
    assert not (checkout / ".setup.lock").exists()


def test_a_lock_that_a_killed_make_left_is_taken_over(checkout: Path, tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    (checkout / ".setup.lock").mkdir()
    (checkout / ".setup.lock" / "pid").write_text(f"{gone.pid}\n")
    done = make(checkout, "probe", PATH=tools(tmp_path / "bin"))
    assert done.returncode == 0, done.stderr
    assert (checkout / "part").exists()


def test_a_part_that_fails_fails_the_whole(checkout: Path) -> None:
    (checkout / "story").mkdir()
    assert make(checkout, "probe").returncode != 0


def test_a_full_disk_is_told_before_anything_is_made(checkout: Path, tmp_path: Path) -> None:
    (checkout / "requirements").symlink_to(MAKEFILE.parent / "requirements")
    small = tmp_path / "df"
    small.write_text(
        "#!/bin/sh\necho Filesystem 1024-blocks Used Available Capacity Mounted\necho disk 9999999 9 921600 99% /\n"
    )
    small.chmod(0o755)
    done = make(checkout, "up", f"PYTHON={sys.executable}", PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert done.returncode != 0
    assert f"Only 900 MB are free where the checkout {checkout} lies" in done.stderr
    assert not (checkout / ".venv").exists()


def test_a_read_only_checkout_is_told_unless_everything_is_there(checkout: Path) -> None:
    stranger = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}
    checkout.chmod(0o555)
    done = make(checkout, "up", as_user=stranger)
    assert done.returncode != 0
    assert f"The checkout {checkout} cannot be written to" in done.stderr
    checkout.chmod(0o755)
    (checkout / "part").touch()
    checkout.chmod(0o555)
    assert make(checkout, "probe", as_user=stranger).returncode == 0
    checkout.chmod(0o755)


def make(
    checkout: Path, *arguments: str, as_user: dict[str, object] | None = None, **changes: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", *arguments],
        cwd=checkout,
        env=environment(**changes),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **(as_user or {}),  # type: ignore[call-overload]
    )
