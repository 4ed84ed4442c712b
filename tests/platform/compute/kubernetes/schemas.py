"""Strict validation of objects by the schemas of one Kubernetes version, and of LeaderWorkerSets by what its API page says."""

from __future__ import annotations

import functools
import json
import lzma
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

DATA = Path(__file__).resolve().parents[3] / "data" / "kubernetes" / "schemas.json.xz"
VERSIONS = tuple(f"1.{minor}" for minor in range(28, 38))

Json = dict[str, Any]


@functools.cache
def _everything() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(lzma.decompress(DATA.read_bytes()))
    return found


@functools.cache
def _validator(version: str, kind: str, api_version: str) -> Draft202012Validator | None:
    if kind == "LeaderWorkerSet":
        schema: Json | None = _group_schema()
    else:
        short = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)
        schema = _everything()[version]["kinds"].get(f"{kind.lower()}-{short}")
    if schema is None:
        return None
    document = schema | {"$defs": _everything()[version]["$defs"]}
    registry: Registry[Any] = Registry().with_resource("urn:k8s", Resource(document, DRAFT202012))
    return Draft202012Validator(document, registry=registry)


def problems(body: Json, version: str) -> Iterator[tuple[str, str]]:
    """Field and sentence for all that is wrong. An unknown kind is one of them."""
    validator = _validator(version, body.get("kind", ""), body.get("apiVersion", ""))
    if validator is None:
        yield "kind", f"{body.get('kind')} of {body.get('apiVersion')} is not known in {version}"
        return
    for error in validator.iter_errors(body):
        path = ".".join(map(str, error.absolute_path))
        yield path, error.message[:200]


def _group_schema() -> Json:
    template = {"$ref": "#/$defs/io.k8s.api.core.v1.PodTemplateSpec"}
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "properties": {
            "apiVersion": {"const": "leaderworkerset.x-k8s.io/v1"},
            "kind": {"const": "LeaderWorkerSet"},
            "metadata": {"$ref": "#/$defs/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"},
            "spec": {
                "type": "object",
                "additionalProperties": False,
                "required": ["leaderWorkerTemplate"],
                "properties": {
                    "replicas": {"type": "integer", "minimum": 0},
                    "startupPolicy": {"enum": ["LeaderCreated", "LeaderReady"]},
                    "networkConfig": {
                        "type": "object",
                        "additionalProperties": False,
                        "properties": {"subdomainPolicy": {"enum": ["Shared", "UniquePerReplica"]}},
                    },
                    "leaderWorkerTemplate": {
                        "type": "object",
                        "additionalProperties": False,
                        "required": ["workerTemplate"],
                        "properties": {
                            "size": {"type": "integer", "minimum": 1},
                            "restartPolicy": {"enum": ["None", "RecreateGroupOnPodRestart", "Default"]},
                            "leaderTemplate": template,
                            "workerTemplate": template,
                        },
                    },
                },
            },
            "status": {"type": "object"},
        },
    }
