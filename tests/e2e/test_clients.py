"""The main job as its users do it: the printed curl, and the official client, streaming and not."""

from __future__ import annotations

import json
import stat
import subprocess

import httpx
import openai
import pytest

from tests.e2e.conftest import Platform

pytestmark = pytest.mark.e2e


@pytest.fixture
def client(platform_up: Platform) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=platform_up.demo["api_base"], api_key=platform_up.demo["api_key"], max_retries=0, timeout=60
    )


def test_the_printed_curl_streams_real_tokens(platform_up: Platform) -> None:
    command = platform_up.printed_curl()
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    events = [line.removeprefix("data: ") for line in done.stdout.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    assert text.strip()
    assert {chunk["model"] for chunk in chunks} == {platform_up.demo["model"]}
    assert len(chunks) > 3, "tokens arrive one by one, not as one block"


def test_the_printed_python_snippet_runs_as_printed(platform_up: Platform) -> None:
    done = subprocess.run(
        [platform_up.python, "-c", platform_up.printed_python()], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip()


def test_demo_facts_are_private_and_complete(platform_up: Platform) -> None:
    path = platform_up.home / "demo.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert set(json.loads(path.read_text())) == {"dashboard_url", "api_base", "api_key", "model", "email", "password"}
    assert stat.S_IMODE(platform_up.home.stat().st_mode) == 0o700


def test_models(client: openai.OpenAI, platform_up: Platform) -> None:
    model = platform_up.demo["model"]
    assert model in [entry.id for entry in client.models.list()]
    assert client.models.retrieve(model).owned_by == "my-org"
    with pytest.raises(openai.NotFoundError) as missing:
        client.models.retrieve("my-org/nothing")
    assert missing.value.code == "model_not_found"


def test_chat_plain_and_stream(client: openai.OpenAI, platform_up: Platform) -> None:
    question = [{"role": "user", "content": "Say hello."}]
    plain = client.chat.completions.create(model=platform_up.demo["model"], messages=question, max_tokens=12)
    assert plain.choices[0].message.content
    assert plain.choices[0].finish_reason in {"stop", "length"}
    assert plain.usage is not None
    assert plain.usage.completion_tokens > 0
    assert plain.usage.total_tokens == plain.usage.prompt_tokens + plain.usage.completion_tokens
    stream = client.chat.completions.create(
        model=platform_up.demo["model"],
        messages=question,
        max_tokens=12,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert [c.usage for c in chunks[:-1]] == [None] * (len(chunks) - 1)


def test_completions_plain_and_stream(client: openai.OpenAI, platform_up: Platform) -> None:
    prompt = "The capital of France is"
    plain = client.completions.create(model=platform_up.demo["model"], prompt=prompt, max_tokens=4, temperature=0)
    assert "Paris" in plain.choices[0].text
    chunks = list(
        client.completions.create(
            model=platform_up.demo["model"], prompt=prompt, max_tokens=4, temperature=0, stream=True
        )
    )
    assert "Paris" in "".join(c.choices[0].text for c in chunks if c.choices)
    assert all(c.usage is None for c in chunks)


def test_wrong_key_and_wrong_model(platform_up: Platform, client: openai.OpenAI) -> None:
    stranger = openai.OpenAI(base_url=platform_up.demo["api_base"], api_key="bth_sk_wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError) as refused:
        stranger.models.list()
    assert refused.value.code == "invalid_api_key"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other-org/x", messages=[{"role": "user", "content": "x"}])


def test_usage_and_statement_follow_a_call(platform_up: Platform, client: openai.OpenAI) -> None:
    answer = client.completions.create(model=platform_up.demo["model"], prompt="One two three", max_tokens=3)
    assert answer.usage is not None
    session = platform_up.sign_in()
    event = platform_up.wait_for(
        lambda: next(
            (
                e
                for e in session.get("/api/v1/orgs/my-org/usage/events").json()["items"]
                if e["endpoint"] == "completions"
                and (e["prompt_tokens"], e["completion_tokens"])
                == (answer.usage.prompt_tokens, answer.usage.completion_tokens)
                and e["amount"] is not None
            ),
            None,
        )
    )
    assert event["outcome"] == "ok"
    months = session.get("/api/v1/orgs/my-org/statements").json()["items"]
    statement = session.get(f"/api/v1/orgs/my-org/statements/{months[0]['period']}").json()
    assert statement["total_micro"] == sum(line["amount_micro"] for line in statement["lines"])
    csv = session.get(f"/api/v1/orgs/my-org/statements/{months[0]['period']}/csv")
    assert csv.headers["content-type"].startswith("text/csv")


def test_a_revoked_key_stops(platform_up: Platform) -> None:
    session = platform_up.sign_in()
    made = session.post("/api/v1/orgs/my-org/keys", json={"name": "to be revoked"}).json()
    headers = {"Authorization": f"Bearer {made['secret']}"}
    models = f"{platform_up.demo['api_base']}/models"
    platform_up.wait_for(lambda: httpx.get(models, headers=headers).status_code == 200)
    assert session.post(f"/api/v1/orgs/my-org/keys/{made['id']}/revoke").json()["status"] == "revoked"
    platform_up.wait_for(lambda: httpx.get(models, headers=headers).status_code == 401)
