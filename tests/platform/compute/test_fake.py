"""The scripted provider keeps the contract, or tests that use it would prove nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from berth.compute.launch import EngineMetrics, LaunchSpec, ModelFile, Phase
from berth.compute.provider import NoCapacity, ObservedReplica, Provider, ProviderUnavailable
from berth.compute.providers.fake import FakeProvider
from tests.platform.compute.provider_contract import SECRET, ProviderContract, a_spec, one

FILE = ModelFile("/models/x.gguf", "weights", 1 << 30, "0" * 64)


@pytest.fixture
def spec() -> LaunchSpec:
    return a_spec(FILE)


class TestFakeProvider(ProviderContract):
    @pytest.fixture
    def provider(self) -> FakeProvider:
        return FakeProvider(lambda: 1_800_000_000.0, automatic=True)

    def until(self, provider: Provider, holds: Callable[[], Any], what: str) -> Any:
        for _ in range(10):
            if holds():
                return
        raise AssertionError(f"never happened: {what}")

    def kill(self, provider: Provider, replica: ObservedReplica) -> None:
        assert isinstance(provider, FakeProvider)
        provider.vanish(replica.name)


def test_without_automatic_replicas_move_only_by_script(spec: LaunchSpec) -> None:
    now = [1000.0]
    fake = FakeProvider(lambda: now[0])
    fake.start(spec, SECRET)
    assert one(fake, spec).phase is one(fake, spec).phase is Phase.VERIFYING
    now[0] = 1005.0
    fake.advance(spec.replica, Phase.LOADING)
    assert (one(fake, spec).phases[0].ended_at, one(fake, spec).port) == (1005.0, None)
    fake.ready(spec.replica)
    assert one(fake, spec).ready
    fake.advance(spec.replica, Phase.DRAINING, metrics=EngineMetrics(running=1))
    assert one(fake, spec).metrics == EngineMetrics(running=1)
    fake.fail(spec.replica, "engine_exited", "Bang.")
    assert (one(fake, spec).alive, one(fake, spec).reason, one(fake, spec).message) == (False, "engine_exited", "Bang.")
    assert fake.secrets == {spec.replica: SECRET}


def test_it_can_be_full_or_away(spec: LaunchSpec) -> None:
    fake = FakeProvider(memory_bytes=1 << 29)
    with pytest.raises(NoCapacity):
        fake.start(spec, SECRET)
    assert fake.observe_all() == []
    fake.unavailable = True
    calls: list[Callable[[], Any]] = [
        fake.offers,
        fake.capacity,
        fake.observe_all,
        lambda: fake.start(spec, SECRET),
        lambda: fake.stop(spec.replica, drain_seconds=1),
        lambda: fake.forget(spec.replica),
        lambda: fake.logs(spec.replica),
    ]
    for call in calls:
        with pytest.raises(ProviderUnavailable):
            call()
