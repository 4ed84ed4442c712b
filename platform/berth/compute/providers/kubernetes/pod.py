"""The pod of a replica: one container with the runtime, which starts the engine. Pure: from a spec to an object."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from berth.compute.launch import LaunchSpec, ModelFile
from berth.compute.provider import ProviderError
from berth.compute.providers.kubernetes import names
from berth.compute.providers.kubernetes.clusters import Cluster, NodeTier
from berth.compute.providers.kubernetes.kinds import POD
from berth.compute.providers.kubernetes.quantities import mebibytes
from berth.compute.providers.kubernetes.reasons import CONTAINER
from berth.compute.providers.kubernetes.resources import (
    SHARED_MEMORY_BYTES,
    STATE_BYTES,
    TEMPORARY_BYTES,
    Take,
    container_resources,
)
from berth.compute.providers.kubernetes.secret import SPEC_KEY, TOKEN_KEY

Json = dict[str, Any]

USER: Final = 65532
END_SECONDS: Final = 15  # beyond the drain time, for the engine to end
_READY_SECONDS: Final = 2  # between two looks at readiness
_TOLD: Final = "/etc/berth/replica"
_STATE: Final = "/run/berth"
_MODELS: Final = "/models"
_CACHE: Final = "/var/cache/berth"
_NOBODY: Final = "::1"  # replaced by the pod's address, which the runtime learns when it has one


def told_spec(spec: LaunchSpec, cluster: Cluster) -> LaunchSpec:
    """The spec as it is inside the pod: its files in the mounted store, the token's file, the fixed port.

    Raises ProviderError for a file that the pod could neither find nor fetch.
    """
    everything = [*spec.files, *(file for adapter in spec.adapters for file in adapter.files)]
    if cluster.models_claim is None and not all(file.url for file in everything):
        raise ProviderError(
            f"Pods of cluster {cluster.name} fetch their files, and the model store gives no grants to do so. "
            "Keep the store in S3, or mount it with models_claim."
        )

    def there(file: ModelFile) -> ModelFile:
        path = "" if cluster.models_claim is None else f"{_MODELS}/sha256/{file.sha256[:2]}/{file.sha256}"
        return msgspec.structs.replace(file, path=path, url=None if cluster.models_claim else file.url)

    adapters = tuple(
        msgspec.structs.replace(adapter, files=tuple(map(there, adapter.files))) for adapter in spec.adapters
    )
    return msgspec.structs.replace(
        spec,
        files=tuple(map(there, spec.files)),
        adapters=adapters,
        secret_file=f"{_TOLD}/{TOKEN_KEY}",
        state_dir=f"{_STATE}/replica",
        cache_dir=None if cluster.models_claim else _CACHE,
        lifeline=None,
        # Which devices it gets is between the scheduler and the node, so whose they were before is not known.
        devices=(),
        scrub=spec.gpus > 0,
        host=_NOBODY,
        port=cluster.engine_port,
    )


def pod_object(spec: LaunchSpec, cluster: Cluster, tier: NodeTier, take: Take, owner: list[Json]) -> Json:
    """The whole Pod."""
    return {
        "apiVersion": POD.api_version,
        "kind": POD.kind,
        "metadata": {
            "name": names.object_name(spec.replica),
            "namespace": cluster.namespace,
            "labels": pod_labels(spec, cluster),
            "annotations": {names.REPLICA: spec.replica},
            "ownerReferences": owner,
        },
        "spec": pod_spec(spec, cluster, tier, take),
    }


def pod_labels(spec: LaunchSpec, cluster: Cluster) -> dict[str, str]:
    """Those of the replica; a pod that fetches its files is marked, and network policies let only such a pod to the store."""
    return names.labels_of(spec) | ({} if cluster.models_claim else {names.FETCHES: "true"})


def pod_spec(spec: LaunchSpec, cluster: Cluster, tier: NodeTier, take: Take) -> Json:
    """Restricted pod security and more: nothing of the cluster reaches the container but what is listed here."""
    body: Json = {
        "restartPolicy": "Never",  # whether and when to try again is the reconciler's decision
        "automountServiceAccountToken": False,
        "serviceAccountName": cluster.service_account,
        "enableServiceLinks": False,
        "hostNetwork": False,
        "hostPID": False,
        "hostIPC": False,
        "shareProcessNamespace": False,
        "terminationGracePeriodSeconds": spec.drain_seconds + END_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "supplementalGroups": [],
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "topologySpreadConstraints": [
            _spread(spec, key) for key in ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
        ],
        "nodeSelector": dict(tier.node_selector),
        "tolerations": [msgspec.to_builtins(toleration) for toleration in tier.tolerations],
        "containers": [_container(spec, cluster, tier, take)],
        "volumes": _volumes(spec, cluster, take),
    }
    optional = {
        "priorityClassName": cluster.priority_class,
        "runtimeClassName": tier.runtime_class,
        "imagePullSecrets": [{"name": cluster.image_pull_secret}] if cluster.image_pull_secret else None,
    }
    return body | {key: value for key, value in optional.items() if value}


def _container(spec: LaunchSpec, cluster: Cluster, tier: NodeTier, take: Take) -> Json:
    return {
        "name": CONTAINER,
        "image": cluster.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-m", "berth_runtime.pod"],
        "args": [
            f"--spec={_TOLD}/{SPEC_KEY}",
            f"--token={_TOLD}/{TOKEN_KEY}",
            f"--state={_STATE}/replica",
            f"--models={_MODELS}" if cluster.models_claim else f"--cache={_CACHE}",
            "--host=$(POD_IP)",
            f"--status-port={cluster.status_port}",
            "--last-word=/dev/termination-log",
        ],
        "env": [
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}},
            {"name": "HOME", "value": _STATE},
        ],
        "ports": [
            {"name": "engine", "containerPort": cluster.engine_port, "protocol": "TCP"},
            {"name": "status", "containerPort": cluster.status_port, "protocol": "TCP"},
        ],
        "resources": container_resources(take, tier),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "privileged": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        **_probes(spec),
        "volumeMounts": _mounts(spec, cluster),
    }


def _probes(spec: LaunchSpec) -> Json:
    """The agent has its own deadline and tells why it was missed; the startup probe only ends an agent that hangs."""
    patience = spec.start_deadline_seconds + 60

    def ask(path: str) -> Json:
        return {"httpGet": {"path": path, "port": "status", "scheme": "HTTP"}}

    return {
        "startupProbe": ask("/readyz")
        | {"periodSeconds": _READY_SECONDS, "failureThreshold": -(-patience // _READY_SECONDS), "timeoutSeconds": 2},
        "readinessProbe": ask("/readyz")
        | {"periodSeconds": _READY_SECONDS, "failureThreshold": 2, "timeoutSeconds": 2},
        "livenessProbe": ask("/healthz") | {"periodSeconds": 10, "failureThreshold": 6, "timeoutSeconds": 5},
    }


def _volumes(spec: LaunchSpec, cluster: Cluster, take: Take) -> list[Json]:
    volumes: list[Json] = [
        {"name": "told", "secret": {"secretName": names.object_name(spec.replica), "defaultMode": 0o400}},
        {"name": "state", "emptyDir": {"sizeLimit": mebibytes(STATE_BYTES)}},
        {"name": "tmp", "emptyDir": {"sizeLimit": mebibytes(TEMPORARY_BYTES)}},
    ]
    if cluster.models_claim:
        volumes.append(
            {"name": "models", "persistentVolumeClaim": {"claimName": cluster.models_claim, "readOnly": True}}
        )
    else:
        size = mebibytes(max(take.disk - STATE_BYTES - TEMPORARY_BYTES, 1 << 20))
        volumes.append({"name": "cache", "emptyDir": {"sizeLimit": size}})
    if spec.gpus:
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": mebibytes(SHARED_MEMORY_BYTES)}})
    return volumes


def _mounts(spec: LaunchSpec, cluster: Cluster) -> list[Json]:
    mounts: list[Json] = [
        {"name": "told", "mountPath": _TOLD, "readOnly": True},
        {"name": "state", "mountPath": _STATE},
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the pod's own
    ]
    if cluster.models_claim:
        mounts.append({"name": "models", "mountPath": _MODELS, "readOnly": True})
    else:
        mounts.append({"name": "cache", "mountPath": _CACHE})
    if spec.gpus:
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})  # noqa: S108 - the pod's own
    return mounts


def _spread(spec: LaunchSpec, key: str) -> Json:
    return {
        "maxSkew": 1,
        "topologyKey": key,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {names.DEPLOYMENT: names.label_value(spec.deployment_id)}},
    }
