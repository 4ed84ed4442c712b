"""Why a pod does not run, in a stable code and a sentence for people. Pure: from what Kubernetes says of the pod.

Kubernetes' own texts are read for their numbers and kinds and never shown: some quote what a tenant wrote.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from berth.compute.providers.kubernetes.clusters import NodeTier

Json = Mapping[str, Any]

CONTAINER: Final = "runtime"
_IMAGE: Final = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "RegistryUnavailable",
        "ImageInspectError",
    }
)
_REFUSED: Final = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PreCreateHookError"}
)
_SHORT_OF: Final = re.compile(r"(\d+) Insufficient ([A-Za-z0-9./_-]*[A-Za-z0-9])")
_NODES: Final = re.compile(r"^0/(\d+) nodes")
_EVICTED_FOR: Final = re.compile(r"low on resource: ([a-z-]+)")


class Why(msgspec.Struct, frozen=True):
    reason: str  # stable code
    message: str


def waiting(pod: Json, tier: NodeTier | None, pending: int) -> Why | None:
    """Why a pod that has not begun does not begin; None: it is on its way. `pending`: pods of its tier that wait for room."""
    unscheduled = condition(pod, "PodScheduled")
    if unscheduled.get("status") == "False" and unscheduled.get("reason") in ("Unschedulable", "SchedulerError"):
        return Why("no_capacity", _no_room(str(unscheduled.get("message", "")), pod, tier, pending))
    if unscheduled.get("reason") == "SchedulingGated":
        return Why("no_capacity", "The cluster's own queue holds the replica back. It starts when the queue lets it.")
    for status in container_statuses(pod):
        stuck = status.get("state", {}).get("waiting", {}).get("reason", "")
        if stuck in _IMAGE:
            return Why(
                "image_unavailable",
                f"The runtime's image cannot be pulled ({stuck}). Check its name and digest, and the cluster's access to the registry.",
            )
        if stuck in _REFUSED:
            return Why(
                "pod_refused",
                f"The node cannot start the replica's container ({stuck}). Ask your operator to look at the pod's events.",
            )
    return None


def ended(pod: Json) -> Why | None:
    """Why a pod has ended, where Kubernetes knows more of it than the replica could say itself; None: it does not."""
    status = pod.get("status", {})
    reason = str(status.get("reason", ""))
    if reason == "Evicted":
        short = _EVICTED_FOR.search(str(status.get("message", "")))
        what = f" of {short.group(1)}" if short else ""
        return Why("evicted", f"The node ran short{what} and put the replica out. It is started elsewhere.")
    if reason in ("NodeShutdown", "Terminated", "Shutdown"):
        return Why("node_shutdown", "The replica's node was shut down. It is started elsewhere.")
    if reason == "NodeLost":
        return _LOST
    if reason == "DeadlineExceeded":
        return Why("start_timeout", "The replica's pod outlived the time that the cluster allows.")
    if reason in (
        "UnexpectedAdmissionError",
        "OutOfcpu",
        "OutOfmemory",
        "OutOfpods",
        "NodeAffinity",
    ) or reason.startswith("OutOf"):
        return Why(
            "node_refused", f"The node took the replica and then had no room for it ({reason}). It is started again."
        )
    if end_of(ours(pod)).get("reason") == "OOMKilled":
        return Why(
            "out_of_memory",
            "The replica took more memory than its pod may have, and the kernel ended it. "
            "Deploy with fewer slots, a shorter context or a larger tier.",
        )
    return disrupted(pod)


_LOST: Final = Why("node_lost", "The replica's node does not answer any more. The replica is started elsewhere.")
_DISRUPTIONS: Final = {
    "PreemptionByScheduler": Why(
        "preempted", "The cluster gave the replica's place to something more important. It is started elsewhere."
    ),
    "DeletionByTaintManager": Why("node_lost", _LOST.message),
    "EvictionByEvictionAPI": Why(
        "node_drained", "The replica's node is being emptied. The replica is started elsewhere."
    ),
    "DeletionByPodGC": Why(
        "node_lost", "The replica's node is gone, as happens to spot machines. The replica is started elsewhere."
    ),
    "TerminationByKubelet": Why(
        "node_shutdown", "The replica's node is shutting down or short of something. The replica is started elsewhere."
    ),
}


def disrupted(pod: Json) -> Why | None:
    """Why Kubernetes takes a pod away, as it says beforehand."""
    told = condition(pod, "DisruptionTarget")
    if told.get("status") != "True":
        return None
    return _DISRUPTIONS.get(str(told.get("reason", "")), Why("disrupted", "The cluster took the replica away."))


def node_lost(pod: Json, node: Json | None) -> Why | None:
    """A node that went while the pod stands as running: nothing on it can be believed."""
    if pod.get("status", {}).get("phase") not in ("Running", "Pending") or not pod.get("spec", {}).get("nodeName"):
        return None
    ready = condition(pod, "Ready")
    if ready.get("reason") == "NodeLost":
        return _LOST
    if node is not None and condition(node, "Ready").get("status") == "Unknown":
        return _LOST
    return None


def condition(thing: Json, kind: str) -> dict[str, Any]:
    """The condition of this type of a pod or node; empty if it has none."""
    for each in thing.get("status", {}).get("conditions") or []:
        if each.get("type") == kind:
            found: dict[str, Any] = each
            return found
    return {}


def is_looping(container: Json) -> bool:
    """Whether it ended and is to be started again, as pods of a group are: for a replica that is an end."""
    waiting_for = (container.get("state", {}).get("waiting") or {}).get("reason")
    return waiting_for == "CrashLoopBackOff" or (int(container.get("restartCount") or 0) > 0)


def end_of(container: Json) -> dict[str, Any]:
    """How a container ended, now or the last time; empty if it never did."""
    found: dict[str, Any] = (
        container.get("state", {}).get("terminated") or (container.get("lastState") or {}).get("terminated") or {}
    )
    return found


def ours(pod: Json) -> dict[str, Any]:
    """The status of the container with the runtime, whatever a cluster's webhook put beside it; empty before there is one."""
    named = [each for each in container_statuses(pod) if each.get("name") == CONTAINER]
    unnamed = [each for each in container_statuses(pod) if "name" not in each]
    return next(iter(named or unnamed), {})


