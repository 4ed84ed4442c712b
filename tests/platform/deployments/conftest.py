"""A clock that is moved by hand, and a provider that starts nothing."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest

from berth.compute.providers.fake import FakeProvider
from tests import make


class Clock:
    def __init__(self) -> None:
        self.at = make.NOON

    def __call__(self) -> datetime:
        return self.at

    def forward(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def provider(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeProvider]:
    fake = FakeProvider(now=lambda: clock().timestamp(), memory_bytes=16 << 30)
    monkeypatch.setattr("berth.deployments.planning.default_provider", lambda: fake)
    monkeypatch.setattr("berth.deployments.api.default_provider", lambda: fake)
    monkeypatch.setattr("berth.deployments.tasks.default_provider", lambda: fake)
    yield fake
