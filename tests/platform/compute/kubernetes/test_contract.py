"""The provider on a cluster of the tests whose pods are real: the real runtime, the real engine, the real small model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from berth.compute.provider import ObservedReplica, Provider
from berth.compute.providers.kubernetes.provider import ClusterProvider
from tests.platform.compute.kubernetes.world import World
from tests.platform.compute.provider_contract import ProviderContract
from tests.runtime.agents import eventually


@pytest.fixture
def provider(world: World) -> ClusterProvider:
    return world.provider()


class TestClusterProvider(ProviderContract):
    @pytest.fixture(autouse=True)
    def _world(self, world: World) -> None:
        self.world = world

    def until(self, provider: Provider, holds: Callable[[], Any], what: str) -> Any:
        return eventually(holds, what, seconds=200)

    def kill(self, provider: Provider, replica: ObservedReplica) -> None:
        self.world.kubelet.kill(self.world.pod(replica.name))
