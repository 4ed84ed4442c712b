"""The provider on a cluster of the tests whose pods are real: the real runtime, the real engine, the real small model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from berth.compute.launch import LaunchSpec, ModelFile
from berth.compute.provider import ObservedReplica, Provider
from berth.compute.providers.kubernetes.provider import ClusterProvider
from tests.platform.compute.kubernetes.world import World
from tests.platform.compute.provider_contract import ProviderContract, a_spec
from tests.runtime.agents import eventually, model_file


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


@pytest.fixture
def provider(world: World) -> ClusterProvider:
    return world.provider()


@pytest.fixture
def spec() -> LaunchSpec:
    file = model_file()
    return a_spec(ModelFile(file.path, file.role, file.size, file.sha256))


class TestClusterProvider(ProviderContract):
    @pytest.fixture(autouse=True)
    def _world(self, world: World) -> None:
        self.world = world

    def until(self, provider: Provider, holds: Callable[[], Any], what: str) -> Any:
        return eventually(holds, what)

    def kill(self, provider: Provider, replica: ObservedReplica) -> None:
        self.world.kubelet.kill(self.world.pod(replica.name))
