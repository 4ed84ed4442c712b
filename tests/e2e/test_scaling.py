"""The sample model goes 0 → 1 → 2 → 1 → 0 replicas while requests come, through an update, a rollback, and kill -9 of a replica and of
the worker with its beat: no request is lost, none goes to a replica that is not ready, every one is metered once.

What an engine was in the middle of answering when it was killed cannot be answered any more by anybody: the caller is told so, at most
once a client here, and that is metered too.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import psycopg
import pytest

from tests.e2e.conftest import Platform
from tests.e2e.test_sleep import change, place, shown

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

CLIENTS = 3


class Traffic:
    """Clients that ask one after the other, for as long as they are wanted. `ids` are of whole answers, `broken` of those
    that an engine had begun when it died."""

    def __init__(self, platform: Platform, clients: int = CLIENTS, tokens: int = 2, pause: float = 0.0) -> None:
        """`pause`: seconds between an answer and the client's next request."""
        self.platform = platform
        self.tokens, self.pause = tokens, pause
        self.ids: list[str] = []
        self.broken: list[str] = []
        self.others: Counter[str] = Counter()
        self.deaths = False  # whether engines are being killed
        self._end = threading.Event()
        self._clients = [threading.Thread(target=self._ask, args=(number,), daemon=True) for number in range(clients)]

    def __enter__(self) -> Traffic:
        for client in self._clients:
            client.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for client in self._clients:
            client.join(120)

    def _ask(self, number: int) -> None:
        headers = {"Authorization": f"Bearer {self.platform.demo['api_key']}"}
        with httpx.Client(base_url=self.platform.demo["api_base"], headers=headers, timeout=120) as client:
            turn = number
            while not self._end.wait(self.pause):
                turn += 1
                body = {
                    "model": self.platform.demo["model"],
                    "prompt": f"Number {turn} is",
                    "max_tokens": self.tokens,
                    "stream": turn % 2 == 0,
                }
                try:
                    answer = client.post("/completions", json=body)
                except httpx.HTTPError as error:
                    self.others[type(error).__name__] += 1
                    continue
                whole = answer.status_code == 200 and (turn % 2 or answer.text.endswith("data: [DONE]\n\n"))
                if whole:
                    self.ids.append(answer.headers["x-request-id"])
                elif self.deaths and "stopped answering" in answer.text:
                    self.broken.append(answer.headers["x-request-id"])
                else:
                    self.others[f"{answer.status_code} {answer.text[:120]}"] += 1

    def more(self, count: int) -> None:
        """Waits until so many more were answered."""
        target = len(self.ids) + count
        self.platform.wait_for(lambda: len(self.ids) >= target or self.others, seconds=300)
        assert not self.others


def ready(platform: Platform, count: int, revision: int | None = None) -> bool:
    """Whether exactly so many replicas live, all ready, all of that revision."""
    living = [each for each in shown(platform)["replicas"] if each["ended_at"] is None]
    right = all(each["phase"] == "ready" and revision in (None, each["revision"]) for each in living)
    return len(living) == count and right


def order(platform: Platform, what: str, **body: Any) -> None:
    answer = platform.sign_in().post(f"{place(platform)}/{what}", json=body)
    assert answer.is_success, answer.text


def patience(platform: Platform, seconds: float) -> None:
    """How long fewer replicas must have been enough before one goes."""
    url = f"{place(platform)}/scaling"
    platform.sign_in().patch(url, json={"stabilisation_seconds": seconds}).raise_for_status()


def retries(platform: Platform) -> dict[str, float]:
    """Requests that a gateway had to send to another replica, by reason. A kept connection that the engine has closed because it
    lay idle ("stale") says nothing about the replica."""
    text = httpx.get(platform.demo["api_base"].removesuffix("/v1") + "/metrics").text
    found = re.findall(r'^berth_gateway_retries_total{.*reason="(\w+)".*} (\S+)$', text, re.MULTILINE)
    return {reason: float(count) for reason, count in found if reason != "stale"}


def engines(platform: Platform) -> list[psutil.Process]:
    found = []
    for each in platform.processes():
        with contextlib.suppress(psutil.NoSuchProcess):  # databases start and end processes all the time
            if "llamacpp" in " ".join(each.cmdline()):
                found.append(each)
    return found


@pytest.fixture
def resting(platform_up: Platform) -> Iterator[Platform]:
    """Asleep, with one replica to come."""
    change(platform_up, sleep_after_seconds=1)
    platform_up.wait_for(lambda: shown(platform_up)["state"] == "asleep" and ready(platform_up, 0), seconds=90)
    yield platform_up
    change(platform_up, sleep_after_seconds=None)
    platform_up.wait_for(lambda: shown(platform_up)["state"] == "ready", seconds=90)


