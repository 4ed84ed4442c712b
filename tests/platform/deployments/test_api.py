"""Plans and deployments over HTTP, as the dashboard sees them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from berth.compute.providers.fake import FakeProvider
from berth.deployments import tasks
from berth.deployments.models import Deployment, State
from berth.deployments.reconcile import reconcile
from tests import make
from tests.platform.deployments.conftest import Clock

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("provider")]
URL = "/api/v1/orgs/acme/deployments"


@pytest.fixture
def owner() -> Client:
    member = make.member(make.org("acme"), "owner")
    make.artefact(make.version(make.model(member.org, "tiny")))
    return make.client(member.user)


def post(client: Client, url: str, body: Any = None, **headers: str) -> Any:
    return client.post(url, body or {}, "application/json", headers=headers)


def look(clock: Clock, provider: FakeProvider) -> None:
    row = Deployment.objects.across_orgs("test").get()
    Deployment.objects.across_orgs("test").update(check_at=make.NOON - timedelta(days=1))
    reconcile(row.pk, provider, clock)


def test_a_plan(owner: Client) -> None:
    answer = post(owner, "/api/v1/orgs/acme/plans", {"model": "tiny", "needs": {"context_length": 1024}}).json()
    choice = answer["choice"]
    assert answer["fits"] is True
    assert (choice["engine"], choice["tier"], choice["artefact"]["quantization"]) == ("llamacpp", "cpu-fake", "Q4_1")
    assert set(choice["memory"]) == {"weights", "kv", "overhead", "total", "available"}
    assert set(choice["predicted"]["tokens_per_second"]) >= {"value", "low", "high"}
    assert choice["price_per_hour"] is None
    assert answer["rejected"] == answer["changes"] == []


def test_a_plan_that_does_not_fit_is_an_answer_and_a_deployment_of_it_an_error(owner: Client) -> None:
    body = {"model": "tiny", "needs": {"context_length": 9000}}
    planned = post(owner, "/api/v1/orgs/acme/plans", body)
    assert (planned.status_code, planned.json()["fits"]) == (200, False)
    assert planned.json()["changes"][0]["params"] == {"field": "context_length", "value": 8192}
    refused = post(owner, URL, body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "no_plan")
    assert refused.json()["error"]["params"]["rejected"] == planned.json()["rejected"]


def test_what_it_would_take_anywhere(owner: Client) -> None:
    url = "/api/v1/orgs/acme/plans/anywhere"
    found = post(owner, url, {"model": "tiny", "demand": {"users": 200, "reply_tokens": 80}}).json()
    assert found["fits"] is True
    assert (found["currency"], found["choice"]["here"]) == ("USD", False)
    assert found["choice"]["load"]["code"] == "little"
    assert found["considered"] > 1000
    assert {each["reason_code"] for each in found["rejected"]}
    none = post(owner, url, {"model": "tiny", "demand": {"ttft_ms": 0.001}}).json()
    assert (none["fits"], none["choice"]) == (False, None)
    assert none["nearest"][0]["change"]["code"] == "later_first_token"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"demand": {"users": 0}}, "demand.users"),
        ({"demand": {"wishes": 1}}, "demand"),
        ({"demand": {"quality": "superb"}}, "demand.quality"),
        ({"pins": {"devices": "two"}}, "pins.devices"),
    ],
)
def test_a_demand_that_means_nothing_is_told_where(owner: Client, body: dict[str, Any], field: str) -> None:
    refused = post(owner, "/api/v1/orgs/acme/plans/anywhere", {"model": "tiny"} | body)
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, field)


def test_from_deploy_to_ready(owner: Client, provider: FakeProvider, clock: Clock) -> None:
    made = post(owner, URL, {"model": "tiny", "name": "bot"}, **{"Idempotency-Key": "0123456789"})
    assert made.status_code == 201, made.content
    again = post(owner, URL, {"model": "tiny", "name": "bot"}, **{"Idempotency-Key": "0123456789"})
    assert (again.json(), again.headers["Idempotency-Replayed"]) == (made.json(), "true")
    shown = made.json()
    assert (shown["model_id"], shown["state"], shown["replicas"]) == ("acme/bot", "queued", [])
    assert (shown["usual_basis"], set(shown["usual"])) == ("estimated", {"fetching", "verifying", "loading", "warming"})
    assert shown["next"]["code"] == "placing"
    assert shown["revision"]["plan"]["choice"]["reasons"]

    look(clock, provider)
    starting = owner.get(f"{URL}/bot").json()
    assert (starting["state"], starting["next"]["code"]) == ("starting", "verifying")
    clock.forward(2)
    look(clock, provider)
    verifying = owner.get(f"{URL}/bot").json()
    assert verifying["replicas"][0]["phase"] == "verifying"
    assert verifying["replicas"][0]["phases"][0]["started_at"].endswith("Z")
    assert verifying["next"]["code"] == "loading"
    provider.ready(provider.starts[0])
    look(clock, provider)
    ready = owner.get(f"{URL}/bot").json()
    assert (ready["state"], ready["next"], ready["replicas"][0]["phase"]) == ("ready", None, "ready")
    assert (ready["usual_basis"], ready["usual"]["verifying"]) == ("measured", 2.0)
    assert owner.get(URL).json()["items"] == [ready]

    kinds = [event["kind"] for event in owner.get(f"{URL}/bot/events").json()["items"]]
    assert kinds[-2:] == ["deployed", "revision_created"]
    assert "state_changed" in kinds
    assert [each["number"] for each in owner.get(f"{URL}/bot/revisions").json()["items"]] == [1]


def test_change_pause_resume_delete(owner: Client, provider: FakeProvider, clock: Clock) -> None:
    post(owner, URL, {"model": "tiny", "name": "bot"})
    changed = owner.patch(f"{URL}/bot", {"replicas": 2}, "application/json").json()
    assert (changed["revision"]["number"], changed["revision"]["replicas"]) == (2, 2)
    assert post(owner, f"{URL}/bot/pause").json()["desired"] == "paused"
    look(clock, provider)
    assert owner.get(f"{URL}/bot").json()["state"] == "paused"
    assert post(owner, f"{URL}/bot/resume").json()["desired"] == "running"
    gone = owner.delete(f"{URL}/bot")
    assert (gone.status_code, gone.json()["desired"]) == (202, "deleted")
    look(clock, provider)
    assert owner.get(f"{URL}/bot").status_code == 404
    assert owner.get(URL).json()["items"] == []


def test_logs_show_what_is_allowed_and_how_much_is_not(owner: Client, provider: FakeProvider, clock: Clock) -> None:
    post(owner, URL, {"model": "tiny", "name": "bot"})
    assert owner.get(f"{URL}/bot/logs").json() == {"items": [], "next_after": 0, "more": False}
    look(clock, provider)
    provider.ready(provider.starts[0])
    first = owner.get(f"{URL}/bot/logs?limit=1").json()
    assert [(line["number"], line["text"], line["withheld"]) for line in first["items"]] == [(1, "started", None)]
    assert first["more"] is True
    rest = owner.get(f"{URL}/bot/logs?after={first['next_after']}&replica={provider.starts[0]}").json()
    assert (len(rest["items"]), rest["more"]) == (3, False)
    assert owner.get(f"{URL}/bot/logs?replica=other").status_code == 404
    assert owner.get(f"{URL}/bot/logs?nonsense=1").json()["error"]["code"] == "unknown_field"


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({}, "invalid", "model"),
        ({"model": "tiny", "gpu": 1}, "unknown_field", "gpu"),
        ({"model": "tiny", "needs": {"gpu": 1}}, "unknown_field", "needs.gpu"),
        ({"model": "tiny", "needs": {"context_length": 1}}, "invalid", "needs.context_length"),
        ({"model": "tiny", "pins": {"artefact_id": "$(id)"}}, "invalid", "pins.artefact_id"),
        ({"model": "tiny", "pins": {"engine": "--x"}}, "invalid", "pins.engine"),
        ({"model": "tiny", "name": "--x"}, "invalid_name", "name"),
        ({"model": "other"}, "not_found", None),
    ],
)
@pytest.mark.threat("M9")
def test_bad_bodies_name_their_field(owner: Client, body: Any, code: str, field: str | None) -> None:
    error = post(owner, URL, body).json()["error"]
    assert (error["code"], error["field"]) == (code, field)


def test_roles(owner: Client) -> None:
    post(owner, URL, {"model": "tiny", "name": "bot"})
    org = Deployment.objects.across_orgs("test").get().org
    viewer, developer = make.client(make.member(org, "viewer").user), make.client(make.member(org).user)
    assert viewer.get(f"{URL}/bot").status_code == 200
    assert viewer.get(f"{URL}/bot/logs").status_code == 403
    assert post(viewer, f"{URL}/bot/pause").status_code == 403
    assert post(viewer, "/api/v1/orgs/acme/plans", {"model": "tiny"}).status_code == 403
    assert post(developer, f"{URL}/bot/pause").status_code == 200
    assert developer.delete(f"{URL}/bot").status_code == 403
    stranger = make.client(make.member(make.org()).user)
    assert stranger.get(f"{URL}/bot").status_code == 404


def test_the_sweep_asks_for_what_is_due_and_the_look_for_its_next(
    owner: Client, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, float]] = []
    monkeypatch.setattr(tasks.kick, "ask", lambda key, in_seconds=0.0: asked.append((str(key), in_seconds)))
    post(owner, URL, {"model": "tiny", "name": "bot"})
    key = str(Deployment.objects.across_orgs("test").get().pk)
    tasks.sweep_all()
    assert asked == [(key, 0.0)]
    tasks.reconcile(deployment_id=key)
    assert len(provider.starts) == 1
    assert asked[1][0] == key
    assert 0 < asked[1][1] <= 1
    tasks.reconcile(deployment_id=key)  # a second task for the same thing finds nothing due
    assert len(asked) == 2
    provider.unavailable = True
    tasks.sweep_all()
    assert Deployment.objects.across_orgs("test").get().state == State.STARTING
