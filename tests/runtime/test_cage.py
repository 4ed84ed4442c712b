"""The cage's limits as the caged program sees them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from berth_runtime.cage import Limits, caged
from tests.runtime.agents import RUNTIME, eventually, gone

REPORT = """
import json, os, resource
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
print(json.dumps({
    "core": resource.getrlimit(resource.RLIMIT_CORE), "file": resource.getrlimit(resource.RLIMIT_FSIZE),
    "data": resource.getrlimit(resource.RLIMIT_DATA), "new_privs": status["NoNewPrivs"].strip(),
    "umask": status["Umask"].strip(), "oom": open("/proc/self/oom_score_adj").read().strip(),
    "env": dict(os.environ),
}))
"""


def caged_python(code: str, limits: Limits, **env: str) -> subprocess.CompletedProcess[bytes]:
    argv = caged([sys.executable, "-I", "-c", code], limits)
    return subprocess.run(argv, env=env, capture_output=True, check=False)


@pytest.mark.threat("E5")
def test_limits_hold_in_the_program() -> None:
    seen = json.loads(caged_python(REPORT, Limits(data_bytes=300 << 20), LANG="C.UTF-8").stdout)
    assert seen["core"] == [1, 1]  # smaller than any core file; see the cage for why not 0
    assert seen["file"] == [0, 0]
    assert seen["data"] == [300 << 20, 300 << 20]
    assert seen["new_privs"] == "1"
    assert seen["umask"] == "0077"
    assert int(seen["oom"]) >= 500 or os.geteuid() != 0
    assert set(seen["env"]) - {"LC_CTYPE"} == {"LANG"}


@pytest.mark.threat("E5")
def test_a_program_that_eats_memory_gets_no_more() -> None:
    done = caged_python("x = bytearray(400 << 20)", Limits(data_bytes=300 << 20))
    assert done.returncode == 1
    assert b"MemoryError" in done.stderr


@pytest.mark.threat("E5")
def test_a_program_can_write_no_file(tmp_path: Path) -> None:
    target = tmp_path / "leak"
    done = caged_python(f"import os; os.write(os.open({str(target)!r}, os.O_WRONLY | os.O_CREAT), b'x')", Limits())
    assert done.returncode != 0
    assert target.stat().st_size == 0


def test_nothing_outlives_the_process_that_caged_it(tmp_path: Path) -> None:
    """Also when that is killed without being able to do anything."""
    parent = textwrap.dedent(f"""
        import subprocess, sys, time
        sys.path.insert(0, {str(RUNTIME)!r})
        from berth_runtime.cage import Limits, caged
        child = subprocess.Popen(caged([sys.executable, "-I", "-c", "import time; time.sleep(600)"], Limits()))
        print(child.pid, flush=True)
        time.sleep(600)
    """)
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE) as process:
        assert process.stdout
        child = int(process.stdout.readline())
        assert not gone(child)
        process.send_signal(signal.SIGKILL)
    eventually(lambda: gone(child), "the caged program ended with its parent")


def test_a_program_whose_parent_is_gone_already_does_not_start() -> None:
    argv = caged([sys.executable, "-c", "print('ran')"], Limits())
    settings = argv.index(next(word for word in argv if word.startswith("{")))
    argv[settings] = json.dumps(json.loads(argv[settings]) | {"parent": 1_000_000_000})
    done = subprocess.run(argv, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (1, b"")
