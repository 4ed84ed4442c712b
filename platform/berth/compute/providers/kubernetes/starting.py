"""What a refusal of the API server means for a replica that was to start. Pure."""

from __future__ import annotations

from berth.compute.provider import NoCapacity, ProviderError, ProviderUnavailable
from berth.compute.providers.kubernetes.clusters import Cluster
from berth.compute.providers.kubernetes.errors import Refusal


def as_start_error(refused: Refusal, cluster: Cluster, *, group: bool) -> ProviderError:
    """What an operator has to mend first keeps the replica waiting (ProviderUnavailable): trying it again and again is no failure of its
    deployment."""
    if refused.over_quota:
        return NoCapacity("The namespace's quota is used up. Stop another deployment or ask your operator for more.")
    if refused.against_policy:
        return ProviderError(
            "The cluster's admission policy refuses the replica's pod. Ask your operator to look at it."
        )
    if refused.not_permitted:
        return ProviderUnavailable(
            f"Berth's account may not make replicas in namespace {cluster.namespace} of cluster {cluster.name}. "
            "Ask your operator to give it its role."
        )
    if refused.namespace_ending:
        return ProviderUnavailable(
            f"Namespace {cluster.namespace} of cluster {cluster.name} is being deleted, so nothing can start there."
        )
    if group and refused.not_found:
        return ProviderError(
            f"Cluster {cluster.name} has no LeaderWorkerSet, which replicas of several nodes need. Ask your operator to install it."
        )
    return refused
