"""A deployment on a cluster, by the services that the dashboard calls: planned on its tiers, reconciled, served, drained, queued."""

from __future__ import annotations

import time
from collections.abc import Callable
from uuid import UUID

import httpx
import pytest

from berth.catalog.services import import_sample
from berth.compute.providers.kubernetes import names
from berth.compute.providers.kubernetes.provider import ClusterProvider
from berth.deployments.models import Deployment, Replica, Revision
from berth.deployments.reconcile import reconcile
from berth.deployments.secrets import replica_secret
from berth.deployments.services import deploy, pause
from tests import make
from tests.platform.compute.kubernetes.world import NAMESPACE, World

pytestmark = pytest.mark.django_db


def reconcile_until(provider: ClusterProvider, deployment_id: UUID, holds: Callable[[Deployment], bool]) -> Deployment:
    for _ in range(900):
        Deployment.objects.across_orgs("test drives the clock").filter(pk=deployment_id).update(check_at=make.NOON)
        reconcile(deployment_id, provider)
        row = Deployment.objects.across_orgs("test drives the clock").get(pk=deployment_id)
        if holds(row):
            return row
        assert row.state != "failed", row.message
        time.sleep(0.1)
    raise AssertionError(f"still {row.state}: {row.reason} {row.message}")


def test_a_deployment_lives_on_a_cluster(world: World) -> None:
    tier = {"key": "cpu-pool", "cores": 4, "memory_gib": 8, "node_selector": {"pool": "cpu"}, "price_per_hour": "0.10"}
    provider = world.provider(tier=[tier])
    org = make.org()
    owner = make.member(org, "owner").user
    version = import_sample(org, owner)
    needs = {"context_length": 1024, "concurrency": 1}
    deployment = deploy(org, owner, version=version, needs=needs, provider=provider)
    assert deployment.revision
    assert deployment.revision.tier == "cpu-pool"

    reconcile_until(provider, deployment.pk, lambda row: row.state == "ready")
    first = Replica.objects.for_org(org).get(ended_at=None)
    assert first.host and first.host.startswith("127.")
    answer = httpx.post(
        f"http://{first.host}:{first.port}/v1/completions",
        json={"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0},
        headers={"Authorization": f"Bearer {replica_secret(first.name)}"},
        timeout=60,
    )
    assert answer.json()["usage"]["completion_tokens"] >= 1

    world.kubelet.add_node("node-9", labels={"pool": "cpu"})
    world.api.evict(NAMESPACE, names.object_name(first.name), {})
    reconcile_until(provider, deployment.pk, lambda row: _ended(first) and row.state == "ready")
    first.refresh_from_db()
    assert (first.phase, first.reason) == ("failed", "node_drained")
    assert Replica.objects.for_org(org).get(ended_at=None).name != first.name
    assert Deployment.objects.for_org(org).get().failures == 0, "a drain is no failure of the deployment"

    pause(deployment, owner)
    reconcile_until(provider, deployment.pk, lambda row: row.state == "paused")
    assert not any(replica.alive for replica in provider.observe_all())


def test_a_deployment_without_room_waits_and_says_what_for(world: World) -> None:
    tier = {"key": "far", "cores": 4, "memory_gib": 8, "node_selector": {"pool": "far"}, "autoscaled": True}
    provider = world.provider(tier=[tier])
    org = make.org()
    owner = make.member(org, "owner").user
    version = import_sample(org, owner)
    deployment = deploy(
        org, owner, version=version, needs={"context_length": 1024, "concurrency": 1}, provider=provider
    )
    row = reconcile_until(provider, deployment.pk, lambda row: bool(world.api.store.all("pods")))
    assert row.state in ("queued", "starting")
    for _ in range(50):
        reconcile_until(provider, deployment.pk, lambda row: True)
        [seen] = provider.observe(str(deployment.pk))
        if seen.reason:
            break
        time.sleep(0.1)
    assert (seen.reason, seen.alive) == ("no_capacity", True)
    reconcile_until(provider, deployment.pk, lambda row: Replica.objects.for_org(org).get().reason == "no_capacity")
    assert "pending" in Replica.objects.for_org(org).get().message
    world.kubelet.add_node("far-0", labels={"pool": "far"})
    reconcile_until(provider, deployment.pk, lambda row: row.state == "ready")
    assert Replica.objects.for_org(org).get().message == ""


def _ended(replica: Replica) -> bool:
    replica.refresh_from_db()
    return replica.ended_at is not None


def test_a_revision_with_gpus_asks_for_them_on_nodes_of_its_tier(world: World) -> None:
    """From the row to what the scheduler reads: devices, selector and toleration of the tier, and whole devices counted once."""
    taint = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
    world.kubelet.add_node("gpu-0", labels={"gpu": "l4"}, taints=[taint], nvidia_dot_com__gpu="2")
    toleration = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    tier = {
        "key": "l4", "cores": 4, "memory_gib": 8, "gpu": "l4", "gpus": 4, "node_selector": {"gpu": "l4"},
        "tolerations": [toleration],
    }  # fmt: skip
    provider = world.provider(tier=[tier])
    org = make.org()
    version = import_sample(org, make.member(org, "owner").user)
    deployment = make.deployment(org, state="queued")
    artefact = version.artefacts.get()
    Revision.objects.for_org(org).filter(deployment=deployment).update(
        version=version, artefact=artefact, tier="l4", gpus=2, replicas=2
    )
    reconcile_until(provider, deployment.pk, lambda row: row.reason == "no_capacity")
    [pod] = world.api.store.all("pods", NAMESPACE)
    [container] = pod["spec"]["containers"]
    for kind in ("requests", "limits"):
        assert container["resources"][kind]["nvidia.com/gpu"] == "2"
    assert pod["spec"]["nodeSelector"] == {"gpu": "l4"}
    assert pod["spec"]["tolerations"] == [toleration]
    row = Deployment.objects.for_org(org).get()
    assert "2 free L4" in row.message, "the second replica waits for devices, and people are told for which"
    assert provider.offers()[0].free_gpus == 0
