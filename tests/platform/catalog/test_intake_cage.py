"""What the caged reader can still do: read files, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from berth.catalog.intake import cage

ACTS = {
    "socket": "import socket; socket.socket()",
    "another program": "import os; os.execv('/bin/true', ['true'])",
    "a child": "import os; os.fork()",
    "a file": "open(sys.argv[1], 'w').write('x')",
    "a file's name": "import os; os.unlink(sys.argv[2])",
    "a link": "import os; os.link(sys.argv[2], sys.argv[1])",
    "memory": "x = bytearray(600 << 20)",
    "time": "while True: pass",
}


def run(act: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    there = tmp_path / "there"
    there.write_text("x")
    code = (
        "import sys; sys.path.insert(0, sys.argv[3])\n"
        "from berth.catalog.intake import cage\n"
        "print(cage.enter(cpu_seconds=1), flush=True)\n" + act + "\nprint('done', flush=True)\n"
    )
    root = Path(cage.__file__).parents[3]
    argv = [sys.executable, "-I", "-c", code, str(tmp_path / "new"), str(there), str(root)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.threat("M3")
@pytest.mark.parametrize("what", ACTS)
def test_the_cage_refuses(what: str, tmp_path: Path) -> None:
    done = run(ACTS[what], tmp_path)
    assert "no_calls" in done.stdout, done.stderr
    assert "done" not in done.stdout
    assert done.returncode != 0
    assert not (tmp_path / "new").exists()
    assert (tmp_path / "there").exists()


def test_the_cage_lets_files_be_read(tmp_path: Path) -> None:
    done = run("print(open(sys.argv[2]).read() * 3)", tmp_path)
    assert "xxx" in done.stdout and "done" in done.stdout, done.stderr