@pytest.mark.parametrize("least", [60, pytest.param(2000, marks=[pytest.mark.slow, pytest.mark.timeout(3000)])])
def test_no_request_is_lost_whatever_is_done_to_the_replicas(resting: Platform, least: int) -> None:
    platform = resting
    each = least // 12
    before = shown(platform)["revision"]
    context = before["context_length"]
    started, before_retries = time.time(), retries(platform)
    # Of a few requests, pauses leave the processors to what starts; of very many, none wants to wait.
    with Traffic(platform, pause=0.2 if least < 100 else 0.0) as traffic:
        traffic.more(each)  # 0 → 1: the first request woke it
        change(platform, sleep_after_seconds=600)
        assert ready(platform, 1)
        change(platform, replicas=2)
        two = shown(platform)["revision"]["number"]
        platform.wait_for(lambda: ready(platform, 2), seconds=120)
        traffic.more(each)

        change(platform, needs={"context_length": context // 2, "concurrency": 2}, reason="a shorter context")
        wanted = shown(platform)["revision"]["number"]
        platform.wait_for(lambda: ready(platform, 2, wanted), seconds=180)
        traffic.more(each)
        order(platform, "rollback", number=two)
        platform.wait_for(lambda: shown(platform)["state"] == "ready" and ready(platform, 2), seconds=180)
        assert shown(platform)["revision"]["number"] == two
        traffic.more(each)
        # Until now nothing died, so whatever a request was sent to answered it.
        assert retries(platform) == before_retries

        kill_one(platform, traffic, each)
        platform.kill("worker")  # with the beat, which on one machine is a thread of it
        traffic.more(each)
        change(platform, replicas=1)
        platform.kill("worker")  # in the middle of what it was told
        platform.wait_for(lambda: ready(platform, 1), seconds=120)
        traffic.more(max(each, least - len(traffic.ids)))
    change(platform, sleep_after_seconds=1)
    platform.wait_for(lambda: shown(platform)["state"] == "asleep" and ready(platform, 0), seconds=90)  # 1 → 0
    assert traffic.others == {}
    check_metered(platform, traffic, started)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_traffic_alone_scales_it_up_and_down_again(resting: Platform) -> None:
    """0 → 1 by the first request, 1 → 2 by many, 2 → 1 when few are left, 1 → 0 when none comes. Nobody asks for a number."""
    platform = resting
    change(platform, min_replicas=1, max_replicas=2)
    patience(platform, 60)
    started = time.time()
    try:
        with Traffic(platform, clients=16, tokens=48) as many:
            many.more(1)
            change(platform, sleep_after_seconds=900)
            platform.wait_for(lambda: ready(platform, 2), seconds=300)
            many.more(20)
        with Traffic(platform, clients=1, tokens=2, pause=2.0) as few:
            platform.wait_for(lambda: ready(platform, 1), seconds=900)
            few.more(3)
        change(platform, sleep_after_seconds=1)
        platform.wait_for(lambda: shown(platform)["state"] == "asleep" and ready(platform, 0), seconds=120)
    finally:
        patience(platform, 400)
        change(platform, min_replicas=None, max_replicas=None)
    assert not many.others and not few.others
    changes = platform.sign_in().get(f"{place(platform)}/status").json()["scaling"]
    assert [(each["before"], each["after"]) for each in changes] == [
        (2, 1),
        (1, 2),
    ], changes  # newest first, and no more than these
    assert all(each["reason"] for each in changes)
    many.ids += few.ids
    check_metered(platform, many, started)


def kill_one(platform: Platform, traffic: Traffic, count: int) -> None:
    """kill -9 of an engine that serves; the other one answers what it was asked."""
    failed = [replica["name"] for replica in shown(platform)["replicas"]]
    traffic.deaths = True
    os.kill(engines(platform)[0].pid, signal.SIGKILL)
    traffic.more(count)

    def renewed() -> bool:
        fresh = [each for each in shown(platform)["replicas"] if each["name"] not in failed]
        return ready(platform, 2) and bool(fresh)

    platform.wait_for(renewed, seconds=120)
    traffic.deaths = False
    assert len(traffic.broken) <= CLIENTS


def check_metered(platform: Platform, traffic: Traffic, started: float) -> None:
    platform.wait_for(platform.everything_is_ingested, seconds=60)
    asked = {platform.event_id_of(request_id) for request_id in traffic.ids}
    assert len(asked) == len(traffic.ids)
    with psycopg.connect(platform.database_url) as connection:
        rows = connection.execute(
            "select id, outcome, status, completion_tokens from metering_usageevent "
            "where accepted_at >= to_timestamp(%s)",
            [started],
        ).fetchall()
    events = {str(row[0]): row[1:] for row in rows}
    broken = {platform.event_id_of(request_id) for request_id in traffic.broken}
    assert set(events) == asked | broken, "each request has its event, and each event its request"
    assert {events[each][:2] for each in asked} == {("ok", 200)}
    assert {events[each][0] for each in broken} <= {"upstream_error"}
    assert all(events[each][2] >= 1 for each in asked)
