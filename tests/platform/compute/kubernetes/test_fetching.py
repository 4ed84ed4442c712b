"""A pod that fetches its files itself: with a grant that only it knows, and with the way to the store open no longer than needed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from berth.compute.launch import LaunchSpec, Phase
from berth.compute.provider import ProviderError
from berth.compute.providers.kubernetes import names
from tests.platform.compute.kubernetes.world import World, get_ready
from tests.platform.compute.provider_contract import SECRET, one
from tests.runtime.agents import eventually
from tests.runtime.object_store import Store


@pytest.fixture
def granted(spec: LaunchSpec) -> Iterator[LaunchSpec]:
    [file] = spec.files
    store = Store({f"/{file.sha256}": Path(file.path).read_bytes()})
    granted = msgspec.structs.replace(file, path="", url=store.url(f"/{file.sha256}"))
    yield msgspec.structs.replace(spec, files=(granted,))
    store.close()


@pytest.mark.threat("E3")
def test_it_fetches_gets_ready_and_may_no_longer_reach_the_store(world: World, granted: LaunchSpec) -> None:
    provider = world.provider(models_claim=None, cache_gib=1.0)
    provider.start(granted, SECRET)
    assert world.pod(granted.replica)["metadata"]["labels"][names.FETCHES] == "true"
    get_ready(provider, granted)
    replica = one(provider, granted)
    assert replica.phases[0].phase is Phase.FETCHING
    assert replica.phases[0].done == replica.phases[0].total == granted.files[0].size
    eventually(lambda: names.FETCHES not in world.pod(granted.replica)["metadata"]["labels"], "the way is closed")
    assert one(provider, granted).ready
    for kind in ("configmaps", "pods", "events", "poddisruptionbudgets"):
        assert "X-Signature" not in json.dumps(world.api.store.all(kind)), kind
    assert "X-Signature" not in world.kubelet.read_log(world.pod(granted.replica), "runtime", None, None).decode()


def test_a_grant_that_is_over_is_said(world: World, granted: LaunchSpec) -> None:
    [file] = granted.files
    over = msgspec.structs.replace(file, url=(file.url or "").replace("=abc", "=old"))
    provider = world.provider(models_claim=None, cache_gib=1.0)
    provider.start(msgspec.structs.replace(granted, files=(over,)), SECRET)
    failed = eventually(lambda: seen if not (seen := one(provider, granted)).alive else None, "it has failed")
    assert (failed.phase, failed.reason) == (Phase.FAILED, "fetch_refused")
    assert "http" not in (failed.message or "")


def test_a_pod_that_waited_for_a_node_longer_than_its_grants_has_new_ones(world: World, granted: LaunchSpec) -> None:
    """It waits; its grants end; they are renewed; a node comes. It fetches at its first try."""
    far = {"key": "far", "cores": 2, "memory_gib": 4, "node_selector": {"pool": "far"}, "autoscaled": True}
    provider = world.provider(models_claim=None, cache_gib=1.0, tier=[far])
    [file] = granted.files
    over = msgspec.structs.replace(file, url=(file.url or "").replace("=abc", "=old"))
    waiting = msgspec.structs.replace(granted, files=(over,), tier="far")
    provider.start(waiting, SECRET)
    uid = world.pod(granted.replica)["metadata"]["uid"]
    provider.renew(msgspec.structs.replace(granted, tier="far"), SECRET)
    world.kubelet.add_node("node-far", labels={"pool": "far"})
    get_ready(provider, granted)
    assert world.pod(granted.replica)["metadata"]["uid"] == uid, "the same pod"
    assert provider.logs(granted.replica, limit=1000).lines


def test_what_is_not_known_or_was_stopped_gets_no_grants(world: World, granted: LaunchSpec) -> None:
    provider = world.provider(models_claim=None, cache_gib=1.0)
    provider.renew(granted, SECRET)
    assert world.api.store.all("secrets") == world.api.store.all("pods") == []
    far = {"key": "far", "cores": 2, "memory_gib": 4, "node_selector": {"pool": "far"}, "autoscaled": True}
    other = world.provider(models_claim=None, cache_gib=1.0, tier=[far])
    placed = msgspec.structs.replace(granted, tier="far")
    other.start(placed, SECRET)
    other.stop(placed.replica, drain_seconds=0)
    before = [each["data"] for each in world.api.store.all("secrets")]
    [file] = placed.files
    fresh = msgspec.structs.replace(file, url=(file.url or "") + "&fresh")
    other.renew(msgspec.structs.replace(placed, files=(fresh,)), SECRET)
    assert [each["data"] for each in world.api.store.all("secrets")] == before


def test_without_grants_nothing_is_started(world: World, spec: LaunchSpec) -> None:
    with pytest.raises(ProviderError, match="gives no grants"):
        world.provider(models_claim=None, cache_gib=1.0).start(spec, SECRET)
    assert world.api.store.all("configmaps") == []
