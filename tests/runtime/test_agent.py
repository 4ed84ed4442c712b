"""A replica's life, with the real engine: how it starts, how it fails, how it ends."""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import signal
from pathlib import Path

import msgspec
import psutil
import pytest

from berth_runtime.spec import LaunchSpec, Phase, ReplicaStatus
from tests.runtime import llama_server
from tests.runtime.agents import (
    SECRET,
    Agent,
    a_spec,
    call,
    eventually,
    file_of,
    gone,
    log_of,
    model_file,
    run,
    status_of,
    stop,
)
from tests.runtime.engine_contract import open_stream


def texts(spec: LaunchSpec) -> list[str]:
    return [line["text"] for line in log_of(spec) if "text" in line]


def finished(agent: Agent, phase: Phase) -> ReplicaStatus:
    """The final status, when the agent and its engine are gone."""
    status = agent.wait(phase)
    agent.process.wait(30)
    return status


def test_the_same_replica_twice_is_harmless(tmp_path: Path) -> None:
    spec = a_spec(tmp_path)
    with Agent(spec) as agent:
        first = agent.ready()
        with run("serve", spec) as second:
            _, said = second.communicate()
        assert second.returncode == 0
        assert b"running already" in said
        with run("launch", spec) as third:
            third.communicate()
        assert third.returncode == 0
        assert agent.ready().pid == first.pid
        assert agent.process.poll() is None


@pytest.mark.threat("M7")
def test_a_flipped_byte_keeps_the_engine_from_starting(tmp_path: Path) -> None:
    copy = tmp_path / "model.gguf"
    content = bytearray(Path(model_file().path).read_bytes())
    content[-1] ^= 1
    copy.write_bytes(content)
    spec = a_spec(tmp_path, files=(msgspec.structs.replace(model_file(), path=str(copy)),))
    with Agent(spec) as agent:
        status = finished(agent, Phase.FAILED)
    assert status.reason == "checksum_mismatch"
    assert [timing.phase for timing in status.phases] == [Phase.VERIFYING, Phase.FAILED]
    assert agent.process.returncode == 1
    assert not any("starting the engine" in text for text in texts(spec))


def test_a_killed_engine_is_a_failure_with_a_reason(tmp_path: Path) -> None:
    with Agent(a_spec(tmp_path)) as agent:
        agent.ready()
        agent.engine().send_signal(signal.SIGKILL)
        status = finished(agent, Phase.FAILED)
    assert status.reason == "engine_exited"
    assert status.message == "The engine was ended by signal 9 while the replica was ready."


@pytest.mark.threat("G5")
def test_a_request_that_crashes_the_engine_is_a_failure_without_its_text(tmp_path: Path) -> None:
    with Agent(a_spec(tmp_path)) as agent:
        port = agent.ready().port
        assert port
        with pytest.raises((OSError, http.client.HTTPException)):
            call(port, "POST", "/v1/completions", {"prompt": "x", "grammar": "root ::= " + "(" * 60_000})
        status = finished(agent, Phase.FAILED)
    assert status.reason == "engine_exited"
    assert status.message == "The engine was ended by signal 11 while the replica was ready."
    assert not any("((((" in text for text in texts(agent.spec))
    assert not list(tmp_path.rglob("core*"))


def test_a_folder_that_cannot_be_written_does_not_end_a_replica(tmp_path: Path) -> None:
    spec = a_spec(tmp_path)
    with Agent(spec) as agent:
        port = agent.ready().port
        assert port
        moved = tmp_path / "moved"
        Path(spec.state_dir).rename(moved)  # every write fails from now on
        told = (moved / "status.json").stat().st_mtime_ns
        streamed = open_stream(port, tokens=40)
        assert streamed[1].read().endswith(b"[DONE]\n\n")
        moved.rename(spec.state_dir)
        eventually(lambda: (moved.parent / "state" / "status.json").stat().st_mtime_ns > told, "it tells again")
        assert agent.ready().port == port


def test_a_killed_agent_leaves_no_engine(tmp_path: Path) -> None:
    with Agent(a_spec(tmp_path)) as agent:
        agent.ready()
        engine = agent.engine()
        agent.process.send_signal(signal.SIGKILL)
        eventually(lambda: gone(engine.pid), "the engine is gone")


def test_drain_waits_for_what_runs(tmp_path: Path) -> None:
    with Agent(a_spec(tmp_path)) as agent:
        port = agent.ready().port
        assert port
        connection, answer = open_stream(port, tokens=80)
        stop(agent.process.pid)
        agent.wait(Phase.DRAINING)
        rest = answer.read()
        connection.close()
        assert rest.endswith(b"data: [DONE]\n\n")
        assert rest.count(b"data: ") >= 80
        status = finished(agent, Phase.STOPPED)
    assert (status.reason, agent.process.returncode) == (None, 0)


