"""Models over HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import make
from tests.platform.catalog.gguf_bytes import File

pytestmark = pytest.mark.django_db


def test_add_the_sample_and_see_it() -> None:
    developer = make.member(make.org("acme"))
    client = make.client(developer.user)
    url = "/api/v1/orgs/acme/models"
    added = client.post(url, {"source": "sample"}, "application/json")
    assert added.status_code == 201, added.content
    model = added.json()
    assert model["versions"][0]["facts"]["context_length"] == 8192
    assert model["versions"][0]["artefacts"][0]["quantization"] == "Q4_1"
    assert model["deployments"] == []
    make.deployment(developer.org, "bot")
    assert client.get(url).json()["items"][-1] == model
    assert client.get(f"{url}/{model['name']}").json() == model
    assert client.get(f"{url}/other").status_code == 404


def test_a_model_tells_its_deployments() -> None:
    viewer = make.member(make.org("acme"), "viewer")
    deployment = make.deployment(viewer.org, "bot")
    make.deployment(make.org(), "foreign")
    shown = make.client(viewer.user).get("/api/v1/orgs/acme/models").json()["items"]
    assert [(model["name"], model["deployments"]) for model in shown] == [
        (deployment.revision.version.model.name, ["bot"])
    ]


def test_paths_need_an_operator_who_is_a_member(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(File().packed())
    org = make.org("acme")
    url, body = "/api/v1/orgs/acme/models", {"source": "path", "path": str(path), "name": "tiny"}
    owner = make.client(make.member(org, "owner").user)
    assert owner.post(url, body, "application/json").status_code == 403
    operator = make.client(make.member(org, "developer", make.user(operator=True)).user)
    assert operator.post(url, {**body, "name": "a/b"}, "application/json").json()["error"]["field"] == "name"
    assert operator.post(url, {"source": "path"}, "application/json").json()["error"]["field"] == "path"
    assert operator.post(url, body, "application/json").json()["versions"][0]["source"] == "path"
    path.write_bytes(b"\x80\x05 not a model, whatever its name says")
    refused = operator.post(url, {**body, "name": "other"}, "application/json")
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "pickle")


def test_viewers_add_nothing() -> None:
    client = make.client(make.member(make.org("acme"), "viewer").user)
    assert client.post("/api/v1/orgs/acme/models", {"source": "sample"}, "application/json").status_code == 403
