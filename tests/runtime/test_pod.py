"""The runtime in a pod: told by mounted files, telling by standard output, with a last word for whoever asks after its end."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from berth_runtime.log import ReplicaLog
from berth_runtime.pod import Journal
from berth_runtime.spec import EngineMetrics, Phase, PhaseTiming, ReplicaStatus
from tests.runtime.agents import SECRET, a_spec, environment, eventually, file_of, model_file
from tests.runtime.test_statusport import free_port

ADDRESS = "127.83.7.9"


class Pod:
    """`python -m berth_runtime.pod`, with folders where a pod has mounts."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.folder = folder
        model = model_file()
        self.place = folder / "models" / "sha256" / model.sha256[:2] / model.sha256
        self.place.parent.mkdir(parents=True)
        self.place.symlink_to(model.path)
        inside = f"/models/sha256/{model.sha256[:2]}/{model.sha256}"
        file = msgspec.structs.replace(model, path=inside)
        spec = a_spec(
            folder,
            files=(file,),
            secret_file="/etc/berth/replica/token",
            state_dir="/run/berth/replica",
            host="::1",
            port=free_port(),
        )
        self.spec = msgspec.structs.replace(spec, **changes)
        (folder / "spec.json").write_bytes(msgspec.json.encode(self.spec))
        self.status_port = free_port()
        arguments = {
            "spec": folder / "spec.json",
            "token": folder / "secret",
            "state": folder / "state",
            "models": folder / "models",
            "host": ADDRESS,
            "status-port": self.status_port,
            "last-word": folder / "last-word",
        }
        self.out = folder / "out"
        with self.out.open("wb") as out:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "berth_runtime.pod",
                    *(f"--{name}={value}" for name, value in arguments.items()),
                ],
                env=environment(),
                stdout=out,
                stderr=subprocess.PIPE,
            )

    def told(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.read_text().splitlines()]

    def phases(self) -> list[str]:
        found: list[str] = []
        for line in self.told():
            if "status" in line and line["status"]["phase"] not in found:
                found.append(line["status"]["phase"])
        return found

    def last_word(self) -> dict[str, Any]:
        word: dict[str, Any] = json.loads((self.folder / "last-word").read_text())
        return word


def asked(port: int, path: str) -> int:
    connection = http.client.HTTPConnection(ADDRESS, port, timeout=60)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {SECRET}"})
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.fixture
def pods() -> Iterator[list[Pod]]:
    made: list[Pod] = []
    yield made
    for pod in made:
        pod.process.kill()
        pod.process.wait()
        assert pod.process.stderr
        pod.process.stderr.close()


def test_it_tells_its_life_on_standard_output(tmp_path: Path, pods: list[Pod]) -> None:
    pod = Pod(tmp_path)
    pods.append(pod)
    eventually(lambda: "ready" in pod.phases(), "it is ready")
    status = next(line["status"] for line in reversed(pod.told()) if "status" in line)
    assert (status["host"], status["port"]) == (ADDRESS, pod.spec.port)
    assert [timing["phase"] for timing in status["phases"]] == ["verifying", "loading", "warming", "ready"]
    eventually(
        lambda: any(line.get("text") == "ready: the first token was generated" for line in pod.told()), "its log came"
    )
    assert asked(pod.spec.port, "/v1/models") == 200
    assert asked(pod.status_port, "/readyz") == 200
    pod.process.send_signal(signal.SIGTERM)
    assert pod.process.wait(timeout=60) == 0
    assert pod.phases()[-1] == "stopped"
    assert pod.last_word()["phase"] == "stopped"
    assert SECRET not in pod.out.read_text()


def test_a_failure_is_its_last_word(tmp_path: Path, pods: list[Pod]) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_bytes(b"not the model")
    pod = Pod(tmp_path, files=(file_of(wrong),))
    wrong.write_bytes(b"not this file")
    pods.append(pod)
    assert pod.process.wait(timeout=60) == 1
    assert (pod.last_word()["phase"], pod.last_word()["reason"]) == ("failed", "checksum_mismatch")
    assert pod.phases()[-1] == "failed"


def test_a_spec_that_cannot_be_run_is_said_too(tmp_path: Path, pods: list[Pod]) -> None:
    pod = Pod(tmp_path, slots=0)
    pods.append(pod)
    assert pod.process.wait(timeout=60) == 2
    assert pod.last_word()["reason"] == "bad_spec"
    assert "slots" in pod.last_word()["message"]


class Told:
    """A journal that writes into a pipe."""

    def __init__(self, folder: Path) -> None:
        self.read, write = os.pipe()
        os.set_blocking(self.read, False)
        self.folder = folder
        self.journal = Journal(folder, write)

    def lines(self) -> list[dict[str, Any]]:
        try:
            return [json.loads(line) for line in os.read(self.read, 1 << 20).splitlines()]
        except BlockingIOError:
            return []

    def status(self, phase: Phase, at: float, **changes: Any) -> None:
        status = ReplicaStatus(1, "r", 1, 0.0, phase, (PhaseTiming(phase, 1.0),), at, "::1", **changes)
        (self.folder / "status.json").write_bytes(msgspec.json.encode(status))


def test_it_says_nothing_twice_and_not_every_beat(tmp_path: Path) -> None:
    told = Told(tmp_path)
    log = ReplicaLog(tmp_path)
    log.say("one")
    told.status(Phase.LOADING, 100.0)
    told.journal._look()
    assert [line.get("text") or line["status"]["phase"] for line in told.lines()] == ["one", "loading"]
    told.journal._look()
    assert told.lines() == []
    told.status(Phase.LOADING, 101.0)
    told.journal._look()
    assert told.lines() == [], "a second later nothing is new"
    told.status(Phase.LOADING, 103.0)
    told.journal._look()
    assert len(told.lines()) == 1
    told.status(Phase.READY, 103.5, port=8000)
    told.journal._look()
    assert [line["status"]["phase"] for line in told.lines()] == ["ready"]
    told.status(Phase.READY, 108.0, port=8000, metrics=EngineMetrics(running=1))
    told.journal._look()
    assert told.lines() == [], "a ready replica speaks every ten seconds"
    log.say("two")
    told.status(Phase.STOPPED, 109.0, port=8000)
    assert (last := told.journal.finish())
    assert last.phase is Phase.STOPPED
    assert [line.get("text") or line["status"]["phase"] for line in told.lines()] == ["two", "stopped"]


def test_nobody_who_reads_is_no_reason_to_end(tmp_path: Path) -> None:
    told = Told(tmp_path)
    os.close(told.read)
    told.status(Phase.LOADING, 100.0)
    told.journal._look()
    assert told.journal.finish()
