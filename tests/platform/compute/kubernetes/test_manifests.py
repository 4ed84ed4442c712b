"""What an operator applies: accepted by every supported version, restricted, by digest, and with no more rights than are used."""

from __future__ import annotations

import fnmatch
from pathlib import Path
from typing import Any

import pytest

from berth.compute.providers.kubernetes.clusters import read_clusters
from berth.compute.providers.kubernetes.guard import denies_everything
from tests.platform.compute.kubernetes.apiserver.admission import unrestricted
from tests.platform.compute.kubernetes.manifests import OVERLAYS, ROOT, of, rendered, workloads
from tests.platform.compute.kubernetes.schemas import VERSIONS, problems

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


@pytest.fixture(scope="module", params=OVERLAYS, ids=lambda path: path.name)
def manifests(request: pytest.FixtureRequest) -> list[Json]:
    return rendered(request.param)


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
