"""A replica as it is: from its record, its pod, its node and what it said of itself. Pure.

Of the replica's own words phase, times and metrics are taken while its pod runs. Whether it runs, is ready or has ended
is the kubelet's word, and where Kubernetes knows a better reason for an end than the replica does, that one counts.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import msgspec

from berth.compute.launch import Phase, PhaseTiming, ReplicaStatus
from berth.compute.provider import ObservedReplica
from berth.compute.providers.kubernetes import names, reasons
from berth.compute.providers.kubernetes.clusters import Cluster
from berth.compute.providers.kubernetes.journal import last_word
from berth.compute.providers.kubernetes.pod import END_SECONDS

Json = dict[str, Any]

CREATE_SECONDS: Final = 5.0  # between a record and its pod
LOG_SECONDS: Final = 10.0  # until a ready pod counts as ready although its log cannot be read
_AGENT_LOST: Final = "The replica's process ended without saying why. Its node may be short of memory."
_POD_GONE: Final = "The replica's pod was taken from the cluster by somebody else, or went with its node."


class Sight(msgspec.Struct, frozen=True):
    """Everything that is known of one replica."""

    record: Json
    pod: Json | None
    node: Json | None  # the pod's, where nodes may be read
    told: ReplicaStatus | None  # the latest that its log says
    pending: int = 1  # pods of its tier that wait for room
    departed: Json | None = None  # how its pod last was, if somebody else removed it


def observed(sight: Sight, cluster: Cluster, now: float) -> ObservedReplica:
    """`now` in Unix seconds."""
    metadata = sight.record["metadata"]
    annotations = metadata.get("annotations") or {}
    seen = ObservedReplica(
        name=annotations.get(names.REPLICA, metadata["name"]),
        org_id=annotations.get(names.ORG, ""),
        deployment_id=annotations.get(names.DEPLOYMENT, ""),
        revision=int(metadata["labels"].get(names.REVISION, "0")),
        phase=Phase.STOPPED,
        phases=(),
        alive=False,
        updated_at=0.0,
    )
    if sight.pod is None:
        return _without_pod(seen, annotations, now)
    if over(sight):
        return _ended(seen, sight, stop_ordered=names.STOP_AT in annotations)
    return _alive(seen, sight, sight.pod, cluster, now)


def over(sight: Sight) -> bool:
    """Whether nothing of the replica's pod runs any more, or nothing can be known of it."""
    pod = sight.pod or {}
    if pod.get("status", {}).get("phase") in ("Succeeded", "Failed") or reasons.node_lost(pod, sight.node) is not None:
        return True
    if pod and "deletionTimestamp" in pod["metadata"] and not pod["spec"].get("nodeName"):
        return True  # no node ever gets it; only somebody's finalizer keeps it
    if "terminated" in reasons.ours(pod).get("state", {}):
        return True  # also where a container that somebody put beside it runs on
    return any(map(reasons.is_looping, reasons.container_statuses(pod)))


def why_departed(sight: Sight) -> reasons.Why | None:
    """Why a pod went that nobody asked to go, and of which nothing is noted yet."""
    annotations = sight.record["metadata"].get("annotations") or {}
    if sight.pod is not None or sight.departed is None or {names.STOP_AT, names.END} & annotations.keys():
        return None
    owners = sight.departed["metadata"].get("ownerReferences") or []
    if not any(owner.get("uid") == sight.record["metadata"]["uid"] for owner in owners):
        return None
    return reasons.ended(sight.departed) or reasons.Why("agent_lost", _POD_GONE)


def stuck_for_good(sight: Sight, tier_waits: reasons.Why | None, now: float) -> bool:
    """Whether a pod that cannot begin has had the time that its replica had to get ready. Waiting for room costs nothing
    and is never given up; an image or a volume that does not come is."""
    if sight.pod is None or tier_waits is None or tier_waits.reason == "no_capacity" or over(sight):
        return False
    deadline = float((sight.record["metadata"].get("annotations") or {}).get(names.START_DEADLINE, "600"))
    scheduled = (
        reasons.condition(sight.pod, "PodScheduled").get("lastTransitionTime")
        or sight.pod["metadata"]["creationTimestamp"]
    )
    return now - unix(scheduled) > deadline


def unix(timestamp: str) -> float:
    """Seconds of Kubernetes' RFC 3339."""
    return datetime.fromisoformat(timestamp).timestamp()


def _without_pod(seen: ObservedReplica, annotations: Json, now: float) -> ObservedReplica:
    started_at = float(annotations.get(names.STARTED_AT, "0"))
    if names.STOP_AT in annotations:
        return msgspec.structs.replace(seen, updated_at=float(annotations[names.STOP_AT]))
    if names.END in annotations:
        why = msgspec.json.decode(annotations[names.END], type=reasons.Why)
        return msgspec.structs.replace(
            seen, phase=Phase.FAILED, updated_at=started_at, reason=why.reason, message=why.message
        )
    if now - started_at < CREATE_SECONDS:
        return seen  # whoever made the record is about to make the pod
    return msgspec.structs.replace(
        seen, phase=Phase.FAILED, updated_at=started_at, reason="agent_lost", message=_POD_GONE
    )


