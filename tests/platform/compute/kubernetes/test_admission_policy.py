"""The admission policy of the base takes every pod that the provider writes, and none that it would not write."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import celpy
import pytest
import yaml

from berth.compute.launch import ModelFile
from tests.platform.compute.kubernetes.manifests import DEPLOY
from tests.platform.compute.kubernetes.test_objects import GPU_TIER, GRANT, rendered
from tests.platform.compute.kubernetes.world import cluster
from tests.platform.compute.provider_contract import a_spec

Json = dict[str, Any]
POLICY = next(yaml.safe_load_all((DEPLOY / "components" / "admission" / "replicas.yaml").read_text()))


def refusals(pod: Json) -> list[str]:
    """Messages of the rules that do not hold."""
    environment = celpy.Environment()
    found = []
    for rule in POLICY["spec"]["validations"]:
        program = environment.program(environment.compile(rule["expression"]))
        if not program.evaluate({"object": celpy.json_to_cel(pod)}):
            found.append(rule["message"])
    return found


def a_pod(*, claim: str | None = "models", gpus: int = 0) -> Json:
    made = cluster(tier=[GPU_TIER], models_claim=claim, cache_gib=10.0)
    file = ModelFile("/store/x", "weights", 1 << 20, "ab" * 32, url=GRANT)
    [_, _, pod, _] = rendered(a_spec(file, gpus=gpus), made, made.tier[0])
    return pod


@pytest.mark.parametrize("claim", ["models", None])
@pytest.mark.parametrize("gpus", [0, 2])
@pytest.mark.threat("E3")
def test_what_berth_writes_is_taken(claim: str | None, gpus: int) -> None:
    assert refusals(a_pod(claim=claim, gpus=gpus)) == []


def container(pod: Json) -> Json:
    found: Json = pod["spec"]["containers"][0]
    return found


WRONG: dict[str, tuple[Callable[[Json], Any], str]] = {
    "another kind of pod": (lambda pod: pod["metadata"]["labels"].pop("berth.dev/part"), "Only replicas run here."),
    "a second container": (
        lambda pod: pod["spec"]["containers"].append(copy.deepcopy(container(pod))),
        "A replica is one container.",
    ),
    "an initial container": (
        lambda pod: pod["spec"].update(initContainers=[container(pod)]),
        "A replica is one container.",
    ),
    "a tag": (
        lambda pod: container(pod).update(image="registry.example/berth-runtime:latest"),
        "Images are named by digest.",
    ),
    "a token": (lambda pod: pod["spec"].update(automountServiceAccountToken=True), "A replica has no token."),
    "silence about tokens": (lambda pod: pod["spec"].pop("automountServiceAccountToken"), "A replica has no token."),
    "a token by volume": (
        lambda pod: pod["spec"]["volumes"].append(
            {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}
        ),
        "A replica mounts its secret, its own folders and the model store, and nothing else.",
    ),
    "a folder of the host": (
        lambda pod: pod["spec"]["volumes"].append({"name": "h", "hostPath": {"path": "/"}}),
        "A replica mounts its secret, its own folders and the model store, and nothing else.",
    ),
    "a root to write to": (
        lambda pod: container(pod)["securityContext"].update(readOnlyRootFilesystem=False),
        "A replica's root is read-only.",
    ),
    "no limit of disk": (
        lambda pod: container(pod)["resources"]["limits"].pop("ephemeral-storage"),
        "A replica has limits.",
    ),
    "a secret in a variable": (
        lambda pod: container(pod)["env"].append(
            {"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
        ),
        "No secret is in a replica's environment.",
    ),
    "a secret as variables": (
        lambda pod: container(pod).update(envFrom=[{"secretRef": {"name": "s"}}]),
        "No secret is in a replica's environment.",
    ),
}


@pytest.mark.parametrize("what", sorted(WRONG))
@pytest.mark.threat("E3")
def test_what_berth_would_not_write_is_refused(what: str) -> None:
    spoil, message = WRONG[what]
    pod = a_pod()
    spoil(pod)
    assert refusals(pod) == [message]


def test_every_rule_is_tried() -> None:
    assert {message for _, message in WRONG.values()} == {rule["message"] for rule in POLICY["spec"]["validations"]}
