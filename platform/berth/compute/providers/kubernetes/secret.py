"""The Secret of a replica: its bearer token, and its spec with the grants to read files. Nothing else holds either."""

from __future__ import annotations

import base64
from typing import Any, Final

import msgspec

from berth.compute.launch import LaunchSpec
from berth.compute.providers.kubernetes import names
from berth.compute.providers.kubernetes.kinds import SECRET

SPEC_KEY: Final = "spec.json"
TOKEN_KEY: Final = "token"


def secret_object(spec: LaunchSpec, token: str, namespace: str, owner: list[dict[str, Any]]) -> dict[str, Any]:
    """`spec` as the runtime in the pod is to read it."""
    return {
        "apiVersion": SECRET.api_version,
        "kind": SECRET.kind,
        "metadata": {
            "name": names.object_name(spec.replica),
            "namespace": namespace,
            "labels": names.labels_of(spec),
            "ownerReferences": owner,
        },
        "type": "Opaque",
        "data": {
            SPEC_KEY: base64.b64encode(msgspec.json.encode(spec)).decode(),
            TOKEN_KEY: base64.b64encode(token.encode()).decode(),
        },
    }
