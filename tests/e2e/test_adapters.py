"""A LoRA adapter beside its base, with real parts: uploaded, deployed at no replica of its own, called by its own name through the
gateway, metered and priced apart, woken by its own name, and gone without its base."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import psycopg
import pytest
from psycopg.rows import dict_row

from berth.catalog.client import Session, upload, watch
from tests.e2e.conftest import Platform
from tests.runtime.lora_files import peft_adapter

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
ORG = "/api/v1/orgs/my-org"
MODEL, BASE, NAME = "smollm2-135m-instruct", "base-of-adapters", "support-voice"
TOKENS = 6


def shown(platform: Platform, name: str) -> dict[str, Any]:
    answer = platform.sign_in().get(f"{ORG}/deployments/{name}")
    answer.raise_for_status()
    return dict(answer.json())


def living(platform: Platform, name: str) -> set[str]:
    return {each["name"] for each in shown(platform, name)["replicas"] if each["ended_at"] is None}


def until(platform: Platform, name: str, state: str) -> dict[str, Any]:
    def there() -> dict[str, Any] | None:
        now = shown(platform, name)
        assert now["state"] != "failed", now
        return now if now["state"] == state else None

    return platform.wait_for(there, seconds=240)


def said(platform: Platform, name: str) -> str:
    with openai.OpenAI(
        base_url=platform.demo["api_base"], api_key=platform.demo["api_key"], max_retries=0, timeout=240
    ) as client:
        answer = client.completions.create(
            model=f"my-org/{name}", prompt="The capital of France is", max_tokens=TOKENS, temperature=0
        )
    assert answer.model == f"my-org/{name}"
    assert answer.usage is not None and answer.usage.completion_tokens == TOKENS
    return answer.choices[0].text


@pytest.fixture(scope="module")
def base(platform_up: Platform) -> Iterator[str]:
    """A deployment of its own, so that nobody else's is restarted."""
    session = platform_up.sign_in()
    wish = {"model": MODEL, "name": BASE, "needs": {"context_length": 1024, "concurrency": 2}}
    session.post(f"{ORG}/deployments", json=wish).raise_for_status()
    until(platform_up, BASE, "ready")
    yield BASE
    session.delete(f"{ORG}/deployments/{BASE}").raise_for_status()


