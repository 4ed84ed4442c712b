"""What an operator applies: accepted by every supported version, restricted, by digest, and with no more rights than are used."""

from __future__ import annotations

import base64
import fnmatch
import importlib.util
import json
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from berth.compute.launch import LaunchSpec
from berth.compute.provider import ProviderError
from berth.compute.providers.kubernetes.client import ApiClient
from berth.compute.providers.kubernetes.clusters import read_clusters
from berth.compute.providers.kubernetes.errors import Refusal
from berth.compute.providers.kubernetes.guard import denies_everything
from berth.compute.providers.kubernetes.kinds import CONFIG_MAP, NODE, POD
from berth.compute.providers.kubernetes.kinds import SECRET as SECRET_KIND
from berth_gateway.contract import usage_key
from tests.platform.compute.kubernetes.apiserver.admission import unrestricted
from tests.platform.compute.kubernetes.apiserver.resources import by_kind
from tests.platform.compute.kubernetes.schemas import VERSIONS, problems
from tests.platform.compute.kubernetes.world import NAMESPACE, World
from tests.platform.compute.provider_contract import SECRET, one
from tests.runtime.agents import eventually

ROOT = Path(__file__).resolve().parents[4]
DEPLOY = ROOT / "deploy" / "kubernetes"
OVERLAYS = sorted(path.parent for path in (DEPLOY / "overlays").glob("*/kustomization.yaml"))
KUBECTL = Path(sysconfig.get_path("scripts")) / "kubectl"
SINCE = {"ValidatingAdmissionPolicy": "1.30", "ValidatingAdmissionPolicyBinding": "1.30"}
Json = dict[str, Any]

# What nobody of ours may do, whatever the namespace: (API group, resource, verb); `*` is any.
DENIED = (
    ("*", "*", "escalate"),
    ("*", "*", "bind"),
    ("*", "*", "impersonate"),
    ("*", "*", "update"),  # everything is applied, and so never overwrites what is newer
    ("", "secrets", "get"),
    ("", "secrets", "list"),
    ("", "secrets", "watch"),
    ("", "pods/exec", "*"),
    ("", "pods/attach", "*"),
    ("", "pods/portforward", "*"),
    ("", "pods/proxy", "*"),
    ("", "pods/ephemeralcontainers", "*"),
    ("", "nodes/*", "*"),
    ("", "nodes", "patch"),
    ("", "nodes", "delete"),
    ("", "serviceaccounts", "*"),
    ("", "serviceaccounts/token", "*"),
    ("", "persistentvolumeclaims", "*"),
    ("", "namespaces", "*"),
    ("rbac.authorization.k8s.io", "*", "*"),
    ("networking.k8s.io", "networkpolicies", "create"),
    ("networking.k8s.io", "networkpolicies", "patch"),
    ("networking.k8s.io", "networkpolicies", "delete"),
    ("admissionregistration.k8s.io", "*", "*"),
    ("apps", "*", "*"),
    ("batch", "*", "*"),
)


def rendered(overlay: Path) -> list[Json]:
    assert KUBECTL.exists(), "kubectl is not installed: pip install -r requirements/dev.txt"
    done = subprocess.run(
        [str(KUBECTL), "kustomize", str(overlay)], capture_output=True, text=True, timeout=60, check=True
    )
    return [body for body in yaml.safe_load_all(done.stdout) if body]


@pytest.fixture(scope="module", params=OVERLAYS, ids=lambda path: path.name)
def manifests(request: pytest.FixtureRequest) -> list[Json]:
    return rendered(request.param)


def of(manifests: list[Json], kind: str, namespace: str | None = None) -> list[Json]:
    return [m for m in manifests if m["kind"] == kind and namespace in (None, m["metadata"].get("namespace"))]


def workloads(manifests: list[Json]) -> Iterator[tuple[str, Json]]:
    """Name and pod spec of everything that runs."""
    for body in manifests:
        if body["kind"] in ("Deployment", "StatefulSet", "Job"):
            yield body["metadata"]["name"], body["spec"]["template"]["spec"]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_accepts_the_manifests(manifests: list[Json], version: str) -> None:
    assert len(manifests) > 30
    for body in manifests:
        if SINCE.get(body["kind"], "1.28") <= version:
            assert list(problems(body, version)) == [], (body["kind"], body["metadata"]["name"])


@pytest.mark.threat("E3")
def test_both_namespaces_enforce_restricted_pods(manifests: list[Json]) -> None:
    spaces = {m["metadata"]["name"]: m["metadata"]["labels"] for m in of(manifests, "Namespace")}
    assert set(spaces) == {"berth", "berth-runtime"}
    for labels in spaces.values():
        assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


