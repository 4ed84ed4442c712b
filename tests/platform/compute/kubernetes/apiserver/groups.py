"""LeaderWorkerSet's controller, as far as one group goes: a leader and its workers, each with its rank."""

from __future__ import annotations

import copy
from typing import Any

from tests.platform.compute.kubernetes.apiserver.api import Api
from tests.platform.compute.kubernetes.apiserver.resources import by_kind

Json = dict[str, Any]
INDEX = "leaderworkerset.sigs.k8s.io/worker-index"


def make_groups(api: Api) -> None:
    """Makes the pods that are not there."""
    for group in api.store.all("leaderworkersets"):
        template = group["spec"]["leaderWorkerTemplate"]
        leader = f"{group['metadata']['name']}-0"
        for rank in range(template["size"]):
            name = leader if rank == 0 else f"{leader}-{rank}"
            if api.store.find("pods", group["metadata"]["namespace"], name) is None:
                _make(api, group, template["leaderTemplate" if rank == 0 else "workerTemplate"], name, rank, leader)


def _make(api: Api, group: Json, template: Json, name: str, rank: int, leader: str) -> None:
    pod = copy.deepcopy(template)
    pod |= {"apiVersion": "v1", "kind": "Pod"}
    metadata = pod["metadata"]
    metadata |= {"name": name, "namespace": group["metadata"]["namespace"]}
    metadata["labels"][INDEX] = str(rank)
    owner = {key: group[key] for key in ("apiVersion", "kind")}
    metadata["ownerReferences"] = [
        {**owner, "name": group["metadata"]["name"], "uid": group["metadata"]["uid"], "controller": True}
    ]
    for container in pod["spec"]["containers"]:
        container["env"].append({"name": "LWS_LEADER_ADDRESS", "value": leader})
    api.create(by_kind("Pod"), metadata["namespace"], pod, "lws")
