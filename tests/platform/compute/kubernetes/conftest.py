"""A cluster for a test, and a spec of the sample model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from berth.compute.launch import LaunchSpec, ModelFile
from tests.platform.compute.kubernetes.world import World
from tests.platform.compute.provider_contract import a_spec
from tests.runtime.agents import model_file


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


@pytest.fixture
def spec() -> LaunchSpec:
    file = model_file()
    return a_spec(ModelFile(file.path, file.role, file.size, file.sha256))
