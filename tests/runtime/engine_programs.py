"""Stand-ins on disk for programs of engines, and where a real one is found."""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
from pathlib import Path


def program(path: Path, body: str) -> Path:
    """A Python program at `path` that runs `body`."""
    path.write_text(f"#!{sys.executable} -I\n{body}\n")
    path.chmod(0o755)
    return path


@functools.cache
def engines_python() -> Path | None:
    """The Python in which vLLM and torch are installed: `TEST_ENGINES`, or `.venv-engines` beside `.venv`."""
    named = os.environ.get("TEST_ENGINES")
    folder = Path(named) if named else Path(__file__).resolve().parents[2] / ".venv-engines"
    python = folder / "bin" / "python"
    return python if python.exists() else None


def has(module: str) -> bool:
    python = engines_python()
    if python is None:
        return False
    asked = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", asked], check=False).returncode == 0


def vllm(path: Path) -> Path:
    """A `vllm` that runs the installed one. Repacks for CPUs have no program of that name that works."""
    python = engines_python()
    path.write_text(
        f"""#!{python}
import os, sys
assert sys.argv[1] == "serve"
os.execv({str(python)!r}, [{str(python)!r}, "-W", "ignore", "-m", "vllm.entrypoints.openai.api_server", "--model", *sys.argv[2:]])
"""
    )
    path.chmod(0o755)
    return path


def installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
