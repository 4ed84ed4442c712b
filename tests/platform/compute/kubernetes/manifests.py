"""What an operator applies, as kubectl makes it from each overlay."""

from __future__ import annotations

import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[4]
DEPLOY = ROOT / "deploy" / "kubernetes"
OVERLAYS = sorted(path.parent for path in (DEPLOY / "overlays").glob("*/kustomization.yaml"))
KUBECTL = Path(sysconfig.get_path("scripts")) / "kubectl"
Json = dict[str, Any]


def rendered(overlay: Path) -> list[Json]:
    assert KUBECTL.exists(), "kubectl is not installed: pip install -r requirements/dev.txt"
    done = subprocess.run(
        [str(KUBECTL), "kustomize", str(overlay)], capture_output=True, text=True, timeout=60, check=True
    )
    return [body for body in yaml.safe_load_all(done.stdout) if body]


def of(manifests: list[Json], kind: str, namespace: str | None = None) -> list[Json]:
    return [m for m in manifests if m["kind"] == kind and namespace in (None, m["metadata"].get("namespace"))]


def workloads(manifests: list[Json]) -> Iterator[tuple[str, Json]]:
    """Name and pod spec of everything that runs."""
    for body in manifests:
        if body["kind"] in ("Deployment", "StatefulSet", "Job"):
            yield body["metadata"]["name"], body["spec"]["template"]["spec"]
