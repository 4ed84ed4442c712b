"""An S3 service for the catalogue's tests, started when a test first asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.platform.catalog.fake_hub import Hub
from tests.seaweed import Seaweed, seaweed


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    with seaweed(tmp_path_factory.mktemp("seaweed") / "data") as service:
        yield service


@pytest.fixture
def hub(settings: Any) -> Iterator[Hub]:
    """A hub and the storage behind it, both named by the operator, so that they may be private."""
    made = Hub()
    settings.OUTBOUND_PRIVATE_HOSTS = [made.hub_place, made.storage_place]
    settings.HUB_ENDPOINT = made.endpoint
    yield made
    made.close()