@pytest.mark.threat("E3")
def test_what_runs_is_restricted_and_more(manifests: list[Json]) -> None:
    found = dict(workloads(manifests))
    assert set(found) == {"berth-web", "berth-worker", "berth-beat", "berth-gateway", "berth-migrate"}
    for name, spec in found.items():
        assert list(unrestricted(spec)) == [], name
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["enableServiceLinks"] is False, name
        assert spec["securityContext"]["runAsUser"] > 0, name
        for container in spec["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True, name
            assert "@sha256:" in container["image"], name
            for kind in ("requests", "limits"):
                assert {"cpu", "memory", "ephemeral-storage"} <= container["resources"][kind].keys(), name
        for volume in spec["volumes"]:
            assert "hostPath" not in volume, name
            assert "sizeLimit" in volume.get("emptyDir", {"sizeLimit": 1}), name
            mode = (volume.get("secret") or volume.get("projected") or {"defaultMode": 0o400})["defaultMode"]
            assert mode == 0o400, name


@pytest.mark.threat("E3")
def test_only_worker_and_web_have_a_token(manifests: list[Json]) -> None:
    having = {name for name, spec in workloads(manifests) if any("projected" in volume for volume in spec["volumes"])}
    assert having == {"berth-worker", "berth-web"}
    for account in of(manifests, "ServiceAccount"):
        assert account["automountServiceAccountToken"] is False


@pytest.mark.threat("K1")
def test_no_secret_is_in_an_environment_or_argument(manifests: list[Json]) -> None:
    for name, spec in workloads(manifests):
        for container in spec["containers"]:
            for variable in container.get("env") or []:
                assert "secretKeyRef" not in variable.get("valueFrom", {}), (name, variable["name"])
            assert all("secretRef" not in source for source in container.get("envFrom") or []), name
            assert not any("://" in argument and "@" in argument for argument in container.get("args") or []), name
    for body in of(manifests, "ConfigMap"):
        assert not any("password" in value.lower() for value in body["data"].values())
    assert of(manifests, "Secret") == [], "an operator makes them; they are in no manifest"


@pytest.mark.threat("E3")
def test_rights_are_none_of_those_that_are_denied(manifests: list[Json]) -> None:
    rules = [(m, rule) for kind in ("Role", "ClusterRole") for m in of(manifests, kind) for rule in m["rules"]]
    assert rules
    for role, rule in rules:
        assert "*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]]
        for group, resource, verb in DENIED:
            hit = (
                any(fnmatch.fnmatchcase(g, group) for g in rule["apiGroups"])
                and any(fnmatch.fnmatchcase(r, resource) for r in rule["resources"])
                and any(fnmatch.fnmatchcase(v, verb) for v in rule["verbs"])
            )
            assert not hit, (role["metadata"]["name"], group, resource, verb)
    assert {m["metadata"]["namespace"] for m in of(manifests, "Role")} == {"berth-runtime"}
    for role in of(manifests, "ClusterRole"):
        assert {r for rule in role["rules"] for r in rule["resources"]} == {"nodes"}
        assert {v for rule in role["rules"] for v in rule["verbs"]} <= {"get", "list", "watch"}


@pytest.mark.threat("E3")
@pytest.mark.threat("E1")
def test_networks_are_closed_but_for_what_is_needed(manifests: list[Json]) -> None:
    for namespace in ("berth", "berth-runtime"):
        assert any(map(denies_everything, of(manifests, "NetworkPolicy", namespace))), namespace
    runtime = {p["metadata"]["name"]: p["spec"] for p in of(manifests, "NetworkPolicy", "berth-runtime")}
    [heard] = runtime["replicas-hear-gateways"]["ingress"]
    assert heard["from"] == [
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "berth"}},
            "podSelector": {"matchLabels": {"app.kubernetes.io/component": "gateway"}},
        }
    ]
    assert [port["port"] for port in heard["ports"]] == [8000]
    leaving = [spec for spec in runtime.values() if spec.get("egress")]
    assert [spec["podSelector"]["matchLabels"] for spec in leaving] == [{"berth.dev/fetches": "true"}], (
        "an engine calls nobody"
    )
    entering = [name for name, spec in runtime.items() if spec.get("ingress")]
    assert entering == ["replicas-hear-gateways"]


