"""What is offered of a cluster: what its nodes have less what has been asked of them, and never the same place twice."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.compute.providers.kubernetes.capacity import Room, offer_of, rooms_of
from berth.compute.providers.kubernetes.quantities import mebibytes, milli, needed, quantity, whole
from berth.compute.providers.kubernetes.resources import Take
from tests.platform.compute.kubernetes.world import cluster

Json = dict[str, Any]
GIB = 1 << 30


def a_tier(**changes: Any) -> Any:
    return cluster(
        tier=[
            {
                "key": "l4",
                "cores": 8,
                "memory_gib": 32,
                "gpu": "l4",
                "gpus": 4,
                "node_selector": {"pool": "gpu"},
                "price_per_hour": "0.80",
                **changes,
            }
        ]
    )


def node(name: str, *, pool: str = "gpu", gpus: int = 4, ready: str = "True", **spec: Any) -> Json:
    return {
        "metadata": {"name": name, "labels": {"pool": pool}},
        "spec": spec,
        "status": {
            "allocatable": {"cpu": "7910m", "memory": "30Gi", "nvidia.com/gpu": str(gpus)},
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }


def pod(
    on: str | None,
    *,
    gpus: int = 1,
    cpu: str = "1",
    memory: str = "4Gi",
    phase: str = "Running",
    first: Json | None = None,
) -> Json:
    asked = {"cpu": cpu, "memory": memory, "nvidia.com/gpu": str(gpus)}
    return {
        "metadata": {"name": "p", "labels": {"berth.dev/tier": "l4"}},
        "spec": {
            **({"nodeName": on} if on else {}),
            "containers": [{"resources": {"requests": asked}}],
            **({"initContainers": [{"resources": {"requests": first}}]} if first else {}),
        },
        "status": {"phase": phase},
    }


def test_an_offer_is_what_is_free_on_nodes_of_the_tier() -> None:
    made = a_tier()
    nodes = [node("a"), node("b"), node("c", pool="cpu")]
    room = rooms_of(made.tier[0], nodes, [pod("a", gpus=3), pod("b"), pod("c"), pod("b", phase="Succeeded")])
    offer = offer_of(room, made)
    assert (offer.key, offer.gpu, offer.gpus, offer.free_gpus) == ("l4", "l4", 4, 3)
    assert (offer.memory_bytes, offer.free_memory_bytes) == (30 * GIB, 26 * GIB)
    assert (offer.all_memory_bytes, offer.all_free_memory_bytes) == (60 * GIB, 52 * GIB)
    assert (offer.price_per_hour, offer.region, offer.grows) == (Decimal("0.80"), "eu-test", False)


def test_what_waits_for_a_node_is_promised_already() -> None:
    made = a_tier()
    assert offer_of(rooms_of(made.tier[0], [node("a")], [pod(None, gpus=2)]), made).free_gpus == 2
    assert offer_of(rooms_of(made.tier[0], [node("a"), node("b")], [pod(None, gpus=4)]), made).free_gpus == 4


@pytest.mark.parametrize("away", [{"unschedulable": True}, {"ready": "Unknown"}, {"ready": "False"}])
def test_a_node_that_takes_nothing_offers_nothing(away: Json) -> None:
    made = a_tier()
    offer = offer_of(rooms_of(made.tier[0], [node("a", **away)], []), made)
    assert (offer.free_gpus, offer.free_memory_bytes, offer.free) == (0, 0, False)


def test_no_more_is_offered_to_a_replica_than_the_operator_gives_and_several_share_a_node() -> None:
    made = a_tier(memory_gib=16, gpus=2)
    room = rooms_of(made.tier[0], [node("a")], [])
    offer = offer_of(room, made)
    assert (offer.memory_bytes, offer.free_memory_bytes, offer.gpus, offer.free_gpus) == (16 * GIB, 16 * GIB, 2, 2)
    assert offer.all_memory_bytes == 30 * GIB
    half = offer_of(rooms_of(made.tier[0], [node("a")], [pod("a", gpus=2, memory="15Gi")]), made)
    assert (half.free_memory_bytes, half.free_gpus) == (15 * GIB, 2), "the other half is free"


def test_an_initial_container_counts_where_it_takes_more() -> None:
    made = a_tier()
    room = rooms_of(made.tier[0], [node("a")], [pod("a", memory="4Gi", first={"memory": "20Gi", "cpu": "100m"})])
    assert room.free[0] == Room(7910 - 1000, 10 * GIB, 3)


def test_a_pool_that_grows_offers_what_its_nodes_would_have() -> None:
    made = a_tier(autoscaled=True)
    offer = offer_of(rooms_of(made.tier[0], [], []), made)
    assert (offer.memory_bytes, offer.free_memory_bytes, offer.free_gpus, offer.grows) == (32 * GIB, 32 * GIB, 4, True)


def test_where_nodes_may_not_be_read_the_operator_says_how_many_there_are() -> None:
    made = a_tier(nodes=2)
    room = rooms_of(made.tier[0], None, [pod("x", gpus=3), pod("y", gpus=3)])
    assert [each.gpus for each in room.free] == [1, 1]
    assert not room.holds(Take(1, GIB, 0, 2))
    assert room.holds(Take(1, GIB, 0, 1))
    assert room.holds(Take(1, GIB, 0, 1), nodes=2)
    assert not room.holds(Take(1, GIB, 0, 1), nodes=3)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(0, 4), max_size=5),
    st.lists(st.tuples(st.sampled_from([None, "n0", "n1", "n2"]), st.integers(0, 4), st.integers(0, 8)), max_size=8),
)
@pytest.mark.threat("E4")
def test_devices_are_never_promised_twice(gpus: list[int], pods: list[tuple[str | None, int, int]]) -> None:
    """What is free and what is taken never make more than there is."""
    made = a_tier()
    nodes = [node(f"n{number}", gpus=count) for number, count in enumerate(gpus)]
    room = rooms_of(made.tier[0], nodes, [pod(on, gpus=count, memory=f"{size}Gi", cpu="0") for on, count, size in pods])
    on_nodes = {name: sum(c for on, c, _ in pods if on == name) for name in ("n0", "n1", "n2")}
    for number, (there, free) in enumerate(zip(room.all, room.free, strict=True)):
        assert 0 <= free.gpus <= max(there.gpus - on_nodes.get(f"n{number}", 0), 0)
        assert 0 <= free.memory <= there.memory
    waiting = sum(count for on, count, _ in pods if on is None)
    total = sum(each.gpus for each in room.all)
    placed = sum(min(on_nodes.get(f"n{n}", 0), each.gpus) for n, each in enumerate(room.all))
    assert sum(each.gpus for each in room.free) >= total - placed - waiting


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("0.5", Decimal("0.5")),
        ("500m", Decimal("0.5")),
        ("16Gi", 16 * GIB),
        ("1k", 1000),
        ("1e3", 1000),
        ("2E", 2 * 10**18),
        (".5Ki", 512),
        (4, 4),
    ],
)
def test_quantities(text: object, value: object) -> None:
    assert quantity(text) == value


@pytest.mark.parametrize("text", ["", "x", "1x", "1 Gi", "--1", "1ee3", None])
def test_what_is_no_quantity_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="no quantity"):
        quantity(text)


@given(st.integers(0, 1 << 45))
def test_rounding_never_promises_more_than_there_is_or_asks_for_less_than_is_needed(size: int) -> None:
    assert size <= needed(mebibytes(size)) < size + (1 << 20)
    assert whole("1500m") == 1
    assert needed("1500m") == 2
    assert milli("0.0001") == 1
