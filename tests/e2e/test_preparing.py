"""Pressing Deploy on a model whose files do not do: converted, measured and served by itself, or said why not. With real parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from berth.catalog.client import ClientError, Session, upload, watch
from tests.e2e.conftest import Platform
from tests.e2e.plain_model import plain_model

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
ORG = "/api/v1/orgs/my-org"
WISH: dict[str, Any] = {"needs": {"context_length": 512, "concurrency": 1}}
SECONDS = 400.0


def brought(platform: Platform, file: Path, name: str) -> None:
    session = Session(platform.demo["dashboard_url"])
    session.sign_in(platform.demo["email"], platform.demo["password"])
    run = upload(session, "my-org", name, [file])
    done = platform.wait_for(lambda: _watched(session, run["id"]), seconds=SECONDS)
    session.close()
    assert done["state"] == "done", done


def _watched(session: Session, run: str) -> dict[str, Any] | None:
    """A server at work on a full machine may close a connection that waits; the next look has a new one."""
    try:
        return watch(session, "my-org", run)
    except ClientError as error:
        assert error.again, error
        return None


def removed(platform: Platform, name: str) -> None:
    session = platform.sign_in()
    session.delete(f"{ORG}/deployments/{name}")
    platform.wait_for(lambda: session.get(f"{ORG}/deployments/{name}").status_code == 404, seconds=60)
    platform.wait_for(lambda: session.delete(f"{ORG}/models/{name}/versions/1").status_code in (204, 404), seconds=60)


@pytest.fixture
def model(platform_up: Platform, tmp_path: Path) -> Iterator[Callable[..., str]]:
    made: list[str] = []

    def bring(name: str, **how: Any) -> str:
        made.append(name)
        brought(platform_up, plain_model(tmp_path / f"{name}.gguf", **how), name)
        return name

    yield bring
    for name in made:
        removed(platform_up, name)


def status(platform: Platform, name: str) -> dict[str, Any]:
    answer = platform.sign_in().get(f"{ORG}/deployments/{name}/status")
    answer.raise_for_status()
    return dict(answer.json())


def events(platform: Platform, name: str) -> list[dict[str, Any]]:
    answer = platform.sign_in().get(f"{ORG}/deployments/{name}/events", params={"limit": 100})
    answer.raise_for_status()
    return list(answer.json()["items"])


def test_deploy_makes_what_the_plan_chose_and_serves_it(platform_up: Platform, model: Callable[..., str]) -> None:
    name, session = model("plain"), platform_up.sign_in()
    wish = WISH | {"model": name, "pins": {"quantization": "Q8_0"}}
    planned = session.post(f"{ORG}/plans", json=wish).json()
    assert planned["choice"]["made_of"], planned
    assert planned["choice"]["artefact"]["id"] is None
    told = {each["code"]: each for each in planned["choice"]["reasons"]}
    assert told["to_be_made"]["params"]["seconds"] > 0
    answer = session.post(f"{ORG}/deployments", json=wish | {"plan_id": planned["plan_id"]})
    assert answer.status_code == 201, answer.text
    steps: list[str] = []

    def ready() -> bool:
        now = status(platform_up, name)
        assert now["state"] != "failed", now
        if now["preparation"]:
            steps.append(now["preparation"]["step"])
            assert (now["state"], now["reason"]) in (("queued", "preparing"), ("queued", "")), now
        return bool(now["state"] == "ready")

    platform_up.wait_for(ready, seconds=SECONDS)
    assert steps
    shown = session.get(f"{ORG}/deployments/{name}").json()
    assert shown["revision"]["quantization"] == "Q8_0"
    assert "quality_measured" in [each["code"] for each in shown["revision"]["plan"]["choice"]["reasons"]]
    with openai.OpenAI(
        base_url=platform_up.demo["api_base"], api_key=platform_up.demo["api_key"], max_retries=0, timeout=240
    ) as client:
        said = client.completions.create(model=f"my-org/{name}", prompt="The capital of", max_tokens=4, temperature=0)
    assert said.usage is not None and said.usage.completion_tokens == 4
    assert {"preparing", "prepared"} <= {each["kind"] for each in events(platform_up, name)}


@pytest.mark.slow
def test_what_no_quantization_does_ends_with_what_was_tried(platform_up: Platform, model: Callable[..., str]) -> None:
    """The only one that the pin allows is really made, really measured, found broken and passed over; then it says what to do."""
    name, session = model("outliers", unquantizable=True), platform_up.sign_in()
    plans: dict[str, Any] = session.post(
        f"{ORG}/plans", json=WISH | {"model": name, "pins": {"quantization": "Q8_0"}}
    ).json()
    assert plans["choice"], plans
    wish = WISH | {"model": name, "needs": WISH["needs"] | {"quality": "good"}, "pins": {"quantization": "Q8_0"}}
    session.post(f"{ORG}/deployments", json=wish).raise_for_status()
    platform_up.wait_for(lambda: status(platform_up, name)["state"] == "failed", seconds=SECONDS)
    now = status(platform_up, name)
    assert now["reason"] == "no_quantization"
    assert [each["quantization"] for each in now["preparation"]["passed"]] == ["Q8_0"]
    assert "quantization_passed_over" in [each["kind"] for each in events(platform_up, name)]
    assert session.get(f"{ORG}/deployments/{name}").json()["replicas"] == []
