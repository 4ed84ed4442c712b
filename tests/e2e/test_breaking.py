"""Somebody pulls plugs while deployments are made, changed, rolled back, scaled, paused and deleted: kill -9 of any process at any moment.
Afterwards everything is as it was asked for, or says why not, and nothing runs, listens or holds room that nobody owns.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from typing import Any

import httpx
import psutil
import psycopg
import pytest

from berth.deployments.decision import CRASH_LOOP_AFTER
from berth.deployments.world import STABLE_SECONDS
from tests.e2e.conftest import Platform

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2400)]

SEED = int(os.environ.get("BREAKING_SEED", "20261201"))
ROUNDS = int(os.environ.get("BREAKING_ROUNDS", "24"))
PROCESSES = ("worker", "web", "gateway", "postgres", "valkey", "engine", "agent")
SETTLED = 240.0  # seconds
Order = tuple[str, str, dict[str, Any] | None]


class Wreckers:
    """A platform, and what is done to it."""

    def __init__(self, platform: Platform, dice: random.Random) -> None:
        self.platform, self.dice = platform, dice
        self.org = platform.demo["model"].partition("/")[0]
        self.told: list[str] = []
        self.deaths = 0  # of replicas, in a row as far as is known here

    # Orders, repeated until they are taken: whoever answers may have just been killed.

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        until = time.monotonic() + 90
        while True:
            with contextlib.suppress(httpx.HTTPError):
                session = self.platform.sign_in()
                answer = session.request(method, f"/api/v1/orgs/{self.org}/{path}", json=body)
                if answer.status_code < 500:
                    return answer
            assert time.monotonic() < until, f"{method} {path} was not taken"
            time.sleep(0.5)

    def order(self, method: str, path: str, body: dict[str, Any] | None = None) -> None:
        """409 and 404 are answers too: an order that comes twice, or too late."""
        answer = self.ask(method, path, body)
        self.told.append(f"{method} {path} {body or ''}: {answer.status_code}")
        assert answer.status_code in (200, 201, 202, 404, 409), answer.text
        if answer.status_code == 409:
            assert answer.json()["error"]["message"]

    def shown(self, name: str) -> dict[str, Any] | None:
        answer = self.ask("GET", f"deployments/{name}")
        return None if answer.status_code == 404 else dict(answer.json())

    # What is done

    def operations(self) -> dict[str, list[Order]]:
        one = "deployments/wreck"
        context = self.dice.choice([512, 1024, 1536])
        canary = {"strategy": "canary", "steps": [50], "hold_seconds": 1}
        deploy: Order = ("POST", "deployments", self.body())
        update: Order = ("PATCH", one, {"needs": self.needs(context)})
        back: Order = ("POST", f"{one}/rollback", {})
        pause: Order = ("POST", f"{one}/pause", {})
        delete: Order = ("DELETE", one, None)
        return {
            "update": [update],
            "update twice": [update, ("PATCH", one, {"needs": self.needs(context + 256)})],
            "canary, then back": [("PATCH", one, {"needs": self.needs(context), "rollout": canary}), back],
            "rollback": [back],
            "scale": [("PATCH", one, {"replicas": self.dice.choice([1, 2])})],
            "bounds": [("PATCH", one, {"min_replicas": 1, "max_replicas": 2})],
            "no bounds": [("PATCH", one, {"min_replicas": None, "max_replicas": None})],
            "pause": [pause],
            "update, then pause": [update, pause],
            "resume": [("POST", f"{one}/resume", {})],
            "delete": [delete],
            "delete, then deploy": [delete, deploy],
            "deploy, then delete": [deploy, delete],
        }

    def body(self) -> dict[str, Any]:
        model = self.platform.demo["model"].partition("/")[2]
        return {"model": model, "name": "wreck", "needs": self.needs(512)}

    def needs(self, context: int) -> dict[str, Any]:
        return {"context_length": context, "concurrency": 1}

    def forbear(self, victims: list[str]) -> None:
        """Where one more death would be the last of a series, after which a deployment is left alone for ten minutes, replicas live
        until what was before them is forgotten."""
        deaths = sum(victim in ("engine", "agent") for victim in victims)
        if self.deaths + deaths >= CRASH_LOOP_AFTER:
            time.sleep(STABLE_SECONDS + 2)
            self.deaths = 0
        self.deaths += deaths

    def kill(self, name: str) -> None:
        before = self.platform.state().get("pids", {})
        if name in before:
            victim = before[name]
        else:
            found = sorted(self.replicas(name), key=lambda each: each.pid)
            if not found:
                return
            victim = self.dice.choice(found).pid
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)

    def replicas(self, part: str) -> list[psutil.Process]:
        """Engines, or the agents that look after them."""
        found = []
        for each in self.platform.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                line = " ".join(each.cmdline())
                agent = "berth_runtime launch" in line
                if (agent and part == "agent") or ("servers/llamacpp" in line and part == "engine"):
                    found.append(each)
        return found

    # What is to be the case in the end

    def settled(self) -> bool:
        """Everything is what was asked for, and there is nothing beside it."""
        rows = [each for each in (self.shown(name) for name in self.names()) if each is not None]
        for each in rows:
            living = [replica for replica in each["replicas"] if replica["ended_at"] is None]
            resting = each["desired"] == "paused" and each["state"] == "paused" and not living
            serving = each["state"] == "ready" and len(living) == each["wanted_replicas"]
            if not resting and not (serving and all(replica["phase"] == "ready" for replica in living)):
                return False
        count = sum(each["wanted_replicas"] for each in rows if each["desired"] == "running")
        engines, agents = self.replicas("engine"), self.replicas("agent")
        return len(engines) == len(agents) == count == self.rows() and self.folders() >= count

    def names(self) -> list[str]:
        return [each["name"] for each in self.ask("GET", "deployments").json()["items"]]

    def rows(self) -> int:
        with psycopg.connect(self.platform.database_url) as connection:
            row = connection.execute("select count(*) from deployments_replica where ended_at is null").fetchone()
            assert row is not None
            return int(row[0])

    def folders(self) -> int:
        return sum((each / "status.json").exists() for each in (self.platform.home / "replicas").iterdir())

    def why(self) -> str:
        rows = [self.shown(name) for name in self.names()]
        states = [
            (each["name"], each["desired"], each["state"], each["reason"], each["message"], each["wanted_replicas"],
             [(r["name"][-8:], r["phase"], r["reason"]) for r in each["replicas"]])
            for each in rows if each
        ]  # fmt: skip
        parts = {part: [each.pid for each in self.replicas(part)] for part in ("engine", "agent")}
        return f"{states} rows={self.rows()} {parts}\n" + "\n".join(self.told[-12:])


@pytest.mark.slow
def test_everything_is_as_asked_whoever_was_killed_meanwhile(platform_up: Platform) -> None:
    dice = random.Random(SEED)
    wreckers = Wreckers(platform_up, dice)
    wreckers.order("POST", "deployments", wreckers.body())
    for number in range(ROUNDS):
        there = "wreck" in wreckers.names()
        operations = wreckers.operations()
        name = dice.choice(list(operations)) if there else "deploy, then delete"
        orders = operations[name]
        if not there and dice.random() < 0.7:  # so that mostly there is one to break
            name, orders = "deploy", orders[:1]
        victims = [dice.choice(PROCESSES) for _ in range(dice.choice([1, 1, 2]))]
        delays = [dice.uniform(0.0, 6.0) for _ in victims]
        wreckers.told.append(f"--- {number}: {name}, killing {victims} after {[round(each, 1) for each in delays]}")
        print(wreckers.told[-1], flush=True)
        wreckers.forbear(victims)
        killers = [
            threading.Timer(delay, wreckers.kill, [victim]) for victim, delay in zip(victims, delays, strict=True)
        ]
        for killer in killers:
            killer.start()
        for each in orders:
            wreckers.order(*each)
        for killer in killers:
            killer.join()
        until = time.monotonic() + SETTLED
        while not wreckers.settled():
            assert time.monotonic() < until, f"Round {number} does not come to rest: {wreckers.why()}"
            time.sleep(0.5)
    wreckers.order("DELETE", "deployments/wreck")
    platform_up.wait_for(lambda: "wreck" not in wreckers.names() and wreckers.settled(), seconds=SETTLED)
    assert held(platform_up) == wreckers.rows()


def held(platform: Platform) -> int:
    """Replicas of deployments that are there: nobody else holds room."""
    query = (
        "select count(*) from deployments_replica r join deployments_deployment d on d.id = r.deployment_id "
        "where r.ended_at is null and d.state <> 'deleted'"
    )
    with psycopg.connect(platform.database_url) as connection:
        row = connection.execute(query).fetchone()
        assert row is not None
        return int(row[0])
