"""An S3 service for the catalogue's tests, started when a test first asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.seaweed import Seaweed, seaweed


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    with seaweed(tmp_path_factory.mktemp("seaweed") / "data") as service:
        yield service