@pytest.mark.threat("G6")
def test_no_policy_allows_the_addresses_that_hand_out_credentials(manifests: list[Json]) -> None:
    blocks = [
        peer["ipBlock"]
        for policy in of(manifests, "NetworkPolicy")
        for rule in policy["spec"].get("egress") or []
        for peer in rule.get("to") or [{"ipBlock": {"cidr": "0.0.0.0/0"}}]
        if "ipBlock" in peer
    ]
    assert len(blocks) >= 8
    for block in blocks:
        excepted = block.get("except") or []
        assert (
            ("169.254.0.0/16" in excepted)
            if "." in block["cidr"]
            else ({"fd00:ec2::254/128", "fe80::/10"} <= set(excepted))
        )


def test_a_drain_is_no_outage(manifests: list[Json]) -> None:
    selected = {
        b["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"]: b["spec"]
        for b in of(manifests, "PodDisruptionBudget")
    }
    for body in manifests:
        if body["kind"] in ("Deployment", "StatefulSet") and body["spec"]["replicas"] > 1:
            part = body["metadata"]["labels"]["app.kubernetes.io/component"]
            assert selected[part]["maxUnavailable"] == 1
            assert body["spec"]["template"]["spec"]["topologySpreadConstraints"]


def test_the_settings_and_the_clusters_are_ones_that_berth_takes(manifests: list[Json], tmp_path: Path) -> None:
    import berth.env
    import berth_gateway.config

    maps = {m["metadata"]["name"].rsplit("-", 1)[0]: m["data"] for m in of(manifests, "ConfigMap", "berth")}
    known = {setting.name for setting in berth.env.SETTINGS} | {"DJANGO_SETTINGS_MODULE"}
    assert maps["berth-settings"].keys() <= known
    (tmp_path / "clusters.toml").write_text(maps["berth-clusters"]["clusters.toml"])
    [main] = read_clusters(tmp_path / "clusters.toml")
    assert main.namespace == "berth-runtime"
    assert main.priority_class in {m["metadata"]["name"] for m in of(manifests, "PriorityClass")}
    assert main.service_account in {m["metadata"]["name"] for m in of(manifests, "ServiceAccount", main.namespace)}
    gateway = dict(workloads(manifests))["berth-gateway"]["containers"][0]
    assert {variable["name"] for variable in gateway["env"]} <= {s.name for s in berth_gateway.config.SETTINGS}


def test_every_queue_has_a_worker(manifests: list[Json]) -> None:
    from berth.host.worker import QUEUES

    arguments = dict(workloads(manifests))["berth-worker"]["containers"][0]["args"]
    assert set(arguments[arguments.index("--queues") + 1].split(",")) == set(QUEUES)


# The rights are enough, too


@pytest.fixture
def guarded(world: World) -> World:
    """A cluster with the base's accounts and rights, and a token for each account."""
    world.api.store.remove("networkpolicies", NAMESPACE, "default-deny")
    spaces = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "berth"}}
    world.api.create(by_kind("Namespace"), None, spaces, "operator")
    for body in rendered(OVERLAYS[0]):
        if body["kind"] in (
            "ServiceAccount",
            "Role",
            "RoleBinding",
            "ClusterRole",
            "ClusterRoleBinding",
            "NetworkPolicy",
        ):
            world.api.create(by_kind(body["kind"]), body["metadata"].get("namespace"), body, "operator")
    for name in ("worker", "web", "none"):
        world.server.tokens[f"{name}-token"] = f"system:serviceaccount:berth:berth-{name}"
    return world


@pytest.mark.threat("E3")
def test_with_its_rights_the_worker_can_do_its_work(guarded: World, spec: LaunchSpec) -> None:
    provider = guarded.provider("worker-token")
    assert provider.offers()[0].free
    provider.start(spec, SECRET)
    eventually(lambda: one(provider, spec).ready, "it is ready")
    assert provider.logs(spec.replica).lines
    web = guarded.provider("web-token")
    assert one(web, spec).ready
    assert web.logs(spec.replica).lines
    assert web.offers() == provider.offers()
    with pytest.raises(ProviderError):
        web.stop(spec.replica, drain_seconds=0)
    with pytest.raises(ProviderError):
        web.start(msgspec.structs.replace(spec, replica="dep-1-3-1-0"), SECRET)
    provider.stop(spec.replica, drain_seconds=0)
    eventually(lambda: not one(provider, spec).alive, "it has ended")
    provider.forget(spec.replica)
    assert provider.observe_all() == []
    asked = {(verb, what) for user, verb, what in guarded.server.requests if user.endswith("berth-worker")}
    granted = {
        (verb, resource)
        for body in rendered(OVERLAYS[0])
        if body["kind"] in ("Role", "ClusterRole") and body["metadata"]["name"] in ("berth-worker", "berth-nodes")
        for rule in body["rules"]
        for verb in rule["verbs"]
        for resource in rule["resources"]
        if resource != "leaderworkersets"
    }
    unused = {
        right for right in granted - asked if right[0] not in ("create", "get")
    }  # server-side apply needs create as well
    assert unused == set(), "a right that is not used is one too many"