@pytest.mark.parametrize("by", ["spec", "order"])
def test_drain_ends_when_its_time_is_over(tmp_path: Path, by: str) -> None:
    spec = a_spec(tmp_path, drain_seconds=0 if by == "spec" else 3600, context_length=4096)
    with Agent(spec) as agent:
        port = agent.ready().port
        assert port
        connection, answer = open_stream(port, tokens=4000)
        if by == "order":
            (Path(spec.state_dir) / "stop.json").write_text('{"drain_seconds": 0.2, "asked_at": 1}')
        stop(agent.process.pid)
        finished(agent, Phase.STOPPED)
        with pytest.raises(Exception, match=r"IncompleteRead|reset"):
            answer.read()
        connection.close()


@pytest.mark.parametrize("phase", [Phase.VERIFYING, Phase.LOADING])
def test_a_replica_can_be_stopped_on_its_way(tmp_path: Path, phase: Phase) -> None:
    """Stopped before its engine listens: there is nothing to drain."""
    sleeper = llama_server.make(tmp_path / "llama-server", "import time; time.sleep(600)")
    weights = tmp_path / "model.gguf"
    weights.touch()
    os.truncate(weights, 40 << 30 if phase is Phase.VERIFYING else 10)  # a hole: it takes no space, only time to read
    file = msgspec.structs.replace(model_file(), path=str(weights), size=weights.stat().st_size)
    if phase is Phase.LOADING:
        file = file_of(weights)
    with Agent(a_spec(tmp_path, files=(file,)), BERTH_LLAMA_SERVER=str(sleeper)) as agent:
        agent.wait(phase)
        stop(agent.process.pid)
        status = finished(agent, Phase.STOPPED)
    assert Phase.READY not in [timing.phase for timing in status.phases]


def test_an_engine_that_never_answers_is_given_up(tmp_path: Path) -> None:
    sleeper = llama_server.make(tmp_path / "llama-server", "import time; time.sleep(600)")
    with Agent(a_spec(tmp_path, start_deadline_seconds=1), BERTH_LLAMA_SERVER=str(sleeper)) as agent:
        status = finished(agent, Phase.FAILED)
    assert status.reason == "start_timeout"
    assert status.message and "1 seconds" in status.message and "loading" in status.message


@pytest.mark.threat("E2")
def test_an_engine_that_opens_another_port_is_not_used(tmp_path: Path) -> None:
    with Agent(
        a_spec(tmp_path), BERTH_LLAMA_SERVER=str(llama_server.make_talkative(tmp_path / "llama-server"))
    ) as agent:
        status = finished(agent, Phase.FAILED)
    assert status.reason == "unexpected_port"


@pytest.mark.threat("E5")
def test_an_engine_that_wants_too_much_memory_fails_with_the_reason(tmp_path: Path) -> None:
    spec = a_spec(tmp_path, context_length=8192, slots=64, memory_limit=200 << 20)
    with Agent(spec) as agent:
        status = finished(agent, Phase.FAILED)
    assert status.reason == "out_of_memory"
    assert status.message and "memory" in status.message


@pytest.mark.threat("E5")
def test_an_engine_within_its_memory_works_whatever_its_file_is_called(tmp_path: Path) -> None:
    stored = tmp_path / model_file().sha256  # as the store names files
    stored.symlink_to(model_file().path)
    file = msgspec.structs.replace(model_file(), path=str(stored))
    with Agent(a_spec(tmp_path, files=(file,), memory_limit=400 << 20)) as agent:
        agent.ready()


def test_a_file_that_is_no_model_fails_with_the_reason(tmp_path: Path) -> None:
    weights = tmp_path / "model.gguf"
    weights.write_bytes(b"not a model at all")
    with Agent(a_spec(tmp_path, files=(file_of(weights),))) as agent:
        status = finished(agent, Phase.FAILED)
    assert status.reason == "model_unreadable"


def test_a_context_beyond_the_model_fails_instead_of_being_cut(tmp_path: Path) -> None:
    with Agent(a_spec(tmp_path, context_length=8448, slots=1)) as agent:
        status = finished(agent, Phase.FAILED)
    assert status.reason == "settings_not_effective"
    assert status.message and "8192 tokens of context instead of 8448" in status.message


def test_a_living_replica_keeps_saying_so(tmp_path: Path) -> None:
    with Agent(a_spec(tmp_path)) as agent:
        first = agent.ready()
        beats = [first.updated_at]

        def beat() -> bool:
            status = agent.ready()
            if status.updated_at > beats[-1]:
                beats.append(status.updated_at)
            return len(beats) > 3

        eventually(beat, "three more beats")
        process = psutil.Process(agent.process.pid)
        assert first.pid == process.pid
        assert abs(first.pid_created_at - process.create_time()) < 1


def test_files_of_a_replica_are_its_owners_only(tmp_path: Path) -> None:
    spec = a_spec(tmp_path)
    with Agent(spec) as agent:
        agent.ready()
        written = list(Path(spec.state_dir).iterdir())
        assert {"status.json", "log.jsonl", "lock", "verified.json"} <= {file.name for file in written}
        assert all(file.stat().st_mode & 0o077 == 0 for file in written)
        assert not any(SECRET.encode() in file.read_bytes() for file in written if file.is_file())


