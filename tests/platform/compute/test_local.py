"""Replicas of this machine, with the real runtime, the real engine and the real small model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from berth.compute.launch import LaunchSpec, ModelFile, Phase
from berth.compute.provider import (
    NoCapacity,
    ObservedReplica,
    Provider,
    ProviderError,
    ProviderUnavailable,
)
from berth.compute.providers import local
from berth.compute.providers.folder import ReplicaFolder
from berth.compute.providers.local import LocalProvider
from tests.platform.compute.provider_contract import SECRET, ProviderContract, a_spec, one
from tests.runtime.agents import call, eventually, gone, model_file
from tests.runtime.object_store import Store

ROOT = Path(__file__).resolve().parents[3]
ENVIRON = {"PATH": os.environ["PATH"], "BERTH_LLAMA_SERVER": "bundled", "DATABASE_URL": "postgresql://secret"}


def make(home: Path, **options: Any) -> LocalProvider:
    return LocalProvider(
        home, python=Path(sys.executable), python_path=(ROOT / "runtime",), **{"environ": ENVIRON, **options}
    )


def agent_of(home: Path, spec: LaunchSpec) -> psutil.Process:
    return psutil.Process(json.loads((home / "replicas" / spec.replica / "status.json").read_text())["pid"])


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """BERTH_HOME; what was started below it is ended when the test ends."""
    yield tmp_path
    for status in tmp_path.glob("replicas/*/status.json"):
        told = json.loads(status.read_text())
        if psutil.pid_exists(told["pid"]):
            process = psutil.Process(told["pid"])
            if abs(process.create_time() - told["pid_created_at"]) < 2:
                process.kill()  # its engine ends with it
                eventually(lambda process=process: gone(process.pid), "the agent is gone")


@pytest.fixture
def provider(home: Path) -> LocalProvider:
    return make(home)


@pytest.fixture
def spec() -> LaunchSpec:
    file = model_file()
    return a_spec(ModelFile(file.path, file.role, file.size, file.sha256))


class TestLocalProvider(ProviderContract):
    def until(self, provider: Provider, holds: Callable[[], Any], what: str) -> Any:
        return eventually(holds, what)

    def kill(self, provider: Provider, replica: ObservedReplica) -> None:
        assert isinstance(provider, LocalProvider)
        agent_of(provider._root.parent, a_spec(ModelFile("", "", 0, ""), replica=replica.name)).kill()

    def test_another_worker_finds_and_stops_what_this_one_started(
        self, home: Path, provider: LocalProvider, spec: LaunchSpec
    ) -> None:
        before = self.ready(provider, spec)
        other = make(home)
        adopted = one(other, spec)
        assert (adopted.port, adopted.phases, adopted.ready) == (before.port, before.phases, True)
        other.stop(spec.replica, drain_seconds=0)
        eventually(lambda: not one(provider, spec).alive, "it has ended")

    def test_only_the_replica_knows_its_secret_and_its_folder_is_private(
        self, home: Path, provider: LocalProvider, spec: LaunchSpec
    ) -> None:
        replica = self.ready(provider, spec)
        assert replica.port
        assert replica.host == "127.0.0.1"
        assert call(replica.port, "GET", "/v1/models", secret=SECRET)[0] == 200
        assert call(replica.port, "GET", "/v1/models", secret="another")[0] == 401
        folder = home / "replicas" / spec.replica
        assert folder.stat().st_mode & 0o777 == 0o700
        assert all(file.stat().st_mode & 0o077 == 0 for file in folder.iterdir())
        agent = agent_of(home, spec)
        for process in (agent, *agent.children()):
            assert SECRET not in " ".join([*process.cmdline(), *process.environ().values()])
            assert "DATABASE_URL" not in process.environ()


def test_a_replica_outlives_the_worker_that_started_it(home: Path, spec: LaunchSpec) -> None:
    worker = textwrap.dedent(f"""
        import sys, time, msgspec
        from pathlib import Path
        sys.path.insert(0, {str(ROOT / "platform")!r})
        from berth.compute.launch import LaunchSpec
        from berth.compute.providers.local import LocalProvider
        spec = msgspec.json.decode(sys.stdin.buffer.readline(), type=LaunchSpec)
        provider = LocalProvider(
            Path({str(home)!r}), python=Path(sys.executable), python_path=(Path({str(ROOT / "runtime")!r}),)
        )
        provider.start(spec, "x" * 20)
        print("started", flush=True)
        time.sleep(600)
    """)
    with subprocess.Popen([sys.executable, "-c", worker], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin and process.stdout
        process.stdin.write(msgspec.json.encode(spec) + b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"started\n"
        process.send_signal(signal.SIGKILL)
    provider = make(home)
    eventually(lambda: one(provider, spec).ready, "it gets ready without its worker")


def test_replicas_end_when_the_supervisor_is_killed(home: Path, spec: LaunchSpec) -> None:
    lifeline = home / "lifeline"
    holder = (
        "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); print(flush=True); time.sleep(600)"
    )
    second = msgspec.structs.replace(spec, replica="dep-1-3-1-0")
    provider = make(home, lifeline=lifeline)
    with subprocess.Popen([sys.executable, "-c", holder, str(lifeline)], stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout
        supervisor.stdout.readline()
        for each in (spec, second):
            provider.start(each, SECRET)
        eventually(lambda: all(seen.ready for seen in provider.observe("dep-1")), "both are ready")
        processes = [p.pid for each in (spec, second) for p in (agent_of(home, each), *agent_of(home, each).children())]
        assert len(processes) == 4
        supervisor.send_signal(signal.SIGKILL)
    eventually(lambda: all(map(gone, processes)), "every process is gone")
    assert {(seen.phase, seen.reason) for seen in provider.observe("dep-1")} == {(Phase.STOPPED, "supervisor_ended")}


def test_a_replica_that_does_not_end_in_time_is_ended_by_force(
    home: Path, provider: LocalProvider, spec: LaunchSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_GRACE_SECONDS", 0.0)
    provider.start(spec, SECRET)
    eventually(lambda: one(provider, spec).ready, "it is ready")
    agent = agent_of(home, spec)
    engine = agent.children()[0]
    agent.suspend()  # it can do nothing about SIGTERM
    provider.stop(spec.replica, drain_seconds=0)
    eventually(lambda: not one(provider, spec).alive, "it is gone")
    assert one(provider, spec).reason == "stopped_by_force"
    assert one(provider, spec).phase is Phase.STOPPED
    eventually(lambda: gone(engine.pid), "its engine too")


def test_asking_again_to_stop_never_gives_more_time(home: Path, provider: LocalProvider, spec: LaunchSpec) -> None:
    provider.start(spec, SECRET)
    agent_of(home, spec).suspend()
    order = home / "replicas" / spec.replica / "stop.json"
    provider.stop(spec.replica, drain_seconds=100)
    first = json.loads(order.read_text())
    provider.stop(spec.replica, drain_seconds=500)
    assert json.loads(order.read_text()) == pytest.approx(first)
    provider.stop(spec.replica, drain_seconds=1)
    assert json.loads(order.read_text())["drain_seconds"] < 100


def test_another_process_with_the_same_number_is_not_ours(
    home: Path, provider: LocalProvider, spec: LaunchSpec
) -> None:
    provider.start(spec, SECRET)
    agent_of(home, spec).kill()
    eventually(lambda: not one(provider, spec).alive, "it is gone")
    # A thread in the middle of reading the model may outlast its process by a moment, and the lock with it.
    eventually(lambda: not ReplicaFolder(home / "replicas", spec.replica).agent_lock_is_held(), "its lock is free")
    file = home / "replicas" / spec.replica / "status.json"
    told = json.loads(file.read_text())
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as stranger:
        try:
            file.write_text(json.dumps(told | {"pid": stranger.pid, "pid_created_at": told["pid_created_at"] - 60}))
            assert not one(provider, spec).alive
            provider.stop(spec.replica, drain_seconds=0)
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_a_clock_that_was_set_does_not_lose_a_replica(home: Path, provider: LocalProvider, spec: LaunchSpec) -> None:
    provider.start(spec, SECRET)
    agent = agent_of(home, spec)
    agent.suspend()  # so that it does not write the truth again
    file = home / "replicas" / spec.replica / "status.json"
    told = json.loads(file.read_text())
    file.write_text(json.dumps(told | {"pid_created_at": told["pid_created_at"] - 3600}))
    assert one(provider, spec).alive
    file.write_text(json.dumps(told))


def test_a_prepared_replica_that_never_ran_is_stopped(home: Path, provider: LocalProvider, spec: LaunchSpec) -> None:
    folder = home / "replicas" / spec.replica
    folder.mkdir(parents=True)
    (folder / "spec.json").write_bytes(msgspec.json.encode(spec))
    assert (one(provider, spec).phase, one(provider, spec).alive) == (Phase.STOPPED, False)
    provider.forget(spec.replica)
    assert provider.observe_all() == []


def test_a_replica_that_cannot_fit_is_not_started(provider: LocalProvider, spec: LaunchSpec) -> None:
    with pytest.raises(NoCapacity, match="MiB"):
        provider.start(msgspec.structs.replace(spec, memory_limit=1 << 60), SECRET)
    assert provider.observe_all() == []


def test_what_has_to_be_fetched_is_fetched_once_for_all_replicas_of_the_machine(
    home: Path, provider: LocalProvider
) -> None:
    there = model_file()
    store = Store({"/model": Path(there.path).read_bytes()})
    try:
        file = ModelFile("", there.role, there.size, there.sha256, url=store.url("/model"))
        for number in range(2):
            replica = a_spec(file, replica=f"fetching-{number}")
            provider.start(replica, SECRET)
            eventually(lambda replica=replica: one(provider, replica).ready, "it is ready", seconds=240)
        assert set(store.served.values()) == {1}
        assert [path.name for path in (home / "cache").iterdir() if not path.suffix] == [there.sha256]
        assert (home / "cache").stat().st_mode & 0o777 == 0o700
    finally:
        store.close()


def test_what_is_in_a_folder_is_read_there(home: Path, provider: LocalProvider, spec: LaunchSpec) -> None:
    provider.start(spec, SECRET)
    eventually(lambda: one(provider, spec).ready, "it is ready")
    assert not (home / "cache").exists()


def test_what_the_runtime_refuses_is_said(provider: LocalProvider, spec: LaunchSpec) -> None:
    with pytest.raises(ProviderError, match="slots must be between"):
        provider.start(msgspec.structs.replace(spec, slots=0), SECRET)


@pytest.mark.threat("M9")
@pytest.mark.parametrize("name", ["../x", "/etc", "", ".", "a/b", "-x", "a\nb"])
def test_names_that_lead_elsewhere_are_refused(provider: LocalProvider, spec: LaunchSpec, name: str) -> None:
    for act in (
        lambda: provider.start(msgspec.structs.replace(spec, replica=name), SECRET),
        lambda: provider.stop(name, drain_seconds=0),
        lambda: provider.forget(name),
        lambda: provider.logs(name),
    ):
        with pytest.raises(ProviderError, match="name"):
            act()


def test_a_runtime_or_folder_that_is_not_there_is_said(tmp_path: Path, spec: LaunchSpec) -> None:
    with pytest.raises(ProviderUnavailable, match="runtime"):
        LocalProvider(tmp_path, python=Path("/nonexistent/python"), environ=ENVIRON).start(spec, SECRET)
    (tmp_path / "file").touch()
    with pytest.raises(ProviderUnavailable, match="BERTH_HOME"):
        make(tmp_path / "file").start(spec, SECRET)
