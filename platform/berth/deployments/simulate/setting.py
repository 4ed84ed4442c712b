"""What a fleet is put into, what it is told to do, and what came of it."""

from __future__ import annotations

from typing import Protocol

import msgspec

from berth.deployments.scaling.observation import Capacity, Observation, Policy
from berth.deployments.simulate.replica import Requests
from berth.deployments.simulate.speed import Speed


class Order(msgspec.Struct, frozen=True):
    desired: int
    concurrency: int | None = None  # requests that a replica gets at once, at most


class Scaler(Protocol):
    """Who says how many replicas there are to be."""

    @property
    def interval(self) -> float:
        """Seconds between two looks."""

    def decide(self, seen: Observation) -> Order: ...


class Setting(msgspec.Struct, frozen=True):
    """The world that scalers are put into. Seconds."""

    speed: Speed
    policy: Policy
    capacity: Capacity
    cold_start: float = 60.0
    cold_start_spread: float = 0.0  # each start takes up to so much more or less, as a share
    initial: int = 1  # replicas that are ready at the beginning
    patience: float | None = None  # a request that has waited so long for a replica is dropped; None: never
    failures_per_hour: float = 0.0  # of each replica; what it works on is lost if its answer has begun, else sent again
    seed: int = 1


class Change(msgspec.Struct, frozen=True):
    at: float
    before: int
    after: int


class Run(msgspec.Struct):
    """What happened."""

    requests: Requests
    dropped: set[int]
    held: int = 0  # requests that waited at the gateway
    replica_seconds: float = 0.0  # from asking for a replica until it is gone
    ready_seconds: float = 0.0  # of replicas that could serve
    changes: list[Change] = []
    span: float = 0.0
    most: int = 0
    failures: int = 0
