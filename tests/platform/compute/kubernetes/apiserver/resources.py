"""The resources that the API server has, by group and version."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Resource:
    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    short: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


RESOURCES = (
    Resource("", "v1", "pods", "Pod", short=("po",), subresources=("status", "log", "eviction")),
    Resource("", "v1", "configmaps", "ConfigMap", short=("cm",)),
    Resource("", "v1", "secrets", "Secret"),
    Resource("", "v1", "events", "Event", short=("ev",)),
    Resource("", "v1", "services", "Service", short=("svc",)),
    Resource("", "v1", "serviceaccounts", "ServiceAccount", short=("sa",)),
    Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", short=("pvc",)),
    Resource("", "v1", "resourcequotas", "ResourceQuota", short=("quota",)),
    Resource("", "v1", "nodes", "Node", namespaced=False, short=("no",), subresources=("status",)),
    Resource("", "v1", "namespaces", "Namespace", namespaced=False, short=("ns",)),
    Resource("apps", "v1", "deployments", "Deployment", short=("deploy",)),
    Resource("apps", "v1", "statefulsets", "StatefulSet", short=("sts",)),
    Resource("apps", "v1", "daemonsets", "DaemonSet", short=("ds",)),
    Resource("batch", "v1", "jobs", "Job"),
    Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", short=("pdb",)),
    Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", short=("netpol",)),
    Resource("networking.k8s.io", "v1", "ingresses", "Ingress", short=("ing",)),
    Resource("rbac.authorization.k8s.io", "v1", "roles", "Role"),
    Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding"),
    Resource("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False),
    Resource("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
    Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False, short=("pc",)),
    Resource("leaderworkerset.x-k8s.io", "v1", "leaderworkersets", "LeaderWorkerSet", short=("lws",)),
    Resource(
        "admissionregistration.k8s.io",
        "v1",
        "validatingadmissionpolicies",
        "ValidatingAdmissionPolicy",
        namespaced=False,
    ),
    Resource(
        "admissionregistration.k8s.io",
        "v1",
        "validatingadmissionpolicybindings",
        "ValidatingAdmissionPolicyBinding",
        namespaced=False,
    ),
)


def resource(group: str, version: str, plural: str) -> Resource | None:
    return next((r for r in RESOURCES if (r.group, r.version, r.plural) == (group, version, plural)), None)


def by_kind(kind: str) -> Resource:
    return next(r for r in RESOURCES if r.kind == kind)


def discovery(path: str, version: str) -> dict[str, object] | None:
    """What clients such as kubectl ask before anything else."""
    parts = path.strip("/").split("/")
    if parts == ["version"]:
        major, minor = version.split(".")
        return {"major": major, "minor": minor, "gitVersion": f"v{version}.0", "platform": "linux/amd64"}
    if parts == ["api"]:
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    if parts == ["apis"]:
        groups = sorted({(r.group, r.version) for r in RESOURCES if r.group})
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(*each) for each in groups]}
    if parts == ["api", "v1"] or (len(parts) == 3 and parts[0] == "apis"):
        group, served = ("", "v1") if parts[0] == "api" else (parts[1], parts[2])
        found = [
            _listed(r, sub)
            for r in RESOURCES
            if (r.group, r.version) == (group, served)
            for sub in ("", *r.subresources)
        ]
        name = f"{group}/{served}" if group else served
        return (
            {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": found} if found else None
        )
    return None


def _group(name: str, version: str) -> dict[str, object]:
    served = {"groupVersion": f"{name}/{version}", "version": version}
    return {"name": name, "versions": [served], "preferredVersion": served}


def _listed(r: Resource, sub: str) -> dict[str, object]:
    verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
    if sub:
        return {
            "name": f"{r.plural}/{sub}",
            "singularName": "",
            "namespaced": r.namespaced,
            "kind": "Eviction" if sub == "eviction" else r.kind,
            "verbs": ["create"] if sub == "eviction" else ["get", "patch", "update"],
            **({"group": "policy", "version": "v1"} if sub == "eviction" else {}),
        }
    return {
        "name": r.plural,
        "singularName": r.kind.lower(),
        "namespaced": r.namespaced,
        "kind": r.kind,
        "verbs": verbs,
        "shortNames": list(r.short),
    }
