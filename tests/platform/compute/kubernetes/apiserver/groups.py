"""LeaderWorkerSet's controller, as far as one group goes: a leader and its workers, each with its rank."""

from __future__ import annotations

import copy
from typing import Any

from tests.platform.compute.kubernetes.apiserver.api import Api
from tests.platform.compute.kubernetes.apiserver.resources import by_kind

Json = dict[str, Any]
INDEX = "leaderworkerset.sigs.k8s.io/worker-index"


def make_groups(api: Api) -> None:
    """Makes the pods that are not there. A group of which one has ended goes as a whole first, where that is asked for."""
    for group in api.store.all("leaderworkersets"):
        template = group["spec"]["leaderWorkerTemplate"]
        space, leader = group["metadata"]["namespace"], f"{group['metadata']['name']}-0"
        called = [leader if rank == 0 else f"{leader}-{rank}" for rank in range(template["size"])]
        there = [pod for pod in (api.store.find("pods", space, name) for name in called) if pod is not None]
        ending = [pod for pod in there if "deletionTimestamp" in pod["metadata"]]
        broken = bool(ending) or any(map(_has_ended, there)) or 0 < len(there) < len(called)
        if broken and template.get("restartPolicy") == "RecreateGroupOnPodRestart":
            for pod in there:
                if pod not in ending:
                    api.delete(by_kind("Pod"), space, pod["metadata"]["name"], {})
            continue
        if ending:
            continue
        for rank, name in enumerate(called):
            if api.store.find("pods", space, name) is None:
                _make(api, group, template["leaderTemplate" if rank == 0 else "workerTemplate"], name, rank, leader)


def _has_ended(pod: Json) -> bool:
    """Whether its container was or is to be started again."""
    told = (pod.get("status") or {}).get("containerStatuses") or []
    return any(each.get("restartCount") or "lastState" in each for each in told)


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
