"""A cluster of the tests: API server, scheduler, kubelet, nodes, a policy; and a provider that talks to it.

    python -m tests.platform.compute.kubernetes.world FOLDER

runs one until it is interrupted, to look at with kubectl (FOLDER/kubeconfig.yaml).
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

from berth.compute.launch import LaunchSpec, Phase
from berth.compute.provider import ObservedReplica
from berth.compute.providers.kubernetes.clusters import Cluster, clusters_from
from berth.compute.providers.kubernetes.credentials import credentials_of
from berth.compute.providers.kubernetes.fleet import Fleet
from berth.compute.providers.kubernetes.provider import ClusterProvider
from tests.platform.compute.kubernetes.apiserver.kubelet import Kubelet
from tests.platform.compute.kubernetes.apiserver.resources import by_kind
from tests.platform.compute.kubernetes.apiserver.server import ApiServer
from tests.platform.compute.provider_contract import one
from tests.runtime.agents import eventually, model_file

NAMESPACE = "berth-runtime"
IMAGE = "registry.example/berth-runtime@sha256:" + "a" * 64
Json = dict[str, Any]

DENY_ALL: Json = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "default-deny"},
    "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]},
}


def cluster(**changes: Any) -> Cluster:
    """As an operator's file would say it."""
    said = {
        "name": "tests",
        "namespace": NAMESPACE,
        "image": IMAGE,
        "region": "eu-test",
        "kubeconfig": "/nonexistent",
        "models_claim": "berth-models",
        "tier": [
            {"key": "cpu-pool", "cores": 2, "memory_gib": 4, "node_selector": {"pool": "cpu"}, "price_per_hour": "0.10"}
        ],
        **changes,
    }
    [made] = clusters_from({"cluster": [said]})
    return made


def store_with_model(folder: Path) -> Path:
    """A model store that holds the sample model, as the control plane lays it out."""
    file = model_file()
    place = folder / "sha256" / file.sha256[:2] / file.sha256
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.exists():
        place.symlink_to(file.path)
    return folder


def get_ready(provider: ClusterProvider | Fleet, *specs: LaunchSpec) -> None:
    """Waits until the replicas of all of `specs` are ready. An end of one ends the test, which then says what it saw."""
    seen: list[ObservedReplica] = []

    def all_ready() -> bool:
        seen[:] = [one(provider, spec) for spec in specs]
        assert not any(replica.phase is Phase.FAILED for replica in seen), seen
        return all(replica.ready for replica in seen)

    try:
        eventually(all_ready, "it is ready", seconds=200)
    except AssertionError as error:
        raise AssertionError(f"{error}: {seen}") from None


class World:
    """Ends with `close`."""

    def __init__(self, folder: Path, version: str = "1.37", *, nodes: int = 1) -> None:
        self.folder = folder
        self.server = ApiServer(folder, version)
        self.api = self.server.api
        self.kubelet = Kubelet(self.api, folder / "pods", {"berth-models": store_with_model(folder / "store")})
        self._providers: list[ClusterProvider] = []
        space = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": NAMESPACE, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
        }
        self.api.create(by_kind("Namespace"), None, space, "tests")
        self.create(DENY_ALL)
        for number in range(nodes):
            self.kubelet.add_node(f"node-{number}", labels={"pool": "cpu"})

    def create(self, body: Json) -> Json:
        return self.api.create(by_kind(body["kind"]), NAMESPACE, {**body, "metadata": dict(body["metadata"])}, "tests")

    def provider(self, token: str = "admin-token", **changes: Any) -> ClusterProvider:
        kubeconfig = str(self.server.kubeconfig(token, f"kubeconfig-{token}.yaml"))
        made = cluster(kubeconfig=kubeconfig, **changes)
        provider = ClusterProvider(made, credentials_of(made))
        self._providers.append(provider)
        return provider

    def pod(self, replica: str) -> Json:
        [found] = [
            pod
            for pod in self.api.store.all("pods", NAMESPACE)
            if pod["metadata"]["annotations"]["berth.dev/replica"] == replica
        ]
        return found

    def close(self) -> None:
        for provider in self._providers:
            provider.close()
        self.kubelet.close()
        self.server.close()


if __name__ == "__main__":
    made = World(Path(sys.argv[1]))
    sys.stdout.write(f"{made.server.kubeconfig()}\n")
    sys.stdout.flush()
    try:
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
    finally:
        made.close()
