"""The same contract on a real cluster: `pytest -m cluster`, with KUBECONFIG and CLUSTER_IMAGE set (docs/kubernetes.md).

CLUSTER_IMAGE is the runtime's image by digest. CLUSTER_NAMESPACE is a namespace for the tests alone, with a claim of the
name in CLUSTER_CLAIM whose volume has the sample model at sha256/ab/abc…; the policies and the account are made if they are
not there. Pods need not be reachable from here: only what the API server tells is looked at, as the control plane does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from berth.compute.launch import LaunchSpec, ModelFile
from berth.compute.provider import ObservedReplica, Provider
from berth.compute.providers.kubernetes import names
from berth.compute.providers.kubernetes.client import ApiClient
from berth.compute.providers.kubernetes.clusters import Cluster
from berth.compute.providers.kubernetes.credentials import credentials_of
from berth.compute.providers.kubernetes.kinds import NETWORK_POLICY, POD, Kind
from berth.compute.providers.kubernetes.provider import ClusterProvider
from tests.platform.compute.kubernetes.world import DENY_ALL, cluster
from tests.platform.compute.provider_contract import ProviderContract, a_spec
from tests.runtime.agents import eventually, model_file

pytestmark = pytest.mark.cluster
SERVICE_ACCOUNT = Kind("", "v1", "ServiceAccount", "serviceaccounts")


def said(name: str, default: str | None = None) -> str:
    value = os.environ.get(name, default)
    assert value, f"{name} is not set: docs/kubernetes.md says what a run on a real cluster needs"
    return value


@pytest.fixture(scope="module")
def real() -> Cluster:
    made = cluster(
        name="real",
        kubeconfig=said("KUBECONFIG"),
        allow_exec=True,
        namespace=said("CLUSTER_NAMESPACE"),
        image=said("CLUSTER_IMAGE"),
        models_claim=said("CLUSTER_CLAIM"),
        tier=[{"key": "any", "cores": 2, "memory_gib": 2}],
    )
    client = ApiClient(credentials_of(made), made.name)
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": made.service_account, "namespace": made.namespace},
    }
    client.apply(SERVICE_ACCOUNT, made.namespace, account)
    client.apply(
        NETWORK_POLICY, made.namespace, {**DENY_ALL, "metadata": {"name": "default-deny", "namespace": made.namespace}}
    )
    return made


@pytest.fixture
def provider(real: Cluster) -> Iterator[ClusterProvider]:
    made = ClusterProvider(real, credentials_of(real))
    yield made
    for replica in made.observe_all():
        made.stop(replica.name, drain_seconds=0)
    eventually(lambda: not any(replica.alive for replica in made.observe_all()), "all have ended", seconds=120)
    for replica in made.observe_all():
        made.forget(replica.name)
    made.close()


@pytest.fixture
def spec() -> LaunchSpec:
    file = model_file()
    return a_spec(ModelFile(file.path, file.role, file.size, file.sha256), memory_limit=512 << 20)


class TestRealCluster(ProviderContract):
    @pytest.fixture(autouse=True)
    def _real(self, real: Cluster) -> None:
        self.real = real

    def until(self, provider: Provider, holds: Callable[[], Any], what: str) -> Any:
        return eventually(holds, what, seconds=300)

    def kill(self, provider: Provider, replica: ObservedReplica) -> None:
        """Nothing may run a command in a pod, so the pod is taken away instead, at once."""
        client = ApiClient(credentials_of(self.real), "real")
        client.delete(POD, self.real.namespace, names.object_name(replica.name), grace=0)

    def test_phases_are_told(self, provider: ClusterProvider, spec: LaunchSpec) -> None:
        replica = self.ready(provider, msgspec.structs.replace(spec, replica="dep-1-3-7-0"))
        assert replica.host
        assert replica.phases
