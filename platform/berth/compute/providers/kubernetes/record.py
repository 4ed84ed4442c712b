"""What stays of a replica until it is forgotten: a ConfigMap that owns its pod and its secret.

It is what makes a replica observable before its pod exists and after it has gone, and its removal removes everything.
"""

from __future__ import annotations

from typing import Any

import msgspec

from berth.compute.launch import LaunchSpec, ModelFile
from berth.compute.providers.kubernetes import names
from berth.compute.providers.kubernetes.kinds import CONFIG_MAP

Json = dict[str, Any]


def record_object(spec: LaunchSpec, namespace: str, started_at: float) -> Json:
    """The ConfigMap of a replica that is to run. What was said of an earlier run's end is not said again, so it goes."""
    return {
        "apiVersion": CONFIG_MAP.api_version,
        "kind": CONFIG_MAP.kind,
        "metadata": {
            "name": names.object_name(spec.replica),
            "namespace": namespace,
            "labels": names.labels_of(spec),
            "annotations": {
                names.REPLICA: spec.replica,
                names.ORG: spec.org_id,
                names.DEPLOYMENT: spec.deployment_id,
                names.STARTED_AT: repr(started_at),
                names.START_DEADLINE: str(spec.start_deadline_seconds),
            },
        },
        "data": {"spec.json": msgspec.json.format(msgspec.json.encode(without_grants(spec)), indent=1).decode()},
    }


def owner_of(record: Json) -> list[Json]:
    """The reference by which everything of a replica belongs to its record."""
    metadata = record["metadata"]
    return [
        {
            "apiVersion": CONFIG_MAP.api_version,
            "kind": CONFIG_MAP.kind,
            "name": metadata["name"],
            "uid": metadata["uid"],
            "controller": True,
            "blockOwnerDeletion": False,
        }
    ]


def without_data(record: Json) -> Json:
    """The record without the spec in it, which nothing reads and which is the most of it."""
    return {key: value for key, value in record.items() if key != "data"}


def without_grants(spec: LaunchSpec) -> LaunchSpec:
    """The spec as anybody may see it: what lets somebody read files is left out."""

    def plain(file: ModelFile) -> ModelFile:
        return msgspec.structs.replace(file, url=None)

    adapters = tuple(
        msgspec.structs.replace(adapter, files=tuple(map(plain, adapter.files))) for adapter in spec.adapters
    )
    return msgspec.structs.replace(spec, files=tuple(map(plain, spec.files)), adapters=adapters)
