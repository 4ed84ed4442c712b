"""Several clusters as one: a deployment runs where its tier is, and a cluster that is away holds up only its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from berth.compute.launch import LaunchSpec
from berth.compute.provider import ProviderError, ProviderUnavailable
from berth.compute.providers.kubernetes import mirror
from berth.compute.providers.kubernetes.fleet import Fleet
from berth.compute.providers.kubernetes.provider import ClusterProvider
from tests.platform.compute.kubernetes.apiserver.failure import Failure
from tests.platform.compute.kubernetes.world import World, get_ready
from tests.platform.compute.provider_contract import SECRET
from tests.runtime.agents import eventually


@pytest.fixture
def worlds(tmp_path: Path) -> Iterator[list[World]]:
    made = []
    for name in ("east", "west"):
        (tmp_path / name).mkdir()
        made.append(World(tmp_path / name))
    yield made
    for world in made:
        world.close()


def provider_of(world: World, name: str, price: str) -> ClusterProvider:
    tier = {
        "key": f"{name}-cpu",
        "cores": 2,
        "memory_gib": 4,
        "node_selector": {"pool": "cpu"},
        "price_per_hour": price,
    }
    return world.provider(name=name, region=f"eu-{name}", tier=[tier])


@pytest.fixture
def fleet(worlds: list[World]) -> Fleet:
    east, west = worlds
    return Fleet([provider_of(east, "east", "0.20"), provider_of(west, "west", "0.10")])


def cut_off(world: World) -> None:
    def refuse(method: str, path: str) -> None:
        raise Failure(503, "ServiceUnavailable", "away")

    world.server.before = refuse
    world.server.cut.set()


def test_replicas_run_where_their_tier_is(worlds: list[World], fleet: Fleet, spec: LaunchSpec) -> None:
    assert [(offer.key, offer.region) for offer in fleet.offers()] == [("west-cpu", "eu-west"), ("east-cpu", "eu-east")]
    east = msgspec.structs.replace(spec, tier="east-cpu", replica="dep-1-3-0-0")
    west = msgspec.structs.replace(spec, tier="west-cpu", replica="dep-1-3-1-0")
    for each in (east, west):
        fleet.start(each, SECRET)
    assert [len(world.api.store.all("pods")) for world in worlds] == [1, 1]
    assert [seen.name for seen in fleet.observe("dep-1")] == [east.replica, west.replica]
    assert fleet.capacity().replicas == 2
    get_ready(fleet, east, west)
    assert fleet.logs(west.replica).lines
    fleet.stop(west.replica, drain_seconds=0)
    eventually(lambda: [seen.alive for seen in fleet.observe("dep-1")] == [True, False], "one has ended")
    fleet.forget(west.replica)
    assert [seen.name for seen in fleet.observe_all()] == [east.replica]
    fleet.stop("dep-9-9-9-9", drain_seconds=0)
    assert fleet.logs("dep-9-9-9-9").lines == ()


def test_a_tier_that_no_cluster_has(fleet: Fleet, spec: LaunchSpec) -> None:
    for tier in ("moon", ""):
        with pytest.raises(ProviderError, match="No cluster has a tier"):
            fleet.start(msgspec.structs.replace(spec, tier=tier), SECRET)


def test_a_cluster_that_is_away_holds_up_only_its_own(
    worlds: list[World], fleet: Fleet, spec: LaunchSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = msgspec.structs.replace(spec, tier="east-cpu", replica="dep-1-3-0-0")
    there = msgspec.structs.replace(spec, tier="west-cpu", replica="dep-2-3-0-0", deployment_id="dep-2")
    for each in (here, there):
        fleet.start(each, SECRET)
    monkeypatch.setattr(mirror, "_STALE_SECONDS", 0.0)
    cut_off(worlds[1])

    def away() -> Any:
        try:
            fleet.observe("dep-2")
        except ProviderUnavailable as error:
            return str(error)
        return None

    assert "cluster west" in eventually(away, "the other is away")
    assert [seen.name for seen in fleet.observe("dep-1")] == [here.replica]
    assert [seen.name for seen in fleet.observe_all()] == [here.replica]
    assert [offer.key for offer in fleet.offers()] == ["east-cpu"]
    fleet.stop(here.replica, drain_seconds=0)
    with pytest.raises(ProviderUnavailable):
        fleet.stop(there.replica, drain_seconds=0)
    worlds[1].server.before = lambda method, path: None
    worlds[1].server.cut.clear()
    eventually(lambda: away() is None, "it is back")
    assert [seen.name for seen in fleet.observe("dep-2")] == [there.replica]


def test_with_no_cluster_to_ask_nothing_is_known(worlds: list[World], fleet: Fleet) -> None:
    for world in worlds:
        cut_off(world)
    for ask in (
        fleet.offers,
        fleet.capacity,
        fleet.observe_all,
        lambda: fleet.observe("dep-1"),
        lambda: fleet.logs("dep-1-1-0-0"),
    ):
        with pytest.raises(ProviderUnavailable):
            ask()
