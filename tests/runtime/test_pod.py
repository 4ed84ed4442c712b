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
from uuid import uuid4

import msgspec
import pytest

from berth_runtime.leader import Leader
from berth_runtime.log import ReplicaLog
from berth_runtime.pod import Journal
from berth_runtime.spec import EngineMetrics, Phase, PhaseTiming, ReplicaStatus
from tests.runtime.agents import SECRET, a_spec, environment, eventually, file_of, model_file
from tests.runtime.engine_programs import program
from tests.runtime.test_statusport import free_port

ADDRESS = "127.83.7.9"


class Pod:
    """`python -m berth_runtime.pod`, with folders where a pod has mounts."""

    def __init__(
        self,
        folder: Path,
        more: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
        address: str = ADDRESS,
        status_port: int = 0,
        **changes: Any,
    ) -> None:
        folder.mkdir(exist_ok=True)
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
        self.status_port = status_port or free_port()
        arguments = {
            "spec": folder / "spec.json",
            "token": folder / "secret",
            "state": folder / "state",
            "models": folder / "models",
            "host": address,
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
                    *more,
                ],
                env=environment() | (env or {}),
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


# Nodes of one replica


FOLLOWS = """
import json, signal, sys, time
open({told!r}, "w").write(json.dumps(sys.argv[1:]))
end = []
signal.signal(signal.SIGTERM, lambda *_: end.append(1))
while not end and not __import__("os").path.exists({over!r}):
    time.sleep(0.05)
"""


@pytest.fixture
def following(tmp_path: Path, pods: list[Pod]) -> Pod:
    """The second of two pods of a replica, with a stand-in for vLLM that runs until it is told or a file says that all is over."""
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"weights")
    file = msgspec.structs.replace(file_of(weights), name=weights.name)
    (tmp_path / "bin").mkdir()
    told, over = str(tmp_path / "told"), str(tmp_path / "over")
    engine = program(tmp_path / "bin" / "vllm", FOLLOWS.format(told=told, over=over))
    pod = Pod(
        tmp_path,
        more=("--nodes=2", "--node-rank=1", "--leader=r-one-0.r-one-0.berth-runtime"),
        env={"BERTH_VLLM": str(engine)},
        files=(file,),
        engine="vllm",
        model_format="safetensors",
        pipeline_parallel=2,
        drain_seconds=60,
    )
    pods.append(pod)
    eventually(lambda: "ready" in pod.phases(), "its engine runs")
    eventually(lambda: Path(told).exists() and Path(told).read_text(), "the engine was told")
    return pod


def test_a_node_that_follows_runs_the_engine_without_serving_anybody(following: Pod, tmp_path: Path) -> None:
    argv = json.loads((tmp_path / "told").read_text())
    said = dict(zip(argv, [*argv[1:], ""], strict=True))
    assert argv[0] == "serve"
    assert "--headless" in argv
    assert "--uds" not in argv
    assert (said["--nnodes"], said["--node-rank"]) == ("2", "1")
    assert (said["--master-addr"], said["--master-port"]) == ("r-one-0.r-one-0.berth-runtime", "29501")
    assert said["--distributed-executor-backend"] == "mp"
    status = next(line["status"] for line in reversed(following.told()) if "status" in line)
    assert status["port"] is None
    following.process.send_signal(signal.SIGTERM)
    eventually(lambda: "draining" in following.phases(), "it waits for the first node")
    assert following.process.poll() is None, "what runs there still needs it"
    (tmp_path / "over").touch()
    assert following.process.wait(timeout=60) == 0
    assert following.phases()[-1] == "stopped"


def test_a_node_that_follows_fails_with_its_engine(following: Pod, tmp_path: Path) -> None:
    (tmp_path / "over").touch()
    assert following.process.wait(timeout=60) == 1
    assert (following.last_word()["phase"], following.last_word()["reason"]) == ("failed", "engine_exited")


def group(folder: Path, port: int, rank: int, env: dict[str, str], **changes: Any) -> Pod:
    """One of three nodes, each with an address of its own, as pods have."""
    weights = folder / "model.safetensors"
    weights.write_bytes(b"weights")
    return Pod(
        folder / f"{rank}-{uuid4().hex[:6]}",
        more=("--nodes=3", f"--node-rank={rank}", "--leader=127.83.8.10"),
        env=env,
        address=f"127.83.8.1{rank}",
        status_port=port,
        files=(msgspec.structs.replace(file_of(weights), name=weights.name),),
        engine="vllm",
        model_format="safetensors",
        tensor_parallel=3,
        drain_seconds=60,
        **changes,
    )


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """With a stand-in for vLLM that runs until it is told, or a file says that all is over."""
    (tmp_path / "bin").mkdir()
    content = FOLLOWS.format(told=str(tmp_path / "told"), over=str(tmp_path / "over"))
    return {"BERTH_VLLM": str(program(tmp_path / "bin" / "vllm", content))}


