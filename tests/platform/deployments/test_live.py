"""What people see while it happens: a deployment's status, once and as a stream; quotas by API."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from django.utils import timezone

from berth.deployments.history import record
from berth.deployments.models import Deployment, State
from berth.deployments.replicas import set_desired_replicas
from berth.deployments.services import update
from berth.orgs.models import Member
from tests import make
from tests.platform.web.test_events import Stream, cookies, server  # noqa: F401 - a fixture

pytestmark = pytest.mark.django_db(transaction=True)
USUAL = [
    {"phase": "fetching", "started_at": 0.0, "ended_at": 10.0},
    {"phase": "loading", "started_at": 10.0, "ended_at": 14.0},
]


def starting(owner: Member) -> Deployment:
    """One start was measured before; another has fetched 43 of 100 bytes."""
    made = make.deployment(owner.org, "support", state=State.STARTING)
    make.replica(made, phases=USUAL, phase="stopped", ended_at=make.NOON)
    began = datetime.now(UTC).timestamp() - 4
    phases = [{"phase": "fetching", "started_at": began, "ended_at": None, "done": 43, "total": 100}]
    make.replica(made, 1, phases=phases, phase="fetching", ready_at=None, port=None)
    return made


def status(owner: Member, name: str = "support") -> dict[str, Any]:
    answer = make.client(owner.user).get(f"/api/v1/orgs/{owner.org.slug}/deployments/{name}/status")
    assert answer.status_code == 200, answer.content
    return dict(answer.json())


def test_how_far_a_start_is_and_how_long_it_usually_takes() -> None:
    owner = make.member(make.org(), "owner")
    starting(owner)
    (start,) = status(owner)["starts"]
    assert (start["phase"], start["done"], start["total"], start["percent"]) == ("fetching", 43, 100, 43)
    assert start["usual_seconds"] == 10.0
    assert (
        4.0 <= start["usually_ready_in_seconds"] <= 10.0
    )  # of fetching what is left of ten seconds, and four of loading


def test_where_it_stands_in_the_queue_and_how_long_others_waited() -> None:
    owner = make.member(make.org(), "owner")
    for number, name in enumerate(("first", "second")):
        make.deployment(
            owner.org,
            name,
            state=State.QUEUED,
            waiting_since=make.NOON + timedelta(minutes=number),
            reason="no_capacity",
        )
    make.deployment(make.org(), last_wait_seconds=240.0)
    assert status(owner, "second")["queue"] == {"position": 2, "length": 2, "usual_seconds": 240.0}
    assert status(owner, "first")["queue"]["position"] == 1


def test_decisions_of_scaling_are_shown_with_their_reasons() -> None:
    owner = make.member(make.org(), "owner")
    made = make.deployment(owner.org, "support")
    update(made, None, min_replicas=1, max_replicas=4)
    set_desired_replicas(made.pk, 3, fence=1, reason="arrivals_rise", data={"arrivals": 12.5})
    shown = status(owner)
    assert (shown["wanted"], shown["least"], shown["most"]) == (3, 1, 4)
    assert {name: shown["scaling"][0][name] for name in ("before", "after", "reason")} == {
        "before": 1, "after": 3, "reason": "arrivals_rise",
    }  # fmt: skip


def test_the_stream_tells_the_status_at_once_and_when_it_changes(server: str) -> None:  # noqa: F811
    owner = make.member(make.org(), "viewer")
    made = starting(owner)
    other = make.deployment(owner.org, "other")
    jar = cookies(owner.user)

    async def follow() -> list[dict[str, Any]]:
        address = f"{server}/api/v1/orgs/{owner.org.slug}/deployments/support/live"
        async with httpx.AsyncClient(cookies=jar, timeout=30) as client, client.stream("GET", address) as response:
            assert response.status_code == 200
            stream = Stream(response)
            first = await stream.wait_for("status")
            await asyncio.to_thread(record, other, "deployed", timezone.now())
            await asyncio.to_thread(Deployment.objects.for_org(owner.org).filter(pk=made.pk).update, state="ready")
            await asyncio.to_thread(record, made, "state_changed", timezone.now(), to="ready")
            event = await stream.wait_for("deployments")
            return [first, event, await stream.wait_for("status")]

    first, event, last = asyncio.run(follow())
    assert (first["data"]["state"], first["data"]["starts"][0]["percent"]) == ("starting", 43)
    assert event["data"]["resource"] == "support"  # and nothing of the other one
    assert last["data"]["state"] == "ready"


@pytest.mark.threat("A1")
def test_another_organisations_deployment_is_not_there(server: str) -> None:  # noqa: F811
    owner, stranger = make.member(make.org(), "owner"), make.member(make.org(), "owner")
    starting(owner)
    for slug in (owner.org.slug, stranger.org.slug):
        answer = httpx.get(f"{server}/api/v1/orgs/{slug}/deployments/support/live", cookies=cookies(stranger.user))
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "not_found"


def test_quotas_are_an_operators_and_everybody_sees_their_own() -> None:
    owner, operator = make.member(make.org(), "owner"), make.user(operator=True)
    made = make.deployment(owner.org)
    make.replica(made)
    address = f"/api/v1/operator/orgs/{owner.org.slug}/quota"
    limits = {"replicas": 2, "memory": 10**9}
    assert make.client(owner.user).patch(address, limits, "application/json").status_code == 403
    answer = make.client(operator).patch(address, limits, "application/json")
    assert answer.json() == {"replicas": 2, "gpus": None, "memory": 10**9, "regions": None}
    seen = make.client(owner.user).get(f"/api/v1/orgs/{owner.org.slug}/capacity").json()
    assert seen["quota"] == answer.json()
    assert seen["used"] == {"replicas": 1, "gpus": 0, "memory": 400_000_000}
    assert make.client(operator).patch(address, {"replicas": None}, "application/json").json()["replicas"] is None
    assert make.client(operator).patch("/api/v1/operator/orgs/none/quota", {}, "application/json").status_code == 404


@pytest.mark.parametrize("reason", ["canary", "shadow", "rollout_paused"])
def test_while_revisions_are_compared_nobody_is_told_that_the_old_one_ends_by_itself(reason: str) -> None:
    owner = make.member(make.org(), "owner")
    make.deployment(owner.org, "support", state=State.UPDATING, reason=reason)
    assert status(owner)["next"]["code"] == reason


def test_in_a_rolling_update_the_old_revision_ends_when_the_new_one_answers() -> None:
    owner = make.member(make.org(), "owner")
    make.deployment(owner.org, "support", state=State.UPDATING)
    assert status(owner)["next"]["code"] == "switch"
