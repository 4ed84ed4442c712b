"""A provider that starts nothing: replicas move when its script says so. For tests of whoever drives a provider."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from berth.compute.launch import EngineMetrics, LaunchSpec, Phase, PhaseTiming
from berth.compute.provider import (
    Capacity,
    Device,
    HardwareKind,
    LogLine,
    LogPage,
    NoCapacity,
    ObservedReplica,
    Offer,
    ProviderUnavailable,
)

_GIB = 1 << 30
_ON_THE_WAY = (Phase.VERIFYING, Phase.LOADING, Phase.WARMING, Phase.READY)


class FakeProvider:
    """See `Provider`. `now` gives Unix seconds.

    A replica begins in VERIFYING and moves by `advance`, `fail` and `vanish`. With `automatic`, each observation moves
    every replica one phase on, so that what waits for readiness gets there by looking.
    """

    name = "fake"

    def __init__(
        self, now: Callable[[], float] = lambda: 0.0, *, automatic: bool = False, memory_bytes: int = 16 * _GIB
    ) -> None:
        self.now = now
        self.automatic = automatic
        self.memory_bytes = memory_bytes
        self.devices: tuple[Device, ...] = ()
        self.region: str | None = None
        self.unavailable = False  # when true, every call raises ProviderUnavailable
        self.full = False  # when true, starts raise NoCapacity
        self.specs: dict[str, LaunchSpec] = {}
        self.secrets: dict[str, str] = {}
        self.starts: list[str] = []  # names for which a start really started something
        self.stops: list[tuple[str, int]] = []
        self.renewals: list[str] = []
        self._replicas: dict[str, ObservedReplica] = {}
        self._logs: dict[str, list[LogLine]] = {}
        self._lock = threading.RLock()

    def offers(self) -> list[Offer]:
        self._answer()
        return [
            Offer(
                "cpu-fake",
                HardwareKind.CPU,
                4,
                self.memory_bytes,
                self._free(),
                memory_bandwidth=20 * _GIB,
                devices=self.devices,
                region=self.region,
            )
        ]

    def capacity(self) -> Capacity:
        self._answer()
        alive = sum(replica.alive for replica in self._replicas.values())
        return Capacity(4, self.memory_bytes, self._free(), alive)

    def start(self, spec: LaunchSpec, secret: str) -> None:
        with self._lock:
            self._answer()
            before = self._replicas.get(spec.replica)
            if before and before.alive:
                return
            if self.full or sum(file.size for file in spec.files) > self._free():
                raise NoCapacity("The fake machine has no memory free for this replica.")
            self.starts.append(spec.replica)
            self.specs[spec.replica], self.secrets[spec.replica] = spec, secret
            self._replicas[spec.replica] = ObservedReplica(
                name=spec.replica,
                org_id=spec.org_id,
                deployment_id=spec.deployment_id,
                revision=spec.revision,
                phase=Phase.VERIFYING,
                phases=(PhaseTiming(Phase.VERIFYING, self.now()),),
                alive=True,
                updated_at=self.now(),
                host="127.0.0.1",
            )
            self._say(spec.replica, "started")

    def renew(self, spec: LaunchSpec, secret: str) -> None:
        with self._lock:
            self._answer()
            known = self._replicas.get(spec.replica)
            if known is not None and known.alive:
                self.renewals.append(spec.replica)
                self.specs[spec.replica] = spec

    def observe(self, deployment_id: str) -> list[ObservedReplica]:
        return [replica for replica in self.observe_all() if replica.deployment_id == deployment_id]

    def observe_all(self) -> list[ObservedReplica]:
        with self._lock:
            self._answer()
            seen = [self._replicas[name] for name in sorted(self._replicas)]
            if self.automatic:
                for replica in seen:
                    self._step(replica)
            return seen

    def stop(self, replica: str, *, drain_seconds: int) -> None:
        with self._lock:
            self._answer()
            known = self._replicas.get(replica)
            if known is None or not known.alive:
                return
            self.stops.append((replica, drain_seconds))
            if known.phase is Phase.READY and drain_seconds > 0:
                self.advance(replica, Phase.DRAINING)
            elif known.phase is not Phase.DRAINING or drain_seconds == 0:
                self.advance(replica, Phase.STOPPED)

    def forget(self, replica: str) -> None:
        with self._lock:
            self._answer()
            known = self._replicas.get(replica)
            if known and not known.alive:
                for held in (self._replicas, self._logs, self.specs, self.secrets):
                    held.pop(replica, None)

    def logs(self, replica: str, after: int = 0, limit: int = 200) -> LogPage:
        self._answer()
        lines = [line for line in self._logs.get(replica, []) if line.number > after]
        page = tuple(lines[: max(limit, 0)])
        return LogPage(page, page[-1].number if page else after, more=len(lines) > len(page))

    def advance(self, replica: str, phase: Phase, *, metrics: EngineMetrics | None = None) -> None:
        """Script: the replica enters `phase`."""
        with self._lock:
            known = self._replicas[replica]
            now = self.now()
            *before, running = known.phases
            ended = msgspec.structs.replace(running, ended_at=now)
            begun = PhaseTiming(phase, now, ended_at=now if phase.final else None)
            listens = phase in (Phase.WARMING, Phase.READY)
            self._replicas[replica] = msgspec.structs.replace(
                known,
                phase=phase,
                phases=(*before, ended, begun),
                alive=not phase.final,
                updated_at=now,
                port=20000 + len(self.starts) if listens and known.port is None else known.port,
                metrics=metrics or known.metrics,
            )
            self._say(replica, f"phase {phase}")

    def ready(self, replica: str) -> None:
        """Script: the replica gets ready, through every phase that is left."""
        for phase in _ON_THE_WAY[_ON_THE_WAY.index(self._replicas[replica].phase) + 1 :]:
            self.advance(replica, phase)

    def clone(self, replica: str, others: list[tuple[str, str]]) -> None:
        """Script: replicas just like this one, by name and deployment, that nobody started."""
        with self._lock:
            like = self._replicas[replica]
            for name, deployment_id in others:
                made = msgspec.structs.replace(like, name=name, deployment_id=deployment_id, updated_at=self.now())
                self._replicas[name], self.specs[name] = made, msgspec.structs.replace(self.specs[replica], files=())

    def fail(self, replica: str, reason: str, message: str = "It failed, as the script says.") -> None:
        """Script: the replica fails and says why."""
        with self._lock:
            self.advance(replica, Phase.FAILED)
            failed = msgspec.structs.replace(self._replicas[replica], reason=reason, message=message)
            self._replicas[replica] = failed

    def vanish(self, replica: str) -> None:
        """Script: the replica's process is gone without a word."""
        self.fail(replica, "agent_lost")

    def _step(self, replica: ObservedReplica) -> None:
        if replica.phase is Phase.DRAINING:
            self.advance(replica.name, Phase.STOPPED)
        elif replica.phase in _ON_THE_WAY[:-1]:
            self.advance(replica.name, _ON_THE_WAY[_ON_THE_WAY.index(replica.phase) + 1])

    def _free(self) -> int:
        taken = [self.specs[name] for name, replica in self._replicas.items() if replica.alive]
        return self.memory_bytes - sum(file.size for spec in taken for file in spec.files)

    def _say(self, replica: str, text: str) -> None:
        lines = self._logs.setdefault(replica, [])
        lines.append(LogLine(len(lines) + 1, self.now(), "agent", text))

    def _answer(self) -> None:
        if self.unavailable:
            raise ProviderUnavailable("The fake provider is switched off.")