@pytest.fixture
def three(tmp_path: Path, pods: list[Pod], env: dict[str, str]) -> list[Pod]:
    port = free_port()
    pods += [group(tmp_path, port, rank, env) for rank in range(3)]
    eventually(lambda: "loading" in pods[0].phases(), "the first one's engine starts")
    eventually(lambda: all("ready" in pod.phases() for pod in pods[1:]), "the others' engines run")
    eventually(lambda: all("first node answers" in pod.out.read_text() for pod in pods[1:]), "they have seen the first")
    return pods


def test_who_follows_ends_with_the_first_node_and_the_group_comes_back_whole(
    tmp_path: Path, three: list[Pod], env: dict[str, str]
) -> None:
    first, *others = list(three)
    first.process.kill()
    for pod in others:
        assert pod.process.wait(timeout=60) == 1
        assert (pod.last_word()["phase"], pod.last_word()["reason"]) == ("failed", "leader_lost")
    again = [group(tmp_path, first.status_port, rank, env) for rank in range(3)]
    three += again
    eventually(lambda: all("ready" in pod.phases() for pod in again[1:]), "the group is whole again")
    assert all(pod.process.poll() is None for pod in again)


def test_a_first_node_that_was_started_again_is_another_one(
    tmp_path: Path, three: list[Pod], env: dict[str, str]
) -> None:
    """Faster than anybody could notice that it was away."""
    first, *others = list(three)
    first.process.kill()
    first.process.wait()
    three.append(group(tmp_path, first.status_port, 0, env))
    for pod in others:
        assert pod.process.wait(timeout=60) == 1
        assert pod.last_word()["reason"] == "leader_lost"


def test_who_follows_stays_no_longer_than_it_is_needed(three: list[Pod]) -> None:
    """All are asked to end at once, as when their group is deleted."""
    first, *others = three
    for pod in others:
        pod.process.send_signal(signal.SIGTERM)
    eventually(lambda: all("draining" in pod.phases() for pod in others), "they wait for the first node")
    first.process.send_signal(signal.SIGTERM)
    assert first.process.wait(timeout=60) == 0
    for pod in others:  # whose drain time is a minute
        assert pod.process.wait(timeout=45) == 0
        assert pod.phases()[-1] == "stopped"


def test_an_engine_of_several_nodes_is_not_started_again_alone(
    tmp_path: Path, pods: list[Pod], env: dict[str, str]
) -> None:
    pods.append(group(tmp_path, free_port(), 1, env, restarts=3))
    eventually(lambda: "ready" in pods[0].phases(), "its engine runs")
    (tmp_path / "over").touch()
    assert pods[0].process.wait(timeout=60) == 1
    assert pods[0].last_word()["reason"] == "engine_exited"


def test_a_first_node_that_never_comes_is_not_waited_for_forever(
    tmp_path: Path, pods: list[Pod], env: dict[str, str]
) -> None:
    pods.append(group(tmp_path, free_port(), 1, env, start_deadline_seconds=5))
    assert pods[0].process.wait(timeout=60) == 1
    assert pods[0].last_word()["reason"] in ("leader_lost", "start_timeout")


class Asked(Leader):
    """Whom a script answers for."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__("nowhere", 1, clock=lambda: self.now)
        self.answer: str | OSError = "a"

    def _ask(self) -> str | None:
        if isinstance(self.answer, OSError):
            raise self.answer
        return self.answer


def test_a_hitch_of_the_network_ends_nobody() -> None:
    leader = Asked()
    leader.look()
    leader.answer = TimeoutError()
    for seconds in (0, 20, 29):
        leader.now = seconds
        leader.look()
    assert leader.lost is None
    leader.answer = "a"
    leader.look()
    leader.answer = TimeoutError()
    for seconds in (30, 59):
        leader.now = seconds
        leader.look()
    assert leader.lost is None, "the silence is counted anew"
    leader.now = 60
    leader.look()
    assert leader.lost is not None


def test_before_it_was_seen_nothing_is_concluded() -> None:
    leader = Asked()
    leader.answer = ConnectionRefusedError()
    for seconds in range(100):
        leader.now = seconds
        leader.look()
    assert (leader.seen, leader.lost) == (False, None)


@pytest.mark.parametrize("leader", ["-x", "a b", "a;b", "--master-port=1"])
def test_a_leader_that_is_no_name_is_refused(tmp_path: Path, pods: list[Pod], leader: str) -> None:
    pod = Pod(tmp_path, more=("--nodes=2", "--node-rank=1", f"--leader={leader}"), engine="vllm")
    pods.append(pod)
    assert pod.process.wait(timeout=60) == 2
    assert pod.last_word()["reason"] == "bad_spec"
