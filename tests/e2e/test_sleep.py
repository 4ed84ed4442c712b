"""A deployment that nobody asks for goes to sleep; two requests at once wake it once, wait, and are both answered."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import Platform

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def place(platform: Platform) -> str:
    org, _, name = platform.demo["model"].partition("/")
    return f"/api/v1/orgs/{org}/deployments/{name}"


def shown(platform: Platform) -> dict[str, Any]:
    answer = platform.sign_in().get(place(platform))
    answer.raise_for_status()
    return dict(answer.json())


def change(platform: Platform, **fields: Any) -> None:
    platform.sign_in().patch(place(platform), json=fields).raise_for_status()


def kinds(platform: Platform) -> list[str]:
    """What happened, newest first."""
    answer = platform.sign_in().get(f"{place(platform)}/events")
    return [event["kind"] for event in answer.json()["items"]]


def complete(platform: Platform, stream: bool) -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {platform.demo['api_key']}"}
    body = {"model": platform.demo["model"], "prompt": "The capital of France is", "max_tokens": 3, "stream": stream}
    answer = httpx.post(f"{platform.demo['api_base']}/completions", json=body, headers=headers, timeout=120)
    return answer.status_code, answer.text


@pytest.fixture
def sleepy(platform_up: Platform) -> Iterator[Platform]:
    change(platform_up, sleep_after_seconds=2)
    yield platform_up
    change(platform_up, sleep_after_seconds=None)
    platform_up.wait_for(lambda: shown(platform_up)["state"] == "ready", seconds=90)


def test_it_sleeps_and_two_requests_wake_it_once(sleepy: Platform) -> None:
    assert complete(sleepy, False)[0] == 200
    sleepy.wait_for(lambda: shown(sleepy)["state"] == "asleep", seconds=60)
    sleepy.wait_for(lambda: all(replica["ended_at"] for replica in shown(sleepy)["replicas"]), seconds=60)
    woken_before = kinds(sleepy).count("woken")
    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda stream: complete(sleepy, stream), [False, True]))
    assert [status for status, _ in answers] == [200, 200]
    assert answers[1][1].endswith("data: [DONE]\n\n")
    assert kinds(sleepy).count("woken") == woken_before + 1
    sleepy.wait_for(sleepy.everything_is_ingested)
    sleepy.wait_for(lambda: shown(sleepy)["state"] == "asleep", seconds=60)


def test_a_person_wakes_it_too(sleepy: Platform) -> None:
    sleepy.wait_for(lambda: shown(sleepy)["state"] == "asleep", seconds=60)
    sleepy.sign_in().post(f"{place(sleepy)}/wake", json={}).raise_for_status()
    change(sleepy, sleep_after_seconds=600)
    sleepy.wait_for(lambda: shown(sleepy)["state"] == "ready", seconds=90)
