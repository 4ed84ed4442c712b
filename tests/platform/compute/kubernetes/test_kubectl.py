"""What an operator sees with kubectl of what Berth has made, and does with it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from berth.compute.launch import LaunchSpec, Phase
from berth.compute.providers.kubernetes import names
from tests.platform.compute.kubernetes.world import NAMESPACE, World, get_ready
from tests.platform.compute.provider_contract import SECRET, one
from tests.runtime.agents import eventually

KUBECTL = Path(sysconfig.get_path("scripts")) / "kubectl"
Kubectl = Callable[..., str]


@pytest.fixture
def kubectl(world: World, tmp_path: Path) -> Kubectl:
    assert KUBECTL.exists(), "kubectl is not installed: pip install -r requirements/dev.txt"
    kubeconfig = world.server.kubeconfig()

    def run(*arguments: str, text: str = "", status: int = 0) -> str:
        done = subprocess.run(
            [str(KUBECTL), *arguments],
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={"KUBECONFIG": str(kubeconfig), "HOME": str(tmp_path), "PATH": os.environ["PATH"]},
        )
        assert done.returncode == status, done.stderr
        return done.stdout

    return run


def test_an_operator_sees_replicas_with_the_usual_tool(world: World, spec: LaunchSpec, kubectl: Kubectl) -> None:
    provider = world.provider()
    provider.start(spec, SECRET)
    get_ready(provider, spec)
    name = names.object_name(spec.replica)
    assert name in kubectl("get", "pods", "-l", "berth.dev/deployment=dep-1")
    assert kubectl("get", "pods", "-l", "berth.dev/deployment=dep-2", "-o", "name") == ""
    shown = json.loads(kubectl("get", "pod", name, "-o", "json"))
    assert shown["status"]["phase"] == "Running"
    described = kubectl("describe", "pod", name)
    assert "berth.dev/replica" in described
    assert re.search(f"Controlled By: +ConfigMap/{name}\n", described)
    assert "http-get http://:status/readyz" in described
    listed = kubectl("get", "configmap,secret,pod,poddisruptionbudget", "-o", "name")
    assert [line.split("/")[0] for line in listed.split()] == [
        "configmap",
        "secret",
        "pod",
        "poddisruptionbudget.policy",
    ]
    log = kubectl("logs", name)
    assert '{"status":' in log
    assert SECRET not in log + described + json.dumps(shown)


def test_deleting_the_pod_by_hand_is_a_lost_replica(world: World, spec: LaunchSpec, kubectl: Kubectl) -> None:
    provider = world.provider()
    provider.start(spec, SECRET)
    get_ready(provider, spec)
    kubectl("delete", "pod", names.object_name(spec.replica), "--wait=true")
    lost = eventually(lambda: seen if not (seen := one(provider, spec)).alive else None, "it is seen")
    assert (lost.phase, lost.reason) == (Phase.FAILED, "agent_lost")
    assert "somebody else" in (lost.message or "")


def test_draining_a_node_ends_its_replicas_and_says_why(world: World, spec: LaunchSpec, kubectl: Kubectl) -> None:
    provider = world.provider()
    provider.start(spec, SECRET)
    get_ready(provider, spec)
    kubectl("drain", "node-0", "--force", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=50s")
    lost = eventually(lambda: seen if not (seen := one(provider, spec)).alive else None, "it has gone")
    assert (lost.phase, lost.reason) == (Phase.FAILED, "node_drained")
    assert json.loads(kubectl("get", "node", "node-0", "-o", "json"))["spec"]["unschedulable"] is True
    assert not any(offer.free for offer in provider.offers()), "nothing is offered on it"


def test_fields_show_who_said_what(world: World, spec: LaunchSpec, kubectl: Kubectl) -> None:
    world.provider().start(spec, SECRET)
    name = names.object_name(spec.replica)
    kubectl("label", "configmap", name, "operator.example/note=mine")
    shown: dict[str, Any] = json.loads(kubectl("get", "configmap", name, "-o", "json", "--show-managed-fields"))
    managers = {(each["manager"], each["operation"]) for each in shown["metadata"]["managedFields"]}
    assert ("berth", "Apply") in managers
    applied = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"berth.dev/org": "another"}},
    }
    kubectl("apply", "--server-side", "--validate=false", "-f", "-", text=json.dumps(applied), status=1)
    assert world.api.store.read("configmaps", NAMESPACE, name)["metadata"]["labels"]["berth.dev/org"] == "org-1"
