"""What goes wrong in a cluster, and what the owner of the replica is told."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from berth.compute.launch import LaunchSpec, Phase
from berth.compute.provider import NoCapacity, ObservedReplica, ProviderError, ProviderUnavailable
from berth.compute.providers.kubernetes import names
from berth.compute.providers.kubernetes.provider import ClusterProvider
from tests.platform.compute.kubernetes.apiserver.failure import Failure
from tests.platform.compute.kubernetes.apiserver.resources import by_kind
from tests.platform.compute.kubernetes.world import NAMESPACE, World, get_ready
from tests.platform.compute.provider_contract import SECRET, one
from tests.runtime.agents import eventually, gone
from tests.runtime.engine_programs import program

Json = dict[str, Any]
GPU_TIER = {
    "key": "l4",
    "cores": 4,
    "memory_gib": 8,
    "gpu": "l4",
    "gpus": 4,
    "node_selector": {"gpu": "l4"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
}


def running(world: World, provider: ClusterProvider, spec: LaunchSpec) -> Json:
    """Starts it; its pod once its process runs."""
    provider.start(spec, SECRET)
    return eventually(
        lambda: pod if (pod := world.pod(spec.replica))["status"].get("phase") == "Running" else None, "it runs"
    )


def told(provider: ClusterProvider, spec: LaunchSpec, reason: str) -> ObservedReplica:
    return eventually(lambda: seen if (seen := one(provider, spec)).reason == reason else None, f"it says {reason}")


# Before it runs


@pytest.fixture
def gpus(world: World) -> World:
    taint = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
    for number, devices in enumerate((1, 1)):
        world.kubelet.add_node(f"gpu-{number}", labels={"gpu": "l4"}, taints=[taint], nvidia_dot_com__gpu=str(devices))
    return world


def test_a_pool_that_grows_lets_pods_wait_and_says_what_is_short(gpus: World, spec: LaunchSpec) -> None:
    provider = gpus.provider(tier=[{**GPU_TIER, "autoscaled": True}])
    for number in range(3):
        provider.start(msgspec.structs.replace(spec, replica=f"dep-1-3-{number}-0", gpus=2, tier="l4"), SECRET)
    eventually(lambda: one(provider, spec).message == "No node has 2 free L4; 3 pending.", "it says what is short")
    waiting = one(provider, spec)
    assert (waiting.alive, waiting.phase, waiting.reason) == (True, Phase.FETCHING, "no_capacity")
    gpus.kubelet.add_node("gpu-new", labels={"gpu": "l4"}, nvidia_dot_com__gpu="2")
    eventually(lambda: sum(seen.reason != "no_capacity" for seen in provider.observe("dep-1")) == 1, "one found room")
    provider.stop("dep-1-3-2-0", drain_seconds=30)
    eventually(
        lambda: (
            {seen.message for seen in provider.observe("dep-1") if seen.reason} <= {"No node has 2 free L4; 1 pending."}
        ),
        "one fewer waits",
    )


def test_a_pool_that_does_not_grow_refuses_what_it_cannot_hold(gpus: World, spec: LaunchSpec) -> None:
    provider = gpus.provider(tier=[GPU_TIER])
    big = msgspec.structs.replace(spec, gpus=2, tier="l4")
    with pytest.raises(NoCapacity, match="2 free L4"):
        provider.start(big, SECRET)
    assert provider.observe_all() == []
    assert gpus.api.store.all("secrets") == gpus.api.store.all("configmaps") == gpus.api.store.all("pods") == []
    small = msgspec.structs.replace(spec, gpus=1, tier="l4")
    [offer] = provider.offers()
    assert (offer.gpu, offer.gpus, offer.free_gpus) == ("l4", 4, 1)
    for number in range(2):
        provider.start(msgspec.structs.replace(small, replica=f"dep-1-3-{number}-0"), SECRET)
    assert provider.offers()[0].free_gpus == 0, "also what no node has taken yet is promised"
    with pytest.raises(NoCapacity, match="1 free L4"):
        provider.start(msgspec.structs.replace(small, replica="dep-1-3-2-0"), SECRET)


def test_an_image_that_cannot_be_pulled(world: World, spec: LaunchSpec) -> None:
    world.kubelet.images = set()
    now = [time.time()]
    provider = world.provider()
    provider._clock = lambda: now[0]
    provider.start(spec, SECRET)
    stuck = told(provider, spec, "image_unavailable")
    assert stuck.alive
    assert "registry" in (stuck.message or "")
    now[0] += spec.start_deadline_seconds + 120
    failed = eventually(lambda: seen if not (seen := one(provider, spec)).alive else None, "it is given up")
    assert (failed.phase, failed.reason) == (Phase.FAILED, "image_unavailable")
    eventually(lambda: world.api.store.all("pods") == [], "its pod does not start by itself one day")


def test_a_quota_that_is_used_up_is_no_capacity(world: World, spec: LaunchSpec) -> None:
    def quota(before: Json | None, after: Json) -> None:
        if after["kind"] == "Pod" and before is None:
            raise Failure(
                403, "Forbidden", 'pods "x" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1'
            )

    world.api.hooks.append(quota)
    with pytest.raises(NoCapacity, match="quota"):
        world.provider().start(spec, SECRET)


@pytest.mark.threat("E3")
@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (
            Failure(403, "Forbidden", 'admission webhook "x" denied the request: SECRET is not signed'),
            "admission policy",
        ),
        (Failure(400, "BadRequest", 'admission webhook "x" denied the request: SECRET'), "admission policy"),
        (
            Failure(
                422,
                "Invalid",
                "pods \"r\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: SECRET",
            ),
            "admission policy",
        ),
        (
            Failure(403, "Forbidden", 'pods "r" is forbidden: failed quota: q: must specify limits.SECRET'),
            "admission policy",
        ),
        (
            Failure(
                403,
                "Forbidden",
                'pods "r" is forbidden: maximum memory usage per Container is 1Gi, but limit is SECRET',
            ),
            "admission policy",
        ),
    ],
)
def test_admission_that_refuses_a_pod_is_said_without_its_words(
    world: World, spec: LaunchSpec, failure: Failure, told: str
) -> None:
    world.api.hooks.append(on_pods(failure))
    with pytest.raises(ProviderError, match=told) as refused:
        world.provider().start(spec, SECRET)
    assert "SECRET" not in str(refused.value)
    assert not isinstance(refused.value, ProviderUnavailable | NoCapacity)


def on_pods(failure: Failure) -> Callable[[Json | None, Json], None]:
    def hook(before: Json | None, after: Json) -> None:
        if after["kind"] == "Pod" and before is None:
            raise failure

    return hook


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (
            Failure(403, "Forbidden", 'pods is forbidden: User "berth" cannot create resource "pods" in API group ""'),
            "its role",
        ),
        (
            Failure(
                403,
                "Forbidden",
                'pods "r" is forbidden: unable to create new content in namespace x because it is being terminated',
            ),
            "being deleted",
        ),
        (
            Failure(500, "InternalError", 'Internal error occurred: failed calling webhook "x": SECRET'),
            "cannot answer now",
        ),
    ],
)
def test_what_only_an_operator_can_mend_is_no_failure_of_the_deployment(
    world: World, spec: LaunchSpec, failure: Failure, told: str
) -> None:
    hook = on_pods(failure)
    world.api.hooks.append(hook)
    provider = world.provider()
    with pytest.raises(ProviderUnavailable, match=told) as refused:
        provider.start(spec, SECRET)
    assert "SECRET" not in str(refused.value)
    world.api.hooks.remove(hook)
    provider.start(spec, SECRET)
    assert world.pod(spec.replica)


def test_a_cluster_without_groups_says_what_is_missing(world: World, spec: LaunchSpec) -> None:
    def absent(method: str, path: str) -> None:
        if "leaderworkersets" in path:
            raise Failure(404, "NotFound", "the server could not find the requested resource")

    world.server.before = absent
    tier = {"key": "wide", "cores": 2, "memory_gib": 4, "node_selector": {"pool": "cpu"}, "max_nodes_per_replica": 2}
    world.kubelet.add_node("node-1", labels={"pool": "cpu"})
    provider = world.provider(tier=[tier])
    eventually(lambda: len(provider._nodes.all() if provider._nodes else []) == 2, "the nodes are seen")
    with pytest.raises(ProviderError, match="LeaderWorkerSet"):
        provider.start(msgspec.structs.replace(spec, nodes=2), SECRET)


@pytest.mark.threat("E3")
def test_without_a_policy_that_denies_everything_nothing_is_started(world: World, spec: LaunchSpec) -> None:
    world.api.store.remove("networkpolicies", NAMESPACE, "default-deny")
    with pytest.raises(ProviderUnavailable, match="NetworkPolicy"):
        world.provider().start(spec, SECRET)
    assert world.api.store.all("pods") == []
    world.provider(unguarded=True).start(spec, SECRET)


def test_a_tier_that_is_not_there(world: World, spec: LaunchSpec) -> None:
    with pytest.raises(ProviderError, match="no tier called moon"):
        world.provider().start(msgspec.structs.replace(spec, tier="moon"), SECRET)


# While it runs


@pytest.mark.threat("E5")
def test_a_container_that_took_too_much_memory(world: World, spec: LaunchSpec) -> None:
    provider = world.provider()
    world.kubelet.kill(running(world, provider, spec), "OOMKilled")
    lost = told(provider, spec, "out_of_memory")
    assert (lost.alive, lost.phase) == (False, Phase.FAILED)
    assert "more memory" in (lost.message or "")


def test_an_eviction(world: World, spec: LaunchSpec) -> None:
    provider = world.provider()
    world.kubelet.evict(running(world, provider, spec))
    assert (
        told(provider, spec, "evicted").message
        == "The node ran short of memory and put the replica out. It is started elsewhere."
    )


def test_a_pod_that_had_to_make_room_is_remembered_after_it_is_gone(world: World, spec: LaunchSpec) -> None:
    provider = world.provider()
    pod = running(world, provider, spec)
    world.api.disrupt(NAMESPACE, pod["metadata"]["name"], "PreemptionByScheduler")
    world.api.delete(by_kind("Pod"), NAMESPACE, pod["metadata"]["name"], {"gracePeriodSeconds": 20})
    draining = told(provider, spec, "preempted")
    assert draining.phase in (Phase.DRAINING, Phase.FAILED)
    eventually(lambda: world.api.store.all("pods") == [], "the pod is gone")
    lost = eventually(lambda: seen if not (seen := one(provider, spec)).alive else None, "it is seen")
    assert (lost.phase, lost.reason) == (Phase.FAILED, "preempted")
    another = world.provider(token="admin-token")
    assert one(another, spec).reason == "preempted", "another worker knows it too"


def test_a_spot_machine_that_is_taken_back(world: World, spec: LaunchSpec) -> None:
    provider = world.provider()
    running(world, provider, spec)
    one(provider, spec)
    world.kubelet.remove_node("node-0")
    lost = eventually(lambda: seen if not (seen := one(provider, spec)).alive else None, "it is seen")
    assert (lost.phase, lost.reason) == (Phase.FAILED, "node_lost")
    world.kubelet.add_node("node-1", labels={"pool": "cpu"})
    eventually(lambda: provider.offers()[0].free, "the new node is seen")
    provider.start(msgspec.structs.replace(spec, replica="dep-1-3-0-1"), SECRET)
    eventually(lambda: world.pod("dep-1-3-0-1")["status"].get("phase") == "Running", "the next one runs")


def test_a_node_that_falls_silent(world: World, spec: LaunchSpec) -> None:
    provider = world.provider()
    running(world, provider, spec)
    world.kubelet.lose_node("node-0")
    lost = told(provider, spec, "node_lost")
    assert (lost.alive, lost.phase) == (False, Phase.FAILED)
    provider.forget(spec.replica)
    assert provider.observe_all() == []


def test_a_pod_that_somebody_deleted(world: World, spec: LaunchSpec) -> None:
    provider = world.provider()
    pod = running(world, provider, spec)
    world.api.store.remove("pods", NAMESPACE, pod["metadata"]["name"])
    lost = eventually(lambda: seen if not (seen := one(provider, spec)).alive else None, "it is seen")
    assert (lost.phase, lost.reason) == (Phase.FAILED, "agent_lost")
    provider.start(spec, SECRET)
    eventually(lambda: one(provider, spec).alive, "it can be started anew")


# Ending


def test_a_pod_whose_kubelet_never_ends_it_is_ended_by_force(world: World, spec: LaunchSpec) -> None:
    provider = world.provider()
    running(world, provider, spec)
    world.kubelet.lost.add("node-0")  # silent, and nobody has noticed
    provider.stop(spec.replica, drain_seconds=0)
    assert one(provider, spec).alive
    provider._clock = lambda: time.time() + 600
    eventually(lambda: not one(provider, spec).alive, "it is no more")
    assert one(provider, spec).phase is Phase.STOPPED


def test_asking_again_to_stop_never_gives_more_time(world: World, spec: LaunchSpec) -> None:
    provider = world.provider()
    running(world, provider, spec)
    world.kubelet.lost.add("node-0")
    ends = []
    for seconds in (100, 500, 1):
        provider.stop(spec.replica, drain_seconds=seconds)
        ends.append(world.pod(spec.replica)["metadata"]["deletionTimestamp"])
    assert ends[0] == ends[1] > ends[2]


def test_starting_what_is_still_ending_has_to_wait(world: World, spec: LaunchSpec) -> None:
    provider = world.provider()
    running(world, provider, spec)
    world.kubelet.lost.add("node-0")
    provider.stop(spec.replica, drain_seconds=60)
    with pytest.raises(ProviderUnavailable, match="still ending"):
        provider.start(spec, SECRET)


def test_whatever_a_replica_had_goes_with_it(world: World, spec: LaunchSpec) -> None:
    provider = world.provider()
    pod = running(world, provider, spec)
    process = world.kubelet.containers[pod["metadata"]["uid"]].process
    assert process
    kinds = ("configmaps", "secrets", "pods", "poddisruptionbudgets")
    assert [len(world.api.store.all(kind)) for kind in kinds] == [1, 1, 1, 1]
    provider.stop(spec.replica, drain_seconds=0)
    eventually(lambda: not one(provider, spec).alive, "it has ended")
    provider.forget(spec.replica)
    assert [len(world.api.store.all(kind)) for kind in kinds] == [0, 0, 0, 0]
    eventually(lambda: gone(process.pid), "its process too")


def test_removing_a_record_removes_everything_also_without_berth(world: World, spec: LaunchSpec) -> None:
    running(world, world.provider(), spec)
    world.api.delete(by_kind("ConfigMap"), NAMESPACE, names.object_name(spec.replica), {})
    assert world.api.store.all("secrets") == []
    eventually(lambda: world.api.store.all("pods") == [], "the pod has ended")


# A drain


def test_a_drain_takes_one_replica_at_a_time(world: World, spec: LaunchSpec) -> None:
    provider = world.provider()
    world.kubelet.add_node("node-9", labels={"pool": "cpu"}, cpu="8")
    for number in range(2):
        provider.start(msgspec.structs.replace(spec, replica=f"dep-1-3-{number}-0"), SECRET)
    get_ready(provider, *(msgspec.structs.replace(spec, replica=f"dep-1-3-{number}-0") for number in range(2)))
    world.api.evict(NAMESPACE, names.object_name("dep-1-3-0-0"), {})
    with pytest.raises(Failure, match="disruption budget") as refused:
        world.api.evict(NAMESPACE, names.object_name("dep-1-3-1-0"), {})
    assert refused.value.code == 429
    first = eventually(lambda: seen if not (seen := one(provider, spec)).alive else None, "the first has gone")
    assert (first.phase, first.reason) == (Phase.FAILED, "node_drained")
    [_, second] = provider.observe("dep-1")
    assert second.ready


# Groups


def test_a_replica_over_several_nodes_is_a_group_and_its_leader_speaks_for_it(world: World, spec: LaunchSpec) -> None:
    """llama.cpp does not span nodes: the group is made, says so, and goes with its record."""
    tier = {"key": "wide", "cores": 2, "memory_gib": 4, "node_selector": {"pool": "cpu"}, "max_nodes_per_replica": 2}
    provider = world.provider(tier=[tier])
    with pytest.raises(NoCapacity):
        provider.start(msgspec.structs.replace(spec, nodes=2), SECRET)
    world.kubelet.add_node("node-1", labels={"pool": "cpu"})
    eventually(lambda: len(provider._nodes.all() if provider._nodes else []) == 2, "the node is seen")
    provider.start(msgspec.structs.replace(spec, nodes=2), SECRET)
    expected = ["r-dep-1-3-0-0-0", "r-dep-1-3-0-0-0-1"]
    eventually(lambda: [p["metadata"]["name"] for p in world.api.store.all("pods")] == expected, "the group is made")
    told(provider, spec, "unsupported_option")
    # What has ended for good is not started again and again, and holds no node; why it ended is still known.
    eventually(lambda: world.api.store.all("pods") == world.api.store.all("leaderworkersets") == [], "all is gone")
    refused = told(provider, spec, "unsupported_option")
    assert (refused.alive, refused.phase) == (False, Phase.FAILED)
    assert "cannot span nodes" in (refused.message or "")
    provider.forget(spec.replica)
    assert provider.observe_all() == []


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vLLM that runs until it is told and serves nobody, in every container."""
    folder.mkdir()
    content = (
        "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\nwhile True:\n    signal.pause()\n"
    )
    program(folder / "vllm", content)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