@pytest.fixture(scope="module")
def adapter(platform_up: Platform, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Uploaded as PEFT saves it, and verified against its base."""
    folder: Path = peft_adapter(tmp_path_factory.mktemp("lora") / "adapter")
    session = Session(platform_up.demo["dashboard_url"])
    session.sign_in(platform_up.demo["email"], platform_up.demo["password"])
    run = upload(session, "my-org", NAME, sorted(folder.iterdir()), base=MODEL)
    done = watch(session, "my-org", run["id"])
    session.close()
    assert done["state"] == "done", done
    yield done
    place = f"{ORG}/models/{NAME}/versions/1"
    platform_up.wait_for(lambda: platform_up.sign_in().delete(place).status_code in (204, 404), seconds=60)


@pytest.fixture(scope="module")
def beside(platform_up: Platform, adapter: dict[str, Any], base: str) -> Iterator[dict[str, Any]]:
    session = platform_up.sign_in()
    answer = session.post(f"{ORG}/deployments", json={"model": NAME, "beside": base})
    assert answer.status_code == 201, answer.text
    yield answer.json()
    if any(each["name"] == NAME for each in session.get(f"{ORG}/deployments").json()["items"]):
        session.delete(f"{ORG}/deployments/{NAME}").raise_for_status()
    platform_up.wait_for(lambda: session.get(f"{ORG}/deployments/{NAME}").status_code == 404, seconds=60)


def test_it_answers_as_itself_on_its_bases_replicas_and_is_metered_apart(
    platform_up: Platform, beside: dict[str, Any]
) -> None:
    assert beside["beside"] == BASE
    until(platform_up, NAME, "ready")
    until(platform_up, BASE, "ready")
    platform_up.wait_for(lambda: len(living(platform_up, BASE)) == 1, seconds=120)  # the one before it is done
    own, base = shown(platform_up, NAME), shown(platform_up, BASE)
    assert base["adapters"] == [NAME]
    assert living(platform_up, NAME) == living(platform_up, BASE)

    plain, adapted = said(platform_up, BASE), said(platform_up, NAME)
    assert " Paris" in plain
    assert adapted != plain
    assert (said(platform_up, BASE), said(platform_up, NAME)) == (plain, adapted)

    platform_up.wait_for(platform_up.everything_is_ingested)
    with psycopg.connect(platform_up.database_url, row_factory=dict_row) as connection:
        rows = connection.execute(
            "select completion_tokens, revision from metering_usageevent where deployment_id = %s", [own["id"]]
        ).fetchall()
    assert [(each["completion_tokens"], each["revision"]) for each in rows] == [(TOKENS, own["revision"]["number"])] * 2


@pytest.mark.threat("M8")
def test_an_engines_own_loading_of_adapters_cannot_be_reached(platform_up: Platform, beside: dict[str, Any]) -> None:
    until(platform_up, NAME, "ready")
    headers = {"Authorization": f"Bearer {platform_up.demo['api_key']}"}
    root = platform_up.demo["api_base"].removesuffix("/v1")
    for path in ("/lora-adapters", "/v1/lora-adapters", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
        for method, body in (("GET", None), ("POST", [{"id": 0, "scale": 1.0}])):
            answer = httpx.request(method, f"{root}{path}", json=body, headers=headers, timeout=60)
            assert answer.status_code == 404, path
    wish: dict[str, Any] = {"model": f"my-org/{BASE}", "prompt": "x", "max_tokens": 1}
    for field in ({"lora": [{"id": 0, "scale": 1.0}]}, {"lora_path": "/etc"}, {"adapter": NAME}):
        answer = httpx.post(f"{root}/v1/completions", json=wish | field, headers=headers, timeout=60)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, next(iter(field)))
    stranger = httpx.post(
        f"{root}/v1/completions", json=wish | {"model": f"other-org/{NAME}"}, headers=headers, timeout=60
    )
    assert stranger.status_code == 404


def test_a_request_for_the_adapter_wakes_its_base(platform_up: Platform, beside: dict[str, Any]) -> None:
    until(platform_up, NAME, "ready")
    session = platform_up.sign_in()
    session.patch(f"{ORG}/deployments/{BASE}", json={"sleep_after_seconds": 1}).raise_for_status()
    try:
        until(platform_up, BASE, "asleep")
        until(platform_up, NAME, "asleep")
        assert said(platform_up, NAME)
    finally:
        session.patch(f"{ORG}/deployments/{BASE}", json={"sleep_after_seconds": None}).raise_for_status()
    until(platform_up, BASE, "ready")
    until(platform_up, NAME, "ready")


def test_the_base_stays_while_adapters_stand_on_it_and_goes_on_without_them(
    platform_up: Platform, beside: dict[str, Any]
) -> None:
    session = platform_up.sign_in()
    refused = session.delete(f"{ORG}/deployments/{BASE}")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "adapter.stands_on_it")
    session.delete(f"{ORG}/deployments/{NAME}").raise_for_status()
    platform_up.wait_for(lambda: session.get(f"{ORG}/deployments/{NAME}").status_code == 404, seconds=60)
    with pytest.raises(openai.NotFoundError):
        said(platform_up, NAME)
    platform_up.wait_for(lambda: shown(platform_up, BASE)["adapters"] == [], seconds=60)
    platform_up.wait_for(
        lambda: (
            {each["revision"] for each in shown(platform_up, BASE)["replicas"] if each["ended_at"] is None}
            == {shown(platform_up, BASE)["revision"]["number"]}
        ),
        seconds=240,
    )
    assert " Paris" in said(platform_up, BASE)
