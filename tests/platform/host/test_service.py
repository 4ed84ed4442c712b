"""One supervised program on a machine that does not always let it start."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from berth.host.home import Home
from berth.host.machine import Machine
from berth.host.progress import Progress
from berth.host.service import LOG_BOUND, LONGEST_DELAY, Service
from berth.host.up import Up


def test_a_program_that_cannot_be_started_just_now_is_tried_again(tmp_path: Path) -> None:
    full = False
    started = []

    def start() -> subprocess.Popen[bytes]:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        started.append(subprocess.Popen([sys.executable, "-c", "pass"], start_new_session=True))
        return started[-1]

    service = Service("x", "the program", start, lambda: True, tmp_path / "x.log")
    now = 0.0
    service.launch(now)
    started[0].wait()
    full = True
    news = []
    for _ in range(40):
        now += LONGEST_DELAY
        news.append(service.tick(now))
    told = [sentence for sentence in news if sentence]
    assert [("started again now" in sentence, "No space" in sentence) for sentence in told[1:]] == [(True, True)]
    assert service.process is None and service.restart_at is not None and service.restart_at - now <= LONGEST_DELAY
    full = False
    service.tick(now + LONGEST_DELAY)
    assert service.process is started[1]
    started[1].wait()


def test_a_log_that_cannot_be_cut_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service("x", "x", lambda: subprocess.Popen(["false"]), lambda: True, tmp_path / "x.log")
    service.log.write_bytes(b"x" * (LOG_BOUND + 1))

    def refuse(self: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    service.trim_log()
    assert service.log.stat().st_size == 0


def test_a_full_disk_ends_nothing_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    up = Up(Machine({"BERTH_HOME": str(tmp_path / "home")}), Progress({}))
    up.home.prepare()
    up._write_state("running")
    before = up.home.running.read_text()

    def refuse(self: Home, path: Path, value: dict[str, object]) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Home, "write", refuse)
    up._write_state("stopping")
    assert up.home.running.read_text() == before
    monkeypatch.undo()
    up._write_state("stopping")
    assert up.home.read(up.home.running)["state"] == "stopping"
