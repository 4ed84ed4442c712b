"""Names and labels that Kubernetes accepts, made from ours without two of ours ever meeting in one of its."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

from berth.compute.launch import LaunchSpec
from berth.compute.provider import ProviderError

MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGER: Final = "berth"
PART: Final = "berth.dev/part"  # "replica"
ORG: Final = "berth.dev/org"
DEPLOYMENT: Final = "berth.dev/deployment"
REVISION: Final = "berth.dev/revision"
REPLICA: Final = "berth.dev/replica"  # as a label possibly shortened, as an annotation whole
TIER: Final = "berth.dev/tier"
NODES: Final = "berth.dev/nodes"
STARTED_AT: Final = "berth.dev/started-at"  # annotation: Unix seconds of the last start
STOP_AT: Final = "berth.dev/stop-ordered-at"  # annotation: Unix seconds at which it was asked to end
END: Final = "berth.dev/end"  # annotation: why a pod went that nobody asked to go
FETCHES: Final = "berth.dev/fetches"  # label: the pod may reach the store until it has its files
START_DEADLINE: Final = "berth.dev/start-deadline-seconds"

OURS: Final = f"{MANAGED_BY}={MANAGER},{PART}=replica"

MAX_NAME: Final = 52  # LeaderWorkerSet appends to it, and a label has 63 characters
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_DNS_LABEL: Final = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


def object_name(replica: str) -> str:
    """The name of a replica's objects: a DNS label of at most 52 characters. Raises ProviderError for no plain name."""
    if not _NAME.fullmatch(replica):
        raise ProviderError("A replica's name must be of letters, digits, '.', '_' and '-'.")
    return _dns_label(f"r-{replica}", MAX_NAME)


def deployment_name(deployment_id: str) -> str:
    """The name of what a deployment's replicas have in common."""
    return _dns_label(f"d-{deployment_id}", MAX_NAME)


def label_value(text: str) -> str:
    """`text` itself where it can be a label's value (at most 63 characters), else a shortened form with its digest."""
    if len(text) <= 63 and _LABEL_VALUE.fullmatch(text):
        return text
    return _shortened(re.sub(r"[^A-Za-z0-9._-]+", "-", text), text, 63)


def labels_of(spec: LaunchSpec) -> dict[str, str]:
    """On every object of a replica."""
    return {
        MANAGED_BY: MANAGER,
        PART: "replica",
        "app.kubernetes.io/name": "berth-runtime",
        ORG: label_value(spec.org_id),
        DEPLOYMENT: label_value(spec.deployment_id),
        REVISION: str(spec.revision),
        REPLICA: label_value(spec.replica),
        TIER: label_value(spec.tier),
        NODES: str(spec.nodes),
    }


def is_group(record: Mapping[str, Any]) -> bool:
    """Whether a replica has several pods, by its record."""
    return bool(record["metadata"]["labels"].get(NODES, "1") != "1")


def pod_of(record: Mapping[str, Any]) -> str:
    """The name of the pod that serves for a replica, by its record: of a group it is the leader's."""
    name = str(record["metadata"]["name"])
    return f"{name}-0" if is_group(record) else name


def selector(labels: Mapping[str, str]) -> str:
    """A label selector for the API's query."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def _dns_label(text: str, longest: int) -> str:
    if len(text) <= longest and _DNS_LABEL.fullmatch(text) and "-x" not in text[-11:]:
        return text
    return _shortened(re.sub(r"[^a-z0-9]+", "-", text.lower()), text, longest)


def _shortened(readable: str, original: str, longest: int) -> str:
    """`-x` and nine characters of the digest mark what was changed, so that it cannot be mistaken for a name as it is."""
    digest = hashlib.sha256(original.encode()).hexdigest()[:9]
    head = readable[: longest - 11].strip("-._") or "x"
    return f"{head}-x{digest}"