@pytest.mark.threat("E3")
def test_a_token_of_another_part_opens_nothing(guarded: World) -> None:
    with pytest.raises(ProviderError):
        guarded.provider("none-token").offers()
    client = ApiClient(guarded.provider("none-token")._client._credentials, "tests")
    for kind in (POD, SECRET_KIND, CONFIG_MAP, NODE):
        with pytest.raises(Refusal) as refused:
            client.list(kind, NAMESPACE)
        assert refused.value.code == 403
    worker = ApiClient(guarded.provider("worker-token")._client._credentials, "tests")
    for act in (lambda: worker.list(SECRET_KIND, NAMESPACE), lambda: worker.get(SECRET_KIND, NAMESPACE, "x")):
        with pytest.raises(Refusal) as refused:
            act()
        assert refused.value.code == 403


# Secrets


@pytest.mark.threat("D3")
def test_the_secrets_that_are_made_are_those_that_are_mounted(manifests: list[Json], tmp_path: Path) -> None:
    found = importlib.util.spec_from_file_location("make_secrets", DEPLOY / "make_secrets.py")
    assert found and found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    urls = ("postgresql://u:pw@db/berth", "redis://u:pw@valkey", "redis://gw:pw@valkey")
    objects = {body["metadata"]["name"]: body for body in module.made(tmp_path / "kept", 2, *urls)}
    again = {body["metadata"]["name"]: body for body in module.made(tmp_path / "kept", 3, *urls)}
    assert again["berth-secrets"] == objects["berth-secrets"], "running it again changes nothing"
    for body in objects.values():
        assert all(list(problems(body, version)) == [] for version in VERSIONS)
    mounted = {
        volume["secret"]["secretName"]
        for _, spec in workloads(manifests)
        for volume in spec["volumes"]
        if "secret" in volume
    }
    assert mounted == set(objects)

    def inside(name: str, key: str) -> str:
        return base64.b64decode(again[name]["data"][key]).decode()

    master = bytes.fromhex(inside("berth-secrets", "usage_master_key"))
    assert inside("berth-usage-keys", "usage_key_berth-gateway-2") == usage_key(master, "berth-gateway-2").hex()
    gateway = dict(workloads(manifests))["berth-gateway"]
    paths = {
        variable["value"]
        for variable in gateway["containers"][0]["env"]
        if str(variable.get("value", "")).startswith("/etc/berth/gateway/")
    }
    assert {Path(path).name for path in paths} == set(objects["berth-gateway"]["data"])
    text = json.dumps(objects["berth-gateway"]) + json.dumps(objects["berth-usage-keys"])
    assert again["berth-secrets"]["data"]["usage_master_key"] not in text


# Images


@pytest.mark.parametrize("name", ["platform", "gateway", "runtime"])
@pytest.mark.threat("E3")
@pytest.mark.threat("S1")
def test_images_run_as_nobody_from_hash_pinned_packages(name: str) -> None:
    text = (ROOT / "deploy" / "docker" / f"{name}.Dockerfile").read_text()
    stages = text.split("\nFROM ")
    assert "USER 65532:65532" in stages[-1]
    assert stages[-1].rstrip().splitlines()[-1].split()[0] in ("USER", "ENTRYPOINT")
    assert all(
        "--require-hashes" in line
        for line in text.replace("\\\n", " ").splitlines()
        for line in line.split("&&")
        if " install " in line and "apt-get" not in line
    )
    copied = [line.split()[1] for line in text.splitlines() if line.startswith("COPY ") and "--from" not in line]
    assert not any(source in (".", "./") for source in copied), "an image holds what is named, and nothing by accident"
    assert "ADD " not in text
    assert "curl" not in text
    for source in (
        word
        for line in text.splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for word in line.split()[1:-1]
    ):
        assert (ROOT / source).exists(), source
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignored


def test_the_gateways_image_has_no_shell() -> None:
    last = (ROOT / "deploy" / "docker" / "gateway.Dockerfile").read_text().split("\nFROM ")[-1]
    assert last.startswith("scratch\n")
    assert "RUN" not in last
    before = (ROOT / "deploy" / "docker" / "gateway.Dockerfile").read_text()
    assert "cp -a /bin" not in before
    assert "cp -a /usr/bin" not in before
