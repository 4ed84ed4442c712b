"""Whatever is asked for, the objects are ones that every supported version accepts, and nothing secret is in the wrong one."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from berth.compute.launch import Adapter, LaunchSpec, ModelFile
from berth.compute.provider import ProviderError
from berth.compute.providers.kubernetes import names
from berth.compute.providers.kubernetes.budget import budget_object
from berth.compute.providers.kubernetes.clusters import Cluster, NodeTier
from berth.compute.providers.kubernetes.group import group_object
from berth.compute.providers.kubernetes.pod import pod_object, told_spec
from berth.compute.providers.kubernetes.record import owner_of, record_object
from berth.compute.providers.kubernetes.resources import take_of
from berth.compute.providers.kubernetes.secret import secret_object
from tests.platform.compute.kubernetes.apiserver.admission import _number, unrestricted
from tests.platform.compute.kubernetes.schemas import VERSIONS, problems
from tests.platform.compute.kubernetes.world import cluster
from tests.platform.compute.provider_contract import a_spec

Json = dict[str, Any]
TOKEN = "tok-3f9c1e77aa5b4c2d"
GRANT = "https://store.example/one-object?X-Amz-Signature=5d1cafe5d1cafe"
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
LABEL = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
GPU_TIER = {
    "key": "l4",
    "cores": 16,
    "memory_gib": 64,
    "gpu": "l4",
    "gpus": 4,
    "node_selector": {"cloud.example/gpu": "l4"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "runtime_class": "nvidia",
    "max_nodes_per_replica": 4,
}

plain_names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", fullmatch=True)
ids = st.text(max_size=80)
digests = st.text("0123456789abcdef", min_size=64, max_size=64)
files = st.builds(
    ModelFile,
    path=st.just("/store/x"),
    role=st.just("weights"),
    size=st.integers(0, 1 << 34),
    sha256=digests,
    url=st.just(GRANT),
)
specs = st.builds(
    a_spec,
    files,
    replica=plain_names,
    org_id=ids,
    deployment_id=ids,
    revision=st.integers(1, 10**6),
    threads=st.integers(1, 64),
    slots=st.integers(1, 512),
    memory_limit=st.none() | st.integers(1 << 20, 1 << 35),
    gpus=st.integers(0, 5),
    nodes=st.integers(1, 5),
    drain_seconds=st.integers(0, 3600),
    start_deadline_seconds=st.integers(1, 86400),
    adapters=st.lists(st.builds(Adapter, name=st.just("a"), files=st.tuples(files), rank=st.just(8)), max_size=2).map(
        tuple
    ),
)
clusters = st.sampled_from(
    [
        cluster(tier=[GPU_TIER]),
        cluster(tier=[GPU_TIER], models_claim=None, cache_gib=30.0),
        cluster(tier=[GPU_TIER], priority_class="replicas", image_pull_secret="registry", ip_family="ipv6"),
    ]
)


def rendered(spec: LaunchSpec, made: Cluster, tier: NodeTier) -> list[Json]:
    """Everything that a start writes. Raises ProviderError."""
    take = take_of(spec, tier, made)
    told = told_spec(spec, made)
    record = record_object(told, made.namespace, 1_800_000_000.5)
    owner = owner_of({**record, "metadata": {**record["metadata"], "uid": "0a1b"}})
    workload = pod_object if spec.nodes == 1 else group_object
    return [
        record,
        secret_object(told, TOKEN, made.namespace, owner),
        workload(told, made, tier, take, owner),
        budget_object(spec.deployment_id, spec.org_id, made.namespace, 2, protect_last=False),
    ]


def accepted(spec: LaunchSpec, made: Cluster) -> list[Json]:
    """The same; what does not fit the tier is no example."""
    try:
        return rendered(spec, made, made.tier[0])
    except ProviderError:
        reject()


def pod_specs(body: Json) -> list[Json]:
    if body["kind"] == "LeaderWorkerSet":
        template = body["spec"]["leaderWorkerTemplate"]
        return [template["leaderTemplate"]["spec"], template["workerTemplate"]["spec"]]
    return [body["spec"]] if body["kind"] == "Pod" else []


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(specs, clusters)
def test_names_and_labels_are_what_kubernetes_takes(spec: LaunchSpec, made: Cluster) -> None:
    objects = accepted(spec, made)
    for body in objects:
        assert DNS_LABEL.fullmatch(body["metadata"]["name"]), body["metadata"]["name"]
        assert len(body["metadata"]["name"]) <= names.MAX_NAME
        for key, value in body["metadata"]["labels"].items():
            assert LABEL.fullmatch(value), (key, value)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(specs, clusters)
@pytest.mark.threat("E5")
def test_resources_never_exceed_the_tier(spec: LaunchSpec, made: Cluster) -> None:
    tier = made.tier[0]
    objects = accepted(spec, made)
    for body in (each for one in objects for each in pod_specs(one)):
        [container] = body["containers"]
        requests, limits = container["resources"]["requests"], container["resources"]["limits"]
        assert requests.keys() == limits.keys() >= {"cpu", "memory", "ephemeral-storage"}
        assert 0 < _number(requests["cpu"]) <= _number(limits["cpu"]) <= tier.cores
        assert 0 < _number(requests["memory"]) == _number(limits["memory"]) <= tier.memory_bytes + (1 << 20)
        assert int(limits.get(tier.gpu_resource, 0)) == spec.gpus <= tier.gpus
        emptied = [volume["emptyDir"] for volume in body["volumes"] if "emptyDir" in volume]
        assert all("sizeLimit" in each for each in emptied)
        on_disk = sum(_number(each["sizeLimit"]) for each in emptied if each.get("medium") != "Memory")
        assert on_disk <= _number(limits["ephemeral-storage"]) + (1 << 20)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(specs, clusters)
@pytest.mark.threat("E3")
def test_no_secret_is_in_any_object_but_the_secret(spec: LaunchSpec, made: Cluster) -> None:
    objects = accepted(spec, made)
    for body in objects:
        text = json.dumps(body)
        if body["kind"] == "Secret":
            assert base64.b64decode(body["data"]["token"]).decode() == TOKEN
            inside = base64.b64decode(body["data"]["spec.json"])
            assert (GRANT.encode() in inside) == (made.models_claim is None)
        else:
            for secret in (TOKEN, GRANT, base64.b64encode(TOKEN.encode()).decode(), "X-Amz-Signature"):
                assert secret not in text, body["kind"]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(specs, clusters, st.sampled_from(VERSIONS))
def test_every_supported_version_accepts_the_objects(spec: LaunchSpec, made: Cluster, version: str) -> None:
    objects = accepted(spec, made)
    for body in objects:
        assert list(problems(body, version)) == [], body["kind"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("claim", ["berth-models", None])
def test_the_full_objects_are_accepted_by(version: str, nodes: int, claim: str | None) -> None:
    made = cluster(
        tier=[GPU_TIER], models_claim=claim, cache_gib=20.0, priority_class="replicas", image_pull_secret="registry"
    )
    file = ModelFile("/store/x", "weights", 1 << 30, "ab" * 32, url=GRANT)
    for body in rendered(a_spec(file, gpus=2, nodes=nodes, memory_limit=1 << 33), made, made.tier[0]):
        assert list(problems(body, version)) == []


def test_the_schemas_find_what_is_wrong() -> None:
    [_, _, pod, _] = rendered(
        a_spec(ModelFile("/x", "weights", 1, "ab" * 32), gpus=1),
        cluster(tier=[GPU_TIER]),
        cluster(tier=[GPU_TIER]).tier[0],
    )
    wrong = json.loads(json.dumps(pod))
    wrong["spec"]["containers"][0]["securityContex"] = {}
    assert [field for field, _ in problems(wrong, "1.30")] == ["spec.containers.0"]
    wrong = json.loads(json.dumps(pod))
    wrong["spec"]["terminationGracePeriodSeconds"] = "30"
    assert [field for field, _ in problems(wrong, "1.30")] == ["spec.terminationGracePeriodSeconds"]
    assert [field for field, _ in problems({"kind": "Pod", "apiVersion": "v2"}, "1.30")] == ["kind"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(specs, clusters)
@pytest.mark.threat("E3")
def test_pods_are_restricted_and_more(spec: LaunchSpec, made: Cluster) -> None:
    """The standard `restricted`, and what THREATS' defaults ask beyond it."""
    objects = accepted(spec, made)
    for body in (each for one in objects for each in pod_specs(one)):
        assert list(unrestricted(body)) == []
        [container] = body["containers"]
        assert body["automountServiceAccountToken"] is False
        assert body["enableServiceLinks"] is False
        assert not any(body[name] for name in ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"))
        assert "@sha256:" in container["image"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert body["securityContext"]["runAsUser"] == body["securityContext"]["runAsGroup"] > 0
        assert not any("hostPath" in volume for volume in body["volumes"])
        [told] = [volume["secret"] for volume in body["volumes"] if "secret" in volume]
        assert told["defaultMode"] == 0o400
        assert {each["name"] for each in container["env"]} <= {"POD_IP", "HOME", "NODE_RANK"}
        claims = [volume["persistentVolumeClaim"] for volume in body["volumes"] if "persistentVolumeClaim" in volume]
        assert all(claim["readOnly"] for claim in claims)
        assert all(mount.get("readOnly") for mount in container["volumeMounts"] if mount["name"] in ("told", "models"))


def test_a_pod_that_fetches_is_marked_and_one_that_does_not_is_not() -> None:
    file = ModelFile("/store/x", "weights", 1 << 20, "ab" * 32, url=GRANT)
    for made, marked in ((cluster(), False), (cluster(models_claim=None, cache_gib=1.0), True)):
        [_, secret, pod, _] = rendered(a_spec(file), made, made.tier[0])
        assert (names.FETCHES in pod["metadata"]["labels"]) is marked
        told = msgspec.json.decode(base64.b64decode(secret["data"]["spec.json"]), type=LaunchSpec)
        assert bool(told.files[0].path) is not marked
        assert told.cache_dir == ("/var/cache/berth" if marked else None)


def test_files_that_a_pod_could_not_get_are_refused() -> None:
    made = cluster(models_claim=None, cache_gib=1.0)
    with pytest.raises(ProviderError, match="gives no grants"):
        told_spec(a_spec(ModelFile("/store/x", "weights", 1, "ab" * 32)), made)
    with pytest.raises(ProviderError, match="may fetch"):
        take_of(a_spec(ModelFile("", "weights", 3 << 30, "ab" * 32, url=GRANT), slots=1), made.tier[0], made)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(plain_names, min_size=2, max_size=2, unique=True))
def test_two_replicas_never_share_a_name_or_label(pair: list[str]) -> None:
    first, second = pair
    assert names.object_name(first) != names.object_name(second)
    assert names.label_value(first) != names.label_value(second)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(ids, min_size=2, max_size=2, unique=True))
def test_two_deployments_never_share_a_name_or_label(pair: list[str]) -> None:
    first, second = pair
    assert names.deployment_name(first) != names.deployment_name(second)
    assert names.label_value(first) != names.label_value(second)


@pytest.mark.parametrize("name", ["../x", "/etc", "", ".", "a/b", "-x", "a\nb"])
@pytest.mark.threat("M9")
def test_names_that_lead_elsewhere_are_refused(name: str) -> None:
    with pytest.raises(ProviderError, match="name"):
        names.object_name(name)


def test_budgets_let_one_go_at_a_time() -> None:
    def kept(replicas: int, protect: bool = False) -> int:
        body = budget_object("dep", "org", "space", replicas, protect_last=protect)
        return int(body["spec"]["minAvailable"])

    assert [kept(n) for n in (0, 1, 2, 5)] == [0, 0, 1, 4]
    assert [kept(n, True) for n in (1, 2, 5)] == [1, 1, 4]
