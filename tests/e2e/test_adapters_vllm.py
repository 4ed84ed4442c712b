"""An adapter beside its base on the real vLLM, through the gateway. Minutes, and the converters: `make test-slow`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import psycopg
import pytest

from tests.e2e.conftest import Platform
from tests.e2e.matrix import MODEL, ORG, Row, converted
from tests.e2e.test_matrix import _import, spacious  # noqa: F401 - the same platform
from tests.runtime.lora_files import peft_adapter

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(3600)]
BASE, NAME = "vllm-base", "vllm-voice"
TOKENS = 6


def said(platform: Platform, name: str) -> str:
    with openai.OpenAI(
        base_url=platform.demo["api_base"], api_key=platform.demo["api_key"], max_retries=0, timeout=600
    ) as client:
        wish: dict[str, Any] = {"model": f"my-org/{name}", "prompt": "The capital of France is", "max_tokens": TOKENS}
        return client.completions.create(**wish, temperature=0).choices[0].text


def test_base_and_adapter_answer_differently_on_one_replica(spacious: Platform, tmp_path: Path) -> None:  # noqa: F811
    if "BERTH_VLLM" not in spacious.environment:
        pytest.skip("no vLLM: name one in BERTH_VLLM, or make engines")
    session = spacious.sign_in()
    made = converted(spacious, Row("safetensors", "BF16", "vllm"), seconds=1800)
    _import(spacious, NAME, peft_adapter(tmp_path / "adapter"))
    pins = {"artefact_id": made["artefact"], "engine": "vllm", "context_length": 1024, "slots": 2}
    session.post(f"{ORG}/deployments", json={"name": BASE, "model": MODEL, "pins": pins}).raise_for_status()
    answer = session.post(f"{ORG}/deployments", json={"model": NAME, "beside": BASE})
    assert answer.status_code == 201, answer.text

    def ready() -> bool:
        shown = [session.get(f"{ORG}/deployments/{name}").json() for name in (BASE, NAME)]
        assert all(each["state"] != "failed" for each in shown), shown
        return all(each["state"] == "ready" for each in shown)

    try:
        spacious.wait_for(ready, seconds=1800)
        plain, adapted = said(spacious, BASE), said(spacious, NAME)
        assert plain.startswith(" Paris") and adapted != plain
        assert (said(spacious, BASE), said(spacious, NAME)) == (plain, adapted)
        spacious.wait_for(spacious.everything_is_ingested)
        with psycopg.connect(spacious.database_url) as connection:
            rows = connection.execute(
                "select completion_tokens from metering_usageevent where deployment_id = %s", [answer.json()["id"]]
            ).fetchall()
        assert rows == [(TOKENS,), (TOKENS,)]
    finally:
        session.delete(f"{ORG}/deployments/{NAME}")
        spacious.wait_for(lambda: session.get(f"{ORG}/deployments/{NAME}").status_code == 404, seconds=120)
        session.delete(f"{ORG}/deployments/{BASE}")
