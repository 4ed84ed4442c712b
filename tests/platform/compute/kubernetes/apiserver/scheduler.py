"""Gives pods nodes, and says why not, in the words of Kubernetes' own scheduler."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.platform.compute.kubernetes.apiserver.admission import _number
from tests.platform.compute.kubernetes.apiserver.api import Api
from tests.platform.compute.kubernetes.apiserver.store import timestamp

Json = dict[str, Any]


def schedule(api: Api) -> None:
    """One look at all pods that wait."""
    for pod in api.store.all("pods"):
        if (
            pod["spec"].get("nodeName")
            or pod["status"].get("phase") != "Pending"
            or "deletionTimestamp" in pod["metadata"]
        ):
            continue
        why: Counter[str] = Counter()
        nodes = api.store.all("nodes")
        for node in nodes:
            problem = _unfit(api, pod, node)
            if problem is None:
                _bind(api, pod, node["metadata"]["name"])
                break
            why[problem] += 1
        else:
            _say_unschedulable(api, pod, len(nodes), why)


def _unfit(api: Api, pod: Json, node: Json) -> str | None:
    labels = node["metadata"].get("labels") or {}
    if node["spec"].get("unschedulable"):
        return "node(s) were unschedulable"
    for taint in node["spec"].get("taints") or []:
        if taint["effect"] != "PreferNoSchedule" and not any(
            _tolerates(t, taint) for t in pod["spec"].get("tolerations") or []
        ):
            return f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"
    if not (pod["spec"].get("nodeSelector") or {}).items() <= labels.items():
        return "node(s) didn't match Pod's node affinity/selector"
    free = {name: _number(amount) for name, amount in node["status"]["allocatable"].items()}
    for other in api.store.all("pods"):
        if other["spec"].get("nodeName") == node["metadata"]["name"] and other["status"].get("phase") not in (
            "Succeeded",
            "Failed",
        ):
            for name, amount in _asked(other).items():
                free[name] = free.get(name, 0) - amount
    for name, amount in _asked(pod).items():
        if amount > free.get(name, 0):
            return f"Insufficient {name}"
    return None


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return toleration.get("key") == taint["key"] and toleration.get("value", "") == taint.get("value", "")


def _asked(pod: Json) -> dict[str, float]:
    total: dict[str, float] = {}
    for container in pod["spec"]["containers"]:
        for name, amount in ((container.get("resources") or {}).get("requests") or {}).items():
            total[name] = total.get(name, 0) + _number(amount)
    return total


def _bind(api: Api, pod: Json, node: str) -> None:
    def how(body: Json) -> None:
        body["spec"]["nodeName"] = node
        rest = [c for c in body["status"].get("conditions") or [] if c["type"] != "PodScheduled"]
        body["status"]["conditions"] = [
            *rest,
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": timestamp()},
        ]

    api.store.change("pods", pod["metadata"]["namespace"], pod["metadata"]["name"], how, "scheduler")


def _say_unschedulable(api: Api, pod: Json, nodes: int, why: Counter[str]) -> None:
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(why.items()))
    message = f"0/{nodes} nodes are available: {reasons}." if nodes else "0/0 nodes are available."
    told = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    known = next((c for c in pod["status"].get("conditions") or [] if c["type"] == "PodScheduled"), {})
    if known.get("message") != message:
        api.set_condition(
            pod["metadata"]["namespace"], pod["metadata"]["name"], told | {"lastTransitionTime": timestamp()}
        )
