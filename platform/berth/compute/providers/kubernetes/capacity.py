"""What the nodes of a tier have and what pods have asked of them. Pure: what the scheduler would count, by node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from berth.compute.provider import HardwareKind, Offer
from berth.compute.providers.kubernetes import names, reasons
from berth.compute.providers.kubernetes.clusters import Cluster, NodeTier
from berth.compute.providers.kubernetes.quantities import milli, needed, whole
from berth.compute.providers.kubernetes.resources import Take

Json = Mapping[str, Any]
_ENDED = ("Succeeded", "Failed")


class Room(msgspec.Struct, frozen=True):
    """Of one node."""

    cores: int  # thousandths
    memory: int  # bytes
    gpus: int

    def less(self, other: Room) -> Room:
        return Room(
            max(self.cores - other.cores, 0), max(self.memory - other.memory, 0), max(self.gpus - other.gpus, 0)
        )

    def holds(self, take: Take) -> bool:
        return self.cores >= take.cores * 1000 and self.memory >= take.memory and self.gpus >= take.gpus


class TierRoom(msgspec.Struct, frozen=True):
    """Of all nodes of a tier, each with what it has and what of that is free."""

    tier: NodeTier
    all: tuple[Room, ...]
    free: tuple[Room, ...]

    def holds(self, take: Take, nodes: int = 1) -> bool:
        """Whether a replica could be placed now."""
        return sum(room.holds(take) for room in self.free) >= nodes


def rooms_of(tier: NodeTier, nodes: Sequence[Json] | None, pods: Iterable[Json]) -> TierRoom:
    """`nodes`: all of the cluster; None: they may not be read, and the tier says how many it has."""
    pods = [pod for pod in pods if pod.get("status", {}).get("phase") not in _ENDED]
    if nodes is None:
        return _counted(tier, pods)
    rooms, free = [], []
    for node in nodes:
        if not _of_tier(node, tier):
            continue
        room = _room(node["status"].get("allocatable") or {}, tier)
        taken = [_asked(pod, tier) for pod in pods if pod.get("spec", {}).get("nodeName") == node["metadata"]["name"]]
        rooms.append(room)
        free.append(room.less(_sum(taken)) if _takes(node) else Room(0, 0, 0))
    return TierRoom(tier, tuple(rooms), _reserved(free, tier, pods))


def offer_of(room: TierRoom, cluster: Cluster) -> Offer:
    """What a replica could have of the tier. An empty pool that grows on demand offers what its nodes would have."""
    tier = room.tier
    grows = tier.autoscaled
    return Offer(
        key=tier.key,
        kind=HardwareKind.GPU if tier.gpu else HardwareKind.CPU,
        cores=tier.cores,
        memory_bytes=tier.memory_bytes if grows else _most(room.all, "memory", tier.memory_bytes),
        free_memory_bytes=tier.memory_bytes if grows else _most(room.free, "memory", tier.memory_bytes),
        price_per_hour=tier.price,
        gpu=tier.gpu,
        gpus=tier.gpus,
        free_gpus=tier.gpus if grows else _most(room.free, "gpus", tier.gpus),
        region=cluster.region,
        all_memory_bytes=None if grows else sum(each.memory for each in room.all),
        all_free_memory_bytes=None if grows else sum(each.memory for each in room.free),
        grows=grows,
    )


def _most(rooms: Sequence[Room], what: str, limit: int) -> int:
    """The most that one node has, and no more than a replica may have."""
    return min(max((int(getattr(room, what)) for room in rooms), default=0), limit)


def waiting_pods(pods: Iterable[Json], tier: NodeTier) -> int:
    """How many of our pods of a tier wait for room."""
    return sum(
        reasons.condition(pod, "PodScheduled").get("status") == "False"
        for pod in pods
        if pod["metadata"].get("labels", {}).get(names.TIER) == names.label_value(tier.key)
    )


def slim_node(node: Json) -> dict[str, Any]:
    """What of a node is used here."""
    metadata, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
    return {
        "metadata": {key: metadata[key] for key in ("name", "uid", "resourceVersion", "labels") if key in metadata},
        "spec": {key: spec[key] for key in ("taints", "unschedulable") if key in spec},
        "status": {"allocatable": status.get("allocatable"), "conditions": status.get("conditions")},
    }


def _of_tier(node: Json, tier: NodeTier) -> bool:
    labels = node["metadata"].get("labels") or {}
    return all(labels.get(key) == value for key, value in tier.node_selector.items())


def _takes(node: Json) -> bool:
    spec = node.get("spec") or {}
    return not spec.get("unschedulable") and reasons.condition(node, "Ready").get("status", "True") == "True"


def _room(resources: Json, tier: NodeTier) -> Room:
    return Room(
        cores=milli(resources.get("cpu", "0")),
        memory=whole(resources.get("memory", "0")),
        gpus=whole(resources.get(tier.gpu_resource, "0")) if tier.gpu else 0,
    )


def _asked(pod: Json, tier: NodeTier) -> Room:
    """As the scheduler counts: containers together, or a larger initial one, and the pod's overhead."""
    spec = pod.get("spec", {})
    main = _sum([_requests(each, tier) for each in spec.get("containers") or []])
    first = [_requests(each, tier) for each in spec.get("initContainers") or []]
    most = Room(*(max([getattr(main, f), *(getattr(each, f) for each in first)]) for f in ("cores", "memory", "gpus")))
    return _sum([most, _wanted(spec.get("overhead") or {}, tier)])


def _requests(container: Json, tier: NodeTier) -> Room:
    resources = container.get("resources") or {}
    return _wanted((resources.get("limits") or {}) | (resources.get("requests") or {}), tier)


def _wanted(resources: Json, tier: NodeTier) -> Room:
    return Room(
        cores=milli(resources.get("cpu", "0")),
        memory=needed(resources.get("memory", "0")),
        gpus=needed(resources.get(tier.gpu_resource, "0")),
    )


def _sum(rooms: Sequence[Room]) -> Room:
    return Room(sum(r.cores for r in rooms), sum(r.memory for r in rooms), sum(r.gpus for r in rooms))


def _reserved(free: Sequence[Room], tier: NodeTier, pods: Sequence[Json]) -> tuple[Room, ...]:
    """Pods that wait for a node take the first room that holds them: nobody else is promised it."""
    rooms = list(free)
    for pod in pods:
        if pod.get("spec", {}).get("nodeName") or pod["metadata"].get("labels", {}).get(
            names.TIER
        ) != names.label_value(tier.key):
            continue
        asked = _asked(pod, tier)
        for number, room in enumerate(rooms):
            if room.cores >= asked.cores and room.memory >= asked.memory and room.gpus >= asked.gpus:
                rooms[number] = room.less(asked)
                break
    return tuple(rooms)


def _counted(tier: NodeTier, pods: Sequence[Json]) -> TierRoom:
    """Where nodes may not be read, ours are the only pods that count, one node after the other."""
    whole_node = Room(tier.cores * 1000, tier.memory_bytes, tier.gpus)
    rooms = [whole_node] * tier.nodes
    waiting = [{**pod, "spec": {**pod.get("spec", {}), "nodeName": None}} for pod in pods]
    return TierRoom(tier, tuple(rooms), _reserved(rooms, tier, waiting))