@pytest.mark.parametrize("rank", [0, 2])
def test_a_group_of_which_one_pod_dies_comes_back_whole(
    world: World, spec: LaunchSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    stand_in(tmp_path / "bin", monkeypatch)
    for number in (1, 2):
        world.kubelet.add_node(f"node-{number}", labels={"pool": "cpu"})
    tier = {"key": "wide", "cores": 2, "memory_gib": 4, "node_selector": {"pool": "cpu"}, "max_nodes_per_replica": 3}
    provider = world.provider(tier=[tier])
    eventually(lambda: len(provider._nodes.all() if provider._nodes else []) == 3, "the nodes are seen")
    file = msgspec.structs.replace(spec.files[0], name="model.safetensors")
    wide = msgspec.structs.replace(
        spec, nodes=3, engine="vllm", model_format="safetensors", tensor_parallel=3, files=(file,), drain_seconds=1
    )
    provider.start(wide, SECRET)

    def loading() -> list[Json] | None:
        pods = sorted(world.api.store.all("pods"), key=lambda pod: str(pod["metadata"]["name"]))
        logs = [world.kubelet.read_log(pod, "runtime", None, None) for pod in pods if pod["status"].get("podIP")]
        return pods if len(logs) == 3 and all(b'"phase":"loading"' in log for log in logs) else None

    before = eventually(loading, "its engines run", seconds=120)
    assert [pod["metadata"]["labels"]["leaderworkerset.sigs.k8s.io/worker-index"] for pod in before] == ["0", "1", "2"]
    world.kubelet.kill(before[rank])
    old = {pod["metadata"]["uid"] for pod in before}

    def renewed() -> bool:
        pods = loading()
        return pods is not None and not old & {pod["metadata"]["uid"] for pod in pods}

    eventually(renewed, "all three are others", seconds=120)
    provider.stop(spec.replica, drain_seconds=0)
    eventually(lambda: not one(provider, spec).alive, "it has ended", seconds=120)
    provider.forget(spec.replica)
    eventually(lambda: world.api.store.all("pods") == world.api.store.all("leaderworkersets") == [], "all is gone")
