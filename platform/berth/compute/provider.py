"""What every provider can do: say what it offers, start, observe and stop replicas, and show their logs.

A provider keeps nothing in memory that another worker could not find out again by observing. Every call may be
repeated: starting what runs and stopping what does not are no errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from enum import StrEnum
from typing import Protocol

import msgspec

from berth.compute.launch import EngineMetrics, LaunchSpec, Phase, PhaseTiming


class ProviderError(Exception):
    """A provider could not do what was asked. `str(error)` is a sentence for people."""


class ProviderUnavailable(ProviderError):
    """The provider itself does not answer or cannot work; trying again later may help."""


class NoCapacity(ProviderError):
    """There is no room for this replica now. Nothing was started."""


class HardwareKind(StrEnum):
    CPU = "cpu"
    GPU = "gpu"


class Device(msgspec.Struct, frozen=True):
    """One GPU of a machine whose devices are given out by Berth itself."""

    id: str  # as CUDA_VISIBLE_DEVICES names it: "GPU-2f6c…"
    memory_bytes: int


class Offer(msgspec.Struct, frozen=True):
    """A hardware tier of which this provider can give a replica a share or the whole."""

    key: str  # "cpu-local"
    kind: HardwareKind
    cores: int  # CPU cores one replica may use
    memory_bytes: int  # memory one replica could have if nothing else ran
    free_memory_bytes: int  # of these, what nothing holds now
    memory_bandwidth: int | None = None  # bytes per second, an estimate; None: not known
    price_per_hour: Decimal | None = None  # currency units of the operator; None: not priced
    gpu: str | None = None  # the planner's name of the device, "l4"; None: there is none
    gpus: int = 0  # devices that one replica could have on one node if nothing else ran
    free_gpus: int = 0  # the most that are free on one node now
    region: str | None = None  # None: not told
    # Where a tier is many nodes, the fields above are of one of them, and these of all together; None: there is only one.
    all_memory_bytes: int | None = None
    all_free_memory_bytes: int | None = None
    devices: tuple[Device, ...] = ()  # empty: the provider itself chooses which replica gets which
    grows: bool = False  # nodes are added when replicas wait for room

    @property
    def free(self) -> bool:
        """Whether anything at all could be started now."""
        return self.free_memory_bytes > 0


class Capacity(msgspec.Struct, frozen=True):
    """What the provider has and what is taken, over all of its machines."""

    cores: int
    memory_bytes: int
    free_memory_bytes: int
    replicas: int  # alive now


class ObservedReplica(msgspec.Struct, frozen=True):
    """A replica as it is, not as it should be.

    `alive` says that its process runs. A replica that is not alive has phase STOPPED or FAILED: one that died without a
    word is FAILED with reason "agent_lost", one that was prepared and never ran is STOPPED.
    """

    name: str
    org_id: str
    deployment_id: str
    revision: int
    phase: Phase
    phases: tuple[PhaseTiming, ...]
    alive: bool
    updated_at: float  # Unix seconds at which the replica last spoke; 0.0: never
    host: str | None = None
    port: int | None = None  # set once the engine listens
    engine_version: str | None = None
    reason: str | None = None  # stable code, when failed
    message: str | None = None  # a sentence for people
    metrics: EngineMetrics | None = None

    @property
    def ready(self) -> bool:
        """Whether requests may be sent to `host` and `port`."""
        return self.alive and self.phase is Phase.READY and self.port is not None


class LogLine(msgspec.Struct, frozen=True):
    """A line of a replica's log that passed the allow-list, or a note of how much was withheld."""

    number: int  # rises within a replica's life, never reused
    at: float  # Unix seconds
    source: str  # "agent" | "engine"
    text: str | None = None
    withheld: int | None = None  # bytes of output that were dropped unread


class LogPage(msgspec.Struct, frozen=True):
    """`next_after` is what to pass as `after` for the following page; it equals `after` when there was nothing new."""

    lines: tuple[LogLine, ...]
    next_after: int
    more: bool  # lines beyond this page exist already


class Provider(Protocol):
    """Where replicas run. All methods block; call them outside database transactions.

    Every method may raise ProviderUnavailable.
    """

    name: str

    def offers(self) -> Sequence[Offer]:
        """The hardware tiers of this provider, cheapest first. May be slow at the first call (it may measure)."""
        ...

    def capacity(self) -> Capacity:
        """What there is and what is taken now."""
        ...

    def start(self, spec: LaunchSpec, secret: str) -> None:
        """Makes `spec.replica` run and returns once it is observable. Does nothing if it is alive already.

        A replica that ended before is started anew. Raises NoCapacity.
        """
        ...

    def renew(self, spec: LaunchSpec, secret: str) -> None:
        """Gives a replica that was started and may not have begun yet grants to its files that are still good, as `spec` has them.

        Whoever has begun needs none, and a replica that is not known is not started.
        """
        ...

    def observe(self, deployment_id: str) -> Sequence[ObservedReplica]:
        """Every replica of the deployment that the provider knows, also ended ones, by name."""
        ...

    def observe_all(self) -> Sequence[ObservedReplica]:
        """Every replica that the provider knows, also ended ones, by name."""
        ...

    def stop(self, replica: str, *, drain_seconds: int) -> None:
        """Asks the replica to finish what runs, for at most `drain_seconds`, and to end. Returns without waiting.

        A replica that outlives its time is ended by force at a later `stop` or `observe`. Unknown names are no error.
        """
        ...

    def forget(self, replica: str) -> None:
        """Removes what is left of an ended replica: log, status, secret. Does nothing while it is alive."""
        ...

    def logs(self, replica: str, after: int = 0, limit: int = 200) -> LogPage:
        """Lines with a number above `after`, oldest first, at most `limit`. An unknown replica has no lines."""
        ...
