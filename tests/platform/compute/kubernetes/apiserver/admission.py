"""What a cluster accepts: schemas, names, immutable fields, restricted pod security. And the defaults that it fills in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tests.platform.compute.kubernetes.apiserver.failure import Failure, invalid
from tests.platform.compute.kubernetes.schemas import problems

Json = dict[str, Any]
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
_LABEL_KEY = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_POD_MUTABLE = ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "nodeName")


def check(before: Json | None, after: Json, version: str) -> None:
    """Raises Failure 422 with a cause for each field."""
    name = after["metadata"].get("name", "")
    wrong = list(_metadata_problems(after)) + list(problems(after, version))
    if after["kind"] == "Pod":
        wrong += list(_pod_problems(before, after))
    if after["kind"] == "Secret" and before and before.get("type") != after.get("type", "Opaque"):
        wrong.append(("type", "field is immutable"))
    if wrong:
        raise invalid(after["kind"], name, wrong)


def _metadata_problems(body: Json) -> Iterator[tuple[str, str]]:
    metadata = body["metadata"]
    name = metadata.get("name", "")
    if (
        not _SUBDOMAIN.fullmatch(name)
        or len(name) > 253
        or (body["kind"] in ("Pod", "Service") and len(name) > 63 and "." not in name)
    ):
        yield "metadata.name", f"Invalid value: {name!r}: a lowercase RFC 1123 subdomain must consist of …"
    for key, value in (metadata.get("labels") or {}).items():
        if not _LABEL_KEY.fullmatch(key) or not _LABEL.fullmatch(value):
            yield f"metadata.labels.{key}", f"Invalid value: {value!r}: must be no more than 63 characters …"
    if sum(len(k) + len(v) for k, v in (metadata.get("annotations") or {}).items()) > 256 << 10:
        yield "metadata.annotations", "Too long: must have at most 262144 bytes"
    owners = metadata.get("ownerReferences") or []
    if sum(bool(owner.get("controller")) for owner in owners) > 1:
        yield "metadata.ownerReferences", "Only one reference can have Controller set to true"


def _pod_problems(before: Json | None, after: Json) -> Iterator[tuple[str, str]]:
    spec = after["spec"]
    volumes = {volume["name"] for volume in spec.get("volumes") or []}
    for container in spec["containers"]:
        for mount in container.get("volumeMounts") or []:
            if mount["name"] not in volumes:
                yield f"spec.containers[{container['name']}].volumeMounts", f"Not found: {mount['name']!r}"
        resources = container.get("resources") or {}
        for resource, asked in (resources.get("requests") or {}).items():
            limit = (resources.get("limits") or {}).get(resource)
            if limit is not None and _number(asked) > _number(limit):
                yield (
                    f"spec.containers[{container['name']}].resources.requests",
                    f"{resource} must be less than or equal to its limit",
                )
            if "/" in resource and limit != asked:
                yield (
                    f"spec.containers[{container['name']}].resources",
                    f"{resource}: requests and limits must be equal",
                )
    if before is not None:
        old, new = ({k: v for k, v in each["spec"].items() if k not in _POD_MUTABLE} for each in (before, after))
        if old != new:
            yield "spec", "Forbidden: pod updates may not change fields other than …"


def fill_in(body: Json) -> None:
    """Defaults, as far as anything here depends on them."""
    if body["kind"] != "Pod":
        return
    spec = body["spec"]
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("dnsPolicy", "ClusterFirst")
    for container in spec["containers"]:
        container.setdefault("imagePullPolicy", "IfNotPresent")
        container.setdefault("terminationMessagePolicy", "File")
    for constraint in spec.get("tolerations") or []:
        constraint.setdefault("operator", "Equal")
    body.setdefault("status", {"phase": "Pending"})


def require_restricted(body: Json) -> None:
    """Raises Failure 403, as Pod Security admission does in a namespace that enforces `restricted`."""
    wrong = list(unrestricted(body["spec"]))
    if wrong:
        name = body["metadata"]["name"]
        told = f'pods "{name}" is forbidden: violates PodSecurity "restricted:latest": {"; ".join(wrong)}'
        raise Failure(403, "Forbidden", told)


def unrestricted(spec: Json) -> Iterator[str]:
    """Where a pod's spec is not what the standard `restricted` demands."""
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(name):
            yield name
    allowed = {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
    for volume in spec.get("volumes") or []:
        if not (set(volume) - {"name"}) <= allowed:
            yield f"volume {volume['name']}"
    pod = spec.get("securityContext") or {}
    for container in [*spec["containers"], *(spec.get("initContainers") or [])]:
        own = container.get("securityContext") or {}
        where = f"container {container['name']}"
        if own.get("allowPrivilegeEscalation") is not False or own.get("privileged"):
            yield f"{where}: allowPrivilegeEscalation"
        if not own.get("runAsNonRoot", pod.get("runAsNonRoot")) or own.get("runAsUser", pod.get("runAsUser")) == 0:
            yield f"{where}: runAsNonRoot"
        capabilities = own.get("capabilities") or {}
        if capabilities.get("drop") != ["ALL"] or set(capabilities.get("add") or []) - {"NET_BIND_SERVICE"}:
            yield f"{where}: capabilities"
        if (own.get("seccompProfile") or pod.get("seccompProfile") or {}).get("type") not in (
            "RuntimeDefault",
            "Localhost",
        ):
            yield f"{where}: seccompProfile"
        if any("hostPort" in port for port in container.get("ports") or []):
            yield f"{where}: hostPort"


def _number(text: Any) -> float:
    units = {"m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
    match = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", str(text))
    assert match, text
    return float(match.group(1)) * (units[match.group(2)] if match.group(2) else 1)