def _ended(seen: ObservedReplica, sight: Sight, *, stop_ordered: bool) -> ObservedReplica:
    pod = sight.pod or {}
    said = _said(seen, sight.told)
    seen = msgspec.structs.replace(
        said, alive=False, updated_at=said.updated_at or _began(pod), metrics=None, port=None, host=None
    )
    why = reasons.node_lost(pod, sight.node) or reasons.ended(pod)
    phase, reason, message = _last_words(pod, sight.told)
    if phase == Phase.STOPPED and (stop_ordered or reason):
        return msgspec.structs.replace(seen, phase=Phase.STOPPED, reason=reason, message=message)
    if stop_ordered:
        return msgspec.structs.replace(seen, phase=Phase.STOPPED, reason="stopped_by_force", message=None)
    if why is not None and reason != "out_of_memory":
        return msgspec.structs.replace(seen, phase=Phase.FAILED, reason=why.reason, message=why.message)
    if reason is not None:
        return msgspec.structs.replace(seen, phase=Phase.FAILED, reason=reason, message=message)
    message = _POD_GONE if phase == Phase.STOPPED else _AGENT_LOST
    return msgspec.structs.replace(seen, phase=Phase.FAILED, reason="agent_lost", message=message)


def _last_words(pod: Json, told: ReplicaStatus | None) -> tuple[str | None, str | None, str | None]:
    """Phase, reason and message of the end: the termination message, else the last status if it was a final one."""
    for each in (reasons.ours(pod), *reasons.container_statuses(pod)):
        word = last_word(reasons.end_of(each).get("message") or "")
        if word[0] in (Phase.STOPPED, Phase.FAILED) or word[1]:
            return word
    if told is not None and told.phase.final:
        return told.phase, told.reason, told.message
    return None, None, None


def _alive(seen: ObservedReplica, sight: Sight, pod: Json, cluster: Cluster, now: float) -> ObservedReplica:
    """The kubelet vouches for a pod that it calls ready, so that one is as fresh as our watch is."""
    running = _running(pod)
    starting = PhaseTiming(Phase.VERIFYING, _began(pod))
    seen = _said(msgspec.structs.replace(seen, phase=starting.phase, phases=(starting,)), sight.told)
    ready = reasons.condition(pod, "Ready").get("status") == "True"
    leaving = "deletionTimestamp" in pod["metadata"]
    if not running:
        why = reasons.waiting(pod, cluster.tier_named(pod["metadata"]["labels"].get(names.TIER, "")), sight.pending)
        began = unix(pod["metadata"]["creationTimestamp"])
        return msgspec.structs.replace(
            seen,
            alive=True,
            phase=Phase.FETCHING,
            phases=(PhaseTiming(Phase.FETCHING, began),),
            updated_at=now,
            reason=why.reason if why else None,
            message=why.message if why else None,
        )
    seen = msgspec.structs.replace(seen, alive=True, updated_at=now if ready else max(seen.updated_at, _began(pod)))
    if leaving:
        why = reasons.disrupted(pod)
        return msgspec.structs.replace(
            seen, phase=Phase.DRAINING, reason=why.reason if why else None, message=why.message if why else None
        )
    if ready:
        return _ready(seen, pod, cluster, now)
    if seen.phase is Phase.READY:  # it says so, and does not answer its probe
        return msgspec.structs.replace(seen, phase=Phase.WARMING)
    return msgspec.structs.replace(seen, phase=Phase.DRAINING if seen.phase.final else seen.phase)


def _ready(seen: ObservedReplica, pod: Json, cluster: Cluster, now: float) -> ObservedReplica:
    address = pod.get("status", {}).get("podIP")
    if not address or seen.phase in (Phase.DRAINING, Phase.FAILED):
        return msgspec.structs.replace(seen, phase=Phase.DRAINING, host=None, port=None)
    phases = seen.phases
    if seen.phase is not Phase.READY:
        since = reasons.condition(pod, "Ready").get("lastTransitionTime")
        at = unix(since) if since else now
        if now - at < LOG_SECONDS:
            return seen  # its log is behind, and will tell of the phases in between
        ended = tuple(msgspec.structs.replace(p, ended_at=at) if p.ended_at is None else p for p in phases)
        phases = (*ended, PhaseTiming(Phase.READY, at))
    return msgspec.structs.replace(seen, phase=Phase.READY, phases=phases, host=str(address), port=cluster.engine_port)


def _said(seen: ObservedReplica, told: ReplicaStatus | None) -> ObservedReplica:
    if told is None:
        return seen
    return msgspec.structs.replace(
        seen,
        phase=told.phase,
        phases=told.phases,
        updated_at=told.updated_at,
        engine_version=told.engine_version,
        reason=told.reason,
        message=told.message,
        metrics=told.metrics,
    )


def _running(pod: Json) -> bool:
    return "running" in reasons.ours(pod).get("state", {})


def _began(pod: Json) -> float:
    for each in (reasons.ours(pod), *reasons.container_statuses(pod)):
        state = each.get("state", {})
        began = (state.get("running") or {}).get("startedAt") or reasons.end_of(each).get("finishedAt")
        if began:
            return unix(began)
    return unix(pod["metadata"]["creationTimestamp"])


def outlived(pod: Json, now: float) -> bool:
    """Whether a pod that was to end is still there long after its time: its kubelet is gone."""
    deleted = pod["metadata"].get("deletionTimestamp")  # the instant by which it should have ended
    return deleted is not None and now - unix(deleted) > 2 * END_SECONDS