def test_a_restart_begins_anew_in_the_same_folder(tmp_path: Path) -> None:
    spec = a_spec(tmp_path)
    with Agent(spec) as agent:
        agent.ready()
        stop(agent.process.pid)
        finished(agent, Phase.STOPPED)
    lines = len(log_of(spec))
    with Agent(spec) as again:
        eventually(lambda: (status := again.status()) and status.pid == again.process.pid, "it tells of the new run")
        assert again.ready().reason is None
    numbers = [line["n"] for line in log_of(spec)]
    assert len(numbers) > lines
    assert numbers == list(range(1, len(numbers) + 1))


class TestLifeline:
    def test_the_replica_ends_with_its_supervisor(self, tmp_path: Path) -> None:
        lifeline = tmp_path / "lifeline"
        with lifeline.open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with Agent(a_spec(tmp_path, lifeline=str(lifeline), drain_seconds=3600)) as agent:
                agent.ready()
                engine = agent.engine()
                fcntl.flock(held, fcntl.LOCK_UN)
                status = finished(agent, Phase.STOPPED)
                assert status.reason == "supervisor_ended"
                assert gone(engine.pid)
            # The next supervisor gets it without waiting for anybody.
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)

    @pytest.mark.parametrize("there", [True, False])
    def test_without_a_supervisor_nothing_starts(self, tmp_path: Path, there: bool) -> None:
        lifeline = tmp_path / "lifeline"
        if there:
            lifeline.touch()
        with Agent(a_spec(tmp_path, lifeline=str(lifeline))) as agent:
            assert finished(agent, Phase.STOPPED).reason == "supervisor_ended"


class TestLaunch:
    def test_it_is_nobodys_child_and_outlives_its_starter(self, tmp_path: Path) -> None:
        spec = a_spec(tmp_path)
        with run("launch", spec) as starter:
            starter.communicate()  # returns: nothing holds its output open
        assert starter.returncode == 0
        status = status_of(spec)
        assert status is not None
        agent = psutil.Process(status.pid)
        try:
            assert starter.pid not in (agent.pid, agent.ppid())
            assert os.getsid(agent.pid) not in (os.getsid(0), starter.pid)
            assert agent.cwd() == "/"
            assert {str(Path(f"/proc/{agent.pid}/fd/{number}").readlink()) for number in (0, 1, 2)} == {"/dev/null"}
            eventually(lambda: (now := status_of(spec)) and now.phase is Phase.READY, "it gets ready all the same")
            stop(agent.pid)
            eventually(lambda: gone(agent.pid), "it ends as asked")
            assert json.loads((Path(spec.state_dir) / "status.json").read_text())["phase"] == "stopped"
        finally:
            if agent.is_running():
                agent.kill()

    def test_a_bad_spec_is_told_to_the_caller(self, tmp_path: Path) -> None:
        with run("launch", a_spec(tmp_path, slots=0)) as starter:
            _, said = starter.communicate()
        assert starter.returncode == 2
        assert b"slots must be between" in said


class TestHangAndRestart:
    def test_an_engine_that_hangs_is_a_failure(self, tmp_path: Path) -> None:
        with Agent(a_spec(tmp_path, liveness_seconds=2)) as agent:
            agent.ready()
            engine = agent.engine()
            engine.suspend()
            status = finished(agent, Phase.FAILED)
            assert gone(engine.pid)
        assert status.reason == "engine_hung"
        assert status.message and "has not answered for 2 seconds" in status.message

    def test_an_idle_engine_is_not_taken_for_one_that_hangs(self, tmp_path: Path) -> None:
        with Agent(a_spec(tmp_path, liveness_seconds=3)) as agent:
            since = agent.ready().updated_at
            eventually(lambda: agent.ready().updated_at > since + 4, "it stays ready")

    def test_a_fallen_engine_is_started_again_as_often_as_granted(self, tmp_path: Path) -> None:
        with Agent(a_spec(tmp_path, restarts=1)) as agent:
            agent.ready()
            first = agent.engine()
            first.kill()
            eventually(lambda: gone(first.pid), "the old engine is gone")

            def again() -> ReplicaStatus | None:
                status = agent.status()
                return status if status and [t.phase for t in status.phases].count(Phase.READY) == 2 else None

            status = eventually(again, "it gets ready again")
            assert (status.phase, status.reason, status.message) == (Phase.READY, None, None)
            assert call(status.port, "POST", "/v1/completions", {"prompt": "1", "max_tokens": 1})[0] == 200
            loading = [timing for timing in status.phases if timing.phase is Phase.LOADING]
            assert len(loading) == 2  # the pause counts as loading
            agent.engine().kill()
            status = finished(agent, Phase.FAILED)
        assert status.reason == "engine_exited"
        assert any("for the 2. time" in text for text in texts(agent.spec))

    def test_a_stop_ends_the_wait_for_a_restart(self, tmp_path: Path) -> None:
        with Agent(a_spec(tmp_path, restarts=1)) as agent:
            agent.ready()
            agent.engine().kill()
            eventually(lambda: (now := agent.status()) and now.phase is Phase.LOADING and now.reason, "it waits")
            assert agent.status() and agent.status().port is None  # type: ignore[union-attr]
            stop(agent.process.pid)
            finished(agent, Phase.STOPPED)