def container_statuses(pod: Json) -> list[dict[str, Any]]:
    status = pod.get("status", {})
    return [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]


def _no_room(message: str, pod: Json, tier: NodeTier | None, pending: int) -> str:
    """ "No node has 2 free L4; 3 pending." The scheduler says what is short, the pod how much of it was asked for."""
    nodes = _NODES.match(message)
    if nodes and nodes.group(1) == "0":
        return f"The cluster has no nodes. {pending} pending."
    short = {resource for _, resource in _SHORT_OF.findall(message)}
    containers = pod["spec"]["containers"]
    mine = next((each for each in containers if each.get("name") == CONTAINER), containers[0])
    asked = mine.get("resources", {}).get("requests", {})
    name = (tier.gpu or "GPU").upper() if tier else "GPU"
    if tier and tier.gpu_resource in short:
        return f"No node has {asked.get(tier.gpu_resource, '1')} free {name}; {pending} pending."
    if "memory" in short:
        return f"No node{_of(tier)} has {asked.get('memory')} of free memory; {pending} pending."
    if "cpu" in short:
        return f"No node{_of(tier)} has {asked.get('cpu')} free CPU cores; {pending} pending."
    if short:
        return f"No node{_of(tier)} has enough {min(short)}; {pending} pending."
    if "taint" in message or "affinity" in message or "selector" in message:
        return f"No node{_of(tier)} may take the replica: the tier's node_selector and tolerations match none. {pending} pending."
    return f"The cluster has found no node for the replica yet; {pending} pending."


def _of(tier: NodeTier | None) -> str:
    return f" of tier {tier.key}" if tier else ""
