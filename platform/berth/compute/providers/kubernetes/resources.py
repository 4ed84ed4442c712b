"""What a replica takes of a node, within what its tier allows."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from berth.compute.launch import LaunchSpec
from berth.compute.provider import ProviderError
from berth.compute.providers.kubernetes.clusters import Cluster, NodeTier
from berth.compute.providers.kubernetes.quantities import mebibytes

AGENT_BYTES: Final = 256 << 20  # the runtime beside the engine
STATE_BYTES: Final = 64 << 20  # status, log, what was verified
TEMPORARY_BYTES: Final = 64 << 20
MAIN_MEMORY_BYTES: Final = 8 << 30  # of an engine that has its model on GPUs
SHARED_MEMORY_BYTES: Final = 1 << 30  # between the processes of one engine, with GPUs


class Take(msgspec.Struct, frozen=True):
    """Of one node."""

    cores: int
    memory: int  # bytes; request and limit alike, so that a node is never promised twice
    disk: int  # bytes, ephemeral
    gpus: int


def take_of(spec: LaunchSpec, tier: NodeTier, cluster: Cluster) -> Take:
    """What this replica asks of each of its nodes. Raises ProviderError if that is more than the tier has.

    Memory holds the engine's own, and the files it maps: what is read from a volume counts against a container as well.
    """
    files = sum(file.size for file in spec.files) + sum(f.size for a in spec.adapters for f in a.files)
    fetched = 0 if cluster.models_claim else files
    shared = SHARED_MEMORY_BYTES if spec.gpus else 0
    own = (spec.memory_limit or 0) + (0 if spec.gpus else files)
    if spec.gpus and not spec.memory_limit:
        # As planned (planner/on_gpus.py), and never more than the tier has beside agent and shared memory.
        own = max(0, min(MAIN_MEMORY_BYTES, tier.memory_bytes - AGENT_BYTES - shared))
    take = Take(
        cores=min(spec.threads, tier.cores),
        memory=max(own, 512 << 20) + AGENT_BYTES + shared,
        disk=STATE_BYTES + TEMPORARY_BYTES + fetched,
        gpus=spec.gpus,
    )
    if take.memory > tier.memory_bytes:
        raise ProviderError(
            f"The replica needs {take.memory >> 20} MiB of memory and one of tier {tier.key} may have "
            f"{tier.memory_bytes >> 20} MiB. Choose a larger tier or fewer slots."
        )
    if take.gpus > tier.gpus:
        raise ProviderError(f"The replica needs {take.gpus} GPUs and one of tier {tier.key} may have {tier.gpus}.")
    if fetched > cluster.cache_gib * (1 << 30):
        raise ProviderError(
            f"The model's files have {fetched >> 20} MiB and pods of cluster {cluster.name} may fetch "
            f"{cluster.cache_gib:g} GiB. Raise cache_gib or use a models_claim."
        )
    if spec.nodes > tier.max_nodes_per_replica:
        raise ProviderError(
            f"The replica spans {spec.nodes} nodes and tier {tier.key} allows {tier.max_nodes_per_replica}. "
            "For more, LeaderWorkerSet has to be installed (docs/kubernetes.md)."
        )
    return take


def container_resources(take: Take, tier: NodeTier) -> dict[str, Any]:
    """Requests and limits. CPU is requested whole and limited one core above, so that the agent is never starved."""
    fixed = {"memory": mebibytes(take.memory), "ephemeral-storage": mebibytes(take.disk)}
    if take.gpus:
        fixed[tier.gpu_resource] = str(take.gpus)
    return {
        "requests": {"cpu": str(take.cores), **fixed},
        "limits": {"cpu": str(min(take.cores + 1, tier.cores)), **fixed},
    }
