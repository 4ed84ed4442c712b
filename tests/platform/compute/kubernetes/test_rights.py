"""The rights that the base gives are enough for the work, and none is left over; the secrets that are made are those mounted."""

from __future__ import annotations

import base64
import importlib.util
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from berth.compute.launch import LaunchSpec
from berth.compute.provider import ProviderError
from berth.compute.providers.kubernetes.client import ApiClient
from berth.compute.providers.kubernetes.errors import Refusal
from berth.compute.providers.kubernetes.kinds import CONFIG_MAP, NODE, POD
from berth.compute.providers.kubernetes.kinds import SECRET as SECRET_KIND
from berth_gateway.contract import usage_key
from tests.platform.compute.kubernetes.apiserver.resources import by_kind
from tests.platform.compute.kubernetes.manifests import DEPLOY, OVERLAYS, rendered, workloads
from tests.platform.compute.kubernetes.schemas import VERSIONS, problems
from tests.platform.compute.kubernetes.world import NAMESPACE, World, get_ready
from tests.platform.compute.provider_contract import SECRET, one
from tests.runtime.agents import eventually

Json = dict[str, Any]


@pytest.fixture(scope="module")
def manifests() -> list[Json]:
    return rendered(OVERLAYS[0])


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
    get_ready(provider, spec)
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
