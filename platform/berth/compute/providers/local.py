"""Replicas as processes of this machine, each with a folder. Nothing is kept in memory: a new worker finds them all."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Final

import msgspec
import psutil

from berth.compute.launch import LaunchSpec, Phase, ReplicaStatus
from berth.compute.provider import (
    Capacity,
    HardwareKind,
    LogPage,
    NoCapacity,
    ObservedReplica,
    Offer,
    ProviderError,
    ProviderUnavailable,
)
from berth.compute.providers import machine
from berth.compute.providers.cgroups import Cgroups
from berth.compute.providers.folder import ReplicaFolder, StopOrder, folders
from berth.compute.providers.gpus import discover, gpu_offers
from berth.compute.providers.processes import ask_to_end, end_session, runs, started_at

TIER: Final = "cpu-local"
_LAUNCH_SECONDS: Final = 30
_GRACE_SECONDS: Final = 15.0  # beyond the drain time, for the engine to end
_LAST_SECONDS: Final = 5.0
_BAD_SPEC: Final = 2  # exit status of the runtime
# Settings of the runtime, and which devices it may use. Nothing else of the control plane reaches a replica.
_PASSED_ON: Final = (
    *("PATH", "LANG", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
    *("BERTH_LLAMA_SERVER", "BERTH_VLLM", "BERTH_TRTLLM_SERVE", "BERTH_OLLAMA", "BERTH_REFERENCE_PYTHON"),
)
_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
_ABANDONED_SECONDS: Final = 600.0
_AGENT_LOST: Final = "The replica's process ended without saying why. The machine may be short of memory."


class LocalProvider:
    """See `Provider`."""

    name = "local"

    def __init__(
        self,
        home: Path,
        *,
        python: Path,
        python_path: tuple[Path, ...] = (),
        lifeline: Path | None = None,
        price_per_hour: Decimal | None = None,
        environ: Mapping[str, str] = os.environ,
        cgroup: Path | None = None,
        region: str | None = None,
    ) -> None:
        """`python` with `python_path` finds the runtime; `lifeline`, where it exists, bounds the life of every replica; `cgroup` is a
        control group of our own, in which replicas are limited."""
        self._environ = environ
        self._region = region
        self._cgroups = Cgroups.at(cgroup)
        self._root = home / "replicas"
        self._python = python
        self._lifeline = lifeline
        self._price = price_per_hour
        self._environment = {name: environ[name] for name in _PASSED_ON if name in environ}
        if python_path:
            self._environment["PYTHONPATH"] = os.pathsep.join(map(str, python_path))

    def offers(self) -> list[Offer]:
        return [
            *gpu_offers(discover(self._environ), self._devices_in_use(), machine.cores(), self._region),
            Offer(
                key=TIER,
                kind=HardwareKind.CPU,
                cores=machine.cores(),
                memory_bytes=machine.memory(),
                free_memory_bytes=machine.free_memory(),
                memory_bandwidth=machine.memory_bandwidth(),
                price_per_hour=self._price,
                region=self._region,
            ),
        ]

    def _devices_in_use(self) -> set[str]:
        specs = (folder.spec() for folder in folders(self._root) if self._agent(folder, folder.status()))
        return {device for spec in specs if spec for device in spec.devices}

    def capacity(self) -> Capacity:
        return Capacity(
            cores=machine.cores(),
            memory_bytes=machine.memory(),
            free_memory_bytes=machine.free_memory(),
            replicas=sum(replica.alive for replica in self.observe_all()),
        )

    def start(self, spec: LaunchSpec, secret: str) -> None:
        folder = ReplicaFolder(self._root, spec.replica)
        try:
            with folder.starting():
                alive = self._alive_after_any_end(folder)
                if not alive:
                    self._require_room(spec)
                if not alive or folder.spec() is None:  # a replica whose spec was lost is seen by nobody
                    folder.prepare(self._completed(spec, folder), secret)
                if not alive:
                    self._launch(folder, spec)
        except OSError as error:
            raise ProviderUnavailable(
                f"The folder {self._root} cannot be used ({error.strerror}). Check BERTH_HOME and the free disk space."
            ) from error

    def renew(self, spec: LaunchSpec, secret: str) -> None:
        """Nothing: a replica here begins when it is started."""

    def observe(self, deployment_id: str) -> list[ObservedReplica]:
        return [replica for replica in self._observed() if replica.deployment_id == deployment_id]

    def observe_all(self) -> list[ObservedReplica]:
        self._sweep()
        return list(self._observed())

    def _sweep(self) -> None:
        """Removes folders that say of no replica what it is, once nobody can be at work in them any more."""
        for folder in folders(self._root):
            if folder.spec() is None and folder.idle_seconds() > _ABANDONED_SECONDS:
                self.forget(folder.name)

    def stop(self, replica: str, *, drain_seconds: int) -> None:
        folder = ReplicaFolder(self._root, replica)
        agent = self._agent(folder, folder.status())
        if agent is None:
            return
        now = time.time()
        order = StopOrder(drain_seconds, now)
        before = folder.stop_order()
        if before:  # asking again never gives more time, but may give less
            order = StopOrder(min(before.deadline, order.deadline) - before.asked_at, before.asked_at)
        folder.order_stop(order)
        if before and now > order.deadline + _GRACE_SECONDS:
            end_session(agent)
        else:
            ask_to_end(agent)

    def forget(self, replica: str) -> None:
        folder = ReplicaFolder(self._root, replica)
        if folder.exists():
            with folder.starting():
                if self._agent(folder, folder.status()) is None and not folder.agent_lock_is_held():
                    folder.remove()
                    if self._cgroups:
                        self._cgroups.end(replica)

    def logs(self, replica: str, after: int = 0, limit: int = 200) -> LogPage:
        lines = [line for line in ReplicaFolder(self._root, replica).log() if line.number > after]
        page = tuple(lines[: max(limit, 0)])
        return LogPage(page, page[-1].number if page else after, more=len(lines) > len(page))

    def _alive_after_any_end(self, folder: ReplicaFolder) -> bool:
        """Whether the replica runs. One that has said its last word gets the moment it needs to be gone."""
        status = folder.status()
        agent = self._agent(folder, status)
        if agent is None or status is None or not status.phase.final:
            return agent is not None
        with suppress(psutil.TimeoutExpired):
            agent.wait(_LAST_SECONDS)
            return False
        raise ProviderUnavailable("The replica is still ending. Try again in a moment.")

    def _completed(self, spec: LaunchSpec, folder: ReplicaFolder) -> LaunchSpec:
        """With what is ours to say: where its files are, under which lifeline, and that it listens on loopback only. What has to be fetched
        lies in one place for all replicas of this machine; what the store has in a folder is read there."""
        lifeline = str(self._lifeline) if self._lifeline and self._lifeline.exists() else None
        return msgspec.structs.replace(
            spec,
            secret_file=str(folder.secret_file),
            state_dir=str(folder.path),
            lifeline=lifeline,
            cache_dir=str(self._root.parent / "cache"),
            host="127.0.0.1",
            port=0,
        )

    def _require_room(self, spec: LaunchSpec) -> None:
        if spec.devices:  # its memory is that of its devices, which are its own
            return
        needed = max(sum(file.size for file in spec.files), spec.memory_limit or 0)
        free = machine.free_memory()
        if needed > free:
            raise NoCapacity(
                f"The replica needs {needed >> 20} MiB of memory and this machine has {free >> 20} MiB free. "
                "Stop another deployment or choose a smaller model."
            )

    def _launch(self, folder: ReplicaFolder, spec: LaunchSpec) -> None:
        command = [str(self._python), "-m", "berth_runtime", "launch", str(folder.spec_file)]
        if self._cgroups:
            command = self._cgroups.enter(spec, command)
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=self._environment | self._devices_of(spec),
                cwd="/",
                timeout=_LAUNCH_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ProviderUnavailable(f"The runtime cannot be started ({type(error).__name__}).") from error
        if done.returncode == 0:
            return
        if done.returncode == _BAD_SPEC:
            raise ProviderError(done.stderr.decode("utf-8", "replace").strip()[:400])
        raise ProviderUnavailable(f"The runtime could not start a replica (exit status {done.returncode}).")

    def _devices_of(self, spec: LaunchSpec) -> dict[str, str]:
        """A replica sees its own devices, and one without any sees none."""
        if spec.devices:
            return {_VISIBLE: ",".join(spec.devices)}
        return {_VISIBLE: ""} if discover(self._environ) else {}

    def _observed(self) -> Iterator[ObservedReplica]:
        for folder in folders(self._root):
            spec = folder.spec()
            if spec:
                self._enforce_stop(folder)
                yield self._observe(folder, spec)

    def _enforce_stop(self, folder: ReplicaFolder) -> None:
        order = folder.stop_order()
        if order and time.time() > order.deadline + _GRACE_SECONDS:
            agent = self._agent(folder, folder.status())
            if agent:
                end_session(agent)

    def _observe(self, folder: ReplicaFolder, spec: LaunchSpec) -> ObservedReplica:
        status = folder.status()
        alive = self._agent(folder, status) is not None
        if not alive:
            status = folder.status()  # it may have said its last word between the two looks
        seen = ObservedReplica(
            name=folder.name,
            org_id=spec.org_id,
            deployment_id=spec.deployment_id,
            revision=spec.revision,
            phase=Phase.STOPPED,
            phases=(),
            alive=False,
            updated_at=0.0,
        )
        if status is None:
            return seen
        seen = msgspec.structs.replace(
            seen,
            phase=status.phase,
            phases=status.phases,
            alive=alive and not status.phase.final,
            updated_at=status.updated_at,
            host=status.host,
            port=status.port,
            engine_version=status.engine_version,
            reason=status.reason,
            message=status.message,
            metrics=status.metrics,
        )
        if seen.alive or status.phase.final:
            return seen
        if folder.stop_order():
            return msgspec.structs.replace(seen, phase=Phase.STOPPED, reason="stopped_by_force")
        return msgspec.structs.replace(seen, phase=Phase.FAILED, reason="agent_lost", message=_AGENT_LOST)

    def _agent(self, folder: ReplicaFolder, status: ReplicaStatus | None) -> psutil.Process | None:
        """The replica's process, if it lives.

        A start time that does not match means another process with the same number, or a clock that was set. The
        kernel's lock tells which.
        """
        process = runs(status.pid) if status else None
        if status is None or process is None:
            return None
        ours = started_at(process, status.pid_created_at) or folder.agent_lock_is_held()
        return process if ours else None
