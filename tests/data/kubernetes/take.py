"""Takes the kinds that Berth writes from the schemas in the package kubernetes-validate. See README.md.

python tests/data/kubernetes/take.py FOLDER_OF_THE_UNPACKED_PACKAGE
"""

from __future__ import annotations

import json
import lzma
import sys
from pathlib import Path
from typing import Any

VERSIONS = [f"1.{minor}" for minor in range(28, 38)]
KINDS = [
    "configmap-v1",
    "event-v1",
    "limitrange-v1",
    "namespace-v1",
    "node-v1",
    "persistentvolumeclaim-v1",
    "pod-v1",
    "resourcequota-v1",
    "secret-v1",
    "service-v1",
    "serviceaccount-v1",
    "deployment-apps-v1",
    "statefulset-apps-v1",
    "job-batch-v1",
    "poddisruptionbudget-policy-v1",
    "networkpolicy-networking-v1",
    "ingress-networking-v1",
    "role-rbac-v1",
    "rolebinding-rbac-v1",
    "clusterrole-rbac-v1",
    "clusterrolebinding-rbac-v1",
    "priorityclass-scheduling-v1",
    "validatingadmissionpolicy-admissionregistration-v1",
    "validatingadmissionpolicybinding-admissionregistration-v1",
]
POINTER = "/api/_definitions.json"


def plain(node: Any) -> Any:
    """Without what does not judge, and with pointers into one document."""
    if isinstance(node, list):
        return [plain(each) for each in node]
    if not isinstance(node, dict):
        return node
    kept = {}
    for key, value in node.items():
        if key == "properties":
            kept[key] = {name: plain(each) for name, each in value.items()}
        elif key == "$ref":
            kept[key] = value.removeprefix(POINTER)
        elif key not in ("description", "$schema", "$id") and not key.startswith("x-kubernetes"):
            kept[key] = plain(value)
    return kept


def pointers(node: Any) -> set[str]:
    if isinstance(node, list):
        return set().union(*map(pointers, node)) if node else set()
    if not isinstance(node, dict):
        return set()
    found = set().union(*map(pointers, node.values())) if node else set()
    if isinstance(node.get("$ref"), str):
        found.add(node["$ref"].removeprefix("#/$defs/"))
    return found


def taken(folder: Path) -> dict[str, Any]:
    definitions = plain(json.loads((folder / "_definitions.json").read_text())["$defs"])
    roots = {}
    for kind in KINDS:
        file = folder / f"{kind}.json"
        if file.exists():
            roots[kind] = plain(json.loads(file.read_text()))
    wanted, seen = pointers(list(roots.values())), set()
    while wanted - seen:
        name = (wanted - seen).pop()
        seen.add(name)
        wanted |= pointers(definitions[name])
    return {"kinds": roots, "$defs": {name: definitions[name] for name in sorted(seen)}}


def main() -> None:
    root = Path(sys.argv[1]) / "kubernetes_validate" / "kubernetes-json-schema"
    everything = {version: taken(root / f"v{version}.0-local-strict") for version in VERSIONS}
    data = json.dumps(everything, sort_keys=True, separators=(",", ":")).encode()
    Path(__file__).with_name("schemas.json.xz").write_bytes(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    main()
