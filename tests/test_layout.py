"""The shape of the house: roots that shadow nothing, an empty top package, and imports that only go downwards."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
STDLIB = Path(sysconfig.get_paths()["stdlib"]).resolve()
SKIPPED = {"node_modules", "__pycache__", "dist"}


def folders() -> list[Path]:
    """The checkout's own folders, two levels deep."""
    first = [p for p in ROOT.iterdir() if p.is_dir() and p.name[0] != "." and p.name not in SKIPPED]
    second = [c for p in first for c in p.iterdir() if c.is_dir() and c.name[0] != "." and c.name not in SKIPPED]
    return [ROOT, *first, *second]


@pytest.mark.parametrize("root", ["platform", "runtime"])
def test_source_roots_are_no_packages(root: str) -> None:
    assert not list((ROOT / root).glob("*.py")), f"{root}/ would shadow the standard library or become a package"


def test_platform_is_the_standard_librarys_from_every_folder() -> None:
    code = "import platform, sys; sys.stdout.write(platform.__file__)"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'platform'}{os.pathsep}{ROOT / 'runtime'}"}
    for folder in folders():
        for env in (environment, {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}):
            found = subprocess.run(
                [sys.executable, "-c", code], cwd=folder, env=env, capture_output=True, text=True, check=True
            )
            assert Path(found.stdout).resolve() == STDLIB / "platform.py", folder


def test_platform_is_the_standard_librarys_under_pytest() -> None:
    import platform

    assert Path(platform.__file__).resolve() == STDLIB / "platform.py"


def test_the_top_package_is_empty() -> None:
    assert (ROOT / "platform" / "berth" / "__init__.py").read_text() == ""


def test_imports_only_go_downwards() -> None:
    """The contracts of pyproject.toml. A broken one is named in the output."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'platform'}{os.pathsep}{ROOT / 'runtime'}"}
    tool = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([tool, "--no-cache"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
