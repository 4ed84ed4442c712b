"""The gateway's own choice of a replica, on simulated ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from berth_gateway.contract import Replica, Route, RouteState
from berth_gateway.route import Router, address


class Routing(Protocol):
    """Which replica a request goes to."""

    def serve(self, names: Sequence[int], slots: int | None) -> None:
        """From now on these are ready, each with room for so many at once."""

    def choose(self, now: float) -> int | None:
        """None: all are full, or there are none."""

    def begin(self, name: int) -> None: ...

    def end(self, name: int) -> None: ...

    def failed(self, name: int, now: float) -> None: ...


class GatewayRouting:
    """`berth_gateway.route.Router` as gateways run it, one of them, for requests whose prompts have nothing in common."""

    def __init__(self) -> None:
        self._router = Router()
        self._names: dict[str, int] = {}
        self._known: dict[int, Replica] = {}
        self._route = self._with(())

    @staticmethod
    def _with(replicas: tuple[Replica, ...]) -> Route:
        return Route(
            name="simulated/deployment",
            org_id="o",
            deployment_id="d",
            revision=1,
            state=RouteState.READY,
            engine="vllm",
            engine_model="m",
            endpoints=("chat/completions",),
            context_length=1 << 20,
            created=0,
            replicas=replicas,
        )

    def serve(self, names: Sequence[int], slots: int | None) -> None:
        replicas = []
        for name in names:
            replica = self._known.get(name)
            if replica is None or replica.slots != slots:
                replica = Replica(f"r{name}", f"r{name}", 1, "", slots, 1)
                self._known[name] = replica
                self._names[replica.name] = name
            replicas.append(replica)
        self._route = self._with(tuple(replicas))

    def choose(self, now: float) -> int | None:
        if not self._route.replicas:
            return None
        found = self._router.choose(self._route, (), now)
        return None if found is None else self._names[found.name]

    def begin(self, name: int) -> None:
        self._router.begin(address(self._known[name]))

    def end(self, name: int) -> None:
        self._router.end(address(self._known[name]))

    def failed(self, name: int, now: float) -> None:
        self._router.failed(address(self._known[name]), now)
