"""A replica that spans nodes: a LeaderWorkerSet whose leader is the pod that serves. Pure."""

from __future__ import annotations

from typing import Any, Final

from berth.compute.launch import LaunchSpec
from berth.compute.providers.kubernetes import names
from berth.compute.providers.kubernetes.clusters import Cluster, NodeTier
from berth.compute.providers.kubernetes.kinds import GROUP
from berth.compute.providers.kubernetes.pod import pod_labels, pod_spec
from berth.compute.providers.kubernetes.resources import Take

Json = dict[str, Any]

WORKER_INDEX: Final = "leaderworkerset.sigs.k8s.io/worker-index"  # label; "0" is the leader


def group_object(spec: LaunchSpec, cluster: Cluster, tier: NodeTier, take: Take, owner: list[Json]) -> Json:
    """One group of `spec.nodes` pods. Workers serve nobody and so have no probe of readiness: the leader's speaks for all."""
    name = names.object_name(spec.replica)
    labels = names.labels_of(spec)
    leader = pod_spec(spec, cluster, tier, take)
    worker = pod_spec(spec, cluster, tier, take)
    for probe in ("startupProbe", "readinessProbe"):
        worker["containers"][0].pop(probe)
    for body in (leader, worker):
        body["containers"][0]["env"] += [
            {
                "name": "NODE_RANK",
                "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{WORKER_INDEX}']"}},
            }
        ]
        body["containers"][0]["args"] += [
            f"--nodes={spec.nodes}",
            "--node-rank=$(NODE_RANK)",
            "--leader=$(LWS_LEADER_ADDRESS)",
        ]
        del body["restartPolicy"]  # a group's pods belong to a StatefulSet, which knows Always only
    metadata = {"labels": pod_labels(spec, cluster), "annotations": {names.REPLICA: spec.replica}}
    return {
        "apiVersion": GROUP.api_version,
        "kind": GROUP.kind,
        "metadata": {"name": name, "namespace": cluster.namespace, "labels": labels, "ownerReferences": owner},
        "spec": {
            "replicas": 1,
            "startupPolicy": "LeaderCreated",
            "networkConfig": {"subdomainPolicy": "UniquePerReplica"},
            "leaderWorkerTemplate": {
                "size": spec.nodes,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": {"metadata": metadata, "spec": leader},
                "workerTemplate": {"metadata": metadata, "spec": worker},
            },
        },
    }
