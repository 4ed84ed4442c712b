"""What gateways get to know."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from berth.billing.prices import set_price
from berth.billing.rating import Prices
from berth.catalog.facts import to_json
from berth.deployments.models import Desired, State
from berth.deployments.secrets import replica_secret
from berth.orgs.tenancy import new_id
from berth.publishing.routes import route_state
from berth.publishing.snapshot import build, dashboard_origins
from berth_gateway.contract import Limits, MemberInfo, RevisionWeight, Route, RouteState, Snapshot
from tests import make

pytestmark = pytest.mark.django_db
NOW = make.NOON


def snapshot() -> Snapshot:
    return build(epoch=new_id(), version=1, now=NOW)


def test_keys_active_expired_and_revoked() -> None:
    owner = make.member(make.org(), "owner")
    active, _ = make.key(owner, deployment_ids=[new_id()])
    expired, _ = make.key(owner, expires_at=NOW - timedelta(days=29))
    make.key(owner, expires_at=NOW - timedelta(days=31))
    make.key(owner, revoked_at=NOW)
    playing, _ = make.key(owner, kind="playground", expires_at=NOW + timedelta(minutes=15))
    make.key(owner, kind="playground", expires_at=NOW - timedelta(hours=2))

    found = {key.key_id: key for key in snapshot().keys}

    assert found.keys() == {str(active.pk), str(expired.pk), str(playing.pk)}
    assert found[str(active.pk)].deployment_ids == (str(active.deployment_ids[0]),)
    assert found[str(active.pk)].digest == bytes(active.digest)
    assert found[str(active.pk)].expires_at is None
    assert found[str(expired.pk)].expires_at == int(expired.expires_at.timestamp())


@pytest.mark.threat("K3")
def test_a_key_does_only_what_its_maker_may_still_do() -> None:
    org = make.org()
    maker = make.member(org, "developer")
    make.key(maker)
    service, _ = make.key(maker, kind="service")
    assert len(snapshot().keys) == 2
    maker.role = "viewer"
    maker.save()
    assert [key.key_id for key in snapshot().keys] == [str(service.pk)]
    maker.delete()
    assert [key.key_id for key in snapshot().keys] == [str(service.pk)]


def test_suspended_organisations_are_told() -> None:
    make.org("sound")
    make.org("owing", suspended_at=NOW)
    assert {org.slug: org.suspended for org in snapshot().orgs} == {"sound": False, "owing": True}


def test_origins_are_the_dashboard_and_its_loopback_twin() -> None:
    assert dashboard_origins("http://127.0.0.1:8000") == ("http://127.0.0.1:8000", "http://localhost:8000")
    assert dashboard_origins("http://localhost:81") == ("http://localhost:81", "http://127.0.0.1:81")
    assert dashboard_origins("https://berth.example.org") == ("https://berth.example.org",)


def test_a_ready_deployment_becomes_a_route_with_its_replicas() -> None:
    org = make.org("acme")
    deployment = make.deployment(org, "bot")
    first, second = make.replica(deployment, 0), make.replica(deployment, 1, port=7001)
    make.replica(deployment, 2, phase="loading", ready_at=None)
    make.replica(deployment, 3, phase="draining")
    make.replica(deployment, 4, ended_at=NOW)

    (route,) = snapshot().routes

    assert (route.name, route.state, route.org_id) == ("acme/bot", RouteState.READY, str(org.pk))
    assert [replica.name for replica in route.replicas] == [first.name, second.name]
    assert route.replicas[1].port == 7001
    assert route.replicas[1].secret == replica_secret(second.name) != replica_secret(first.name)
    assert route.context_length == 2048


def test_what_is_offered_depends_on_what_the_model_is_for() -> None:
    org = make.org()
    vectors, ranks = {"pooling": "mean", "has_chat_template": True}, {"pooling": "rank"}
    for name, facts in (("talks", {"has_chat_template": True}), ("writes", {}), ("embeds", vectors), ("ranks", ranks)):
        made = make.deployment(org, name)
        known = to_json(make.FACTS) | {"has_chat_template": False}
        files = make.artefact(make.version(make.model(org), facts=known | facts))
        made.revision = make.revision(made, 2, artefact=files)
        made.save()
    assert {route.name.split("/")[1]: route.endpoints for route in snapshot().routes} == {
        "talks": ("chat/completions", "completions", "responses", "messages"),
        "writes": ("completions",),
        "embeds": ("embeddings",),
        "ranks": ("rerank",),
    }


def test_while_revisions_overlap_all_serve_and_the_narrower_context_is_promised() -> None:
    deployment = make.deployment(make.org())
    old = make.replica(deployment, 0)
    deployment.revision = make.revision(deployment, 2, context_length=512, artefact=deployment.revision.artefact)
    deployment.state = State.UPDATING
    deployment.save()
    (route,) = snapshot().routes
    assert (route.state, route.revision, route.context_length) == (RouteState.READY, 1, 2048)

    new = make.replica(deployment, 0)
    (route,) = snapshot().routes
    assert {replica.name for replica in route.replicas} == {old.name, new.name}
    assert (route.revision, route.context_length) == (2, 512)


def two_revisions(traffic: dict[str, Any], **fields: Any) -> tuple[Route, str, str]:
    """The route of a deployment whose revisions 1 and 2 are compared, and the names of their replicas."""
    deployment = make.deployment(make.org(), state=State.UPDATING, traffic=traffic)
    old = make.replica(deployment, 0)
    deployment.revision = make.revision(deployment, 2, artefact=deployment.revision.artefact, **fields)
    deployment.save()
    new = make.replica(deployment, 1)
    (route,) = [each for each in snapshot().routes if each.deployment_id == str(deployment.pk)]
    return route, old.name, new.name


def test_a_canary_has_its_share_and_a_shadow_only_copies() -> None:
    route, old, new = two_revisions({"new": [2], "weight": 25})
    assert {each.name for each in route.replicas} == {old, new}
    assert route.weights == (RevisionWeight(2, 2500), RevisionWeight(1, 7500)) and route.shadow is None
    route, old, new = two_revisions({"new": [2], "shadow": 10})
    assert [each.name for each in route.replicas] == [old]
    assert route.shadow is not None and route.shadow.percent == 10
    assert [each.name for each in route.shadow.replicas] == [new]
    assert (route.revision, route.weights) == (1, ())
    route, _, _ = two_revisions({})
    assert (route.weights, route.shadow) == ((), None)


def test_of_two_engines_the_heavier_side_serves() -> None:
    for weight, engine, number in ((25, "llamacpp", 1), (75, "vllm", 2)):
        route, old, new = two_revisions({"new": [2], "weight": weight}, engine="vllm")
        assert (route.engine, route.revision) == (engine, number)
        assert [each.name for each in route.replicas] == [old if number == 1 else new]
        assert [each.revision for each in route.weights] == [number]
    route, old, _ = two_revisions({"new": [2], "shadow": 50}, engine="vllm")
    assert ([each.name for each in route.replicas], route.shadow) == ([old], None)
    route, _, new = two_revisions({}, engine="vllm")
    assert (route.engine, [each.name for each in route.replicas]) == ("vllm", [new])


def test_paused_stays_known_and_deleted_disappears() -> None:
    org = make.org()
    make.deployment(org, "resting", desired=Desired.PAUSED, state=State.STOPPING)
    make.deployment(org, "going", desired=Desired.DELETED, state=State.STOPPING)
    make.deployment(org, "gone", desired=Desired.DELETED, state=State.DELETED)
    (route,) = snapshot().routes
    assert (route.name.split("/")[1], route.state, route.replicas) == ("resting", RouteState.PAUSED, ())


def test_time_left_is_the_usual_start_less_what_has_passed() -> None:
    deployment = make.deployment(make.org(), state=State.STARTING)
    for took in (10, 20, 90):
        ended = make.replica(deployment, 0, ended_at=NOW, phase="stopped")
        type(ended).objects.for_org(deployment.org).filter(pk=ended.pk).update(
            started_at=NOW - timedelta(days=1), ready_at=NOW - timedelta(days=1) + timedelta(seconds=took)
        )
    starting = make.replica(deployment, 1, phase="loading", ready_at=None)
    type(starting).objects.for_org(deployment.org).filter(pk=starting.pk).update(started_at=NOW - timedelta(seconds=5))
    (route,) = snapshot().routes
    assert (route.state, route.ready_in_seconds) == (RouteState.LOADING, 15)


@pytest.mark.parametrize(
    ("state", "desired", "ready", "starting", "expected"),
    [
        (State.READY, Desired.RUNNING, True, False, RouteState.READY),
        (State.FAILED, Desired.RUNNING, True, False, RouteState.READY),
        (State.READY, Desired.PAUSED, True, False, RouteState.PAUSED),
        (State.PAUSED, Desired.PAUSED, False, False, RouteState.PAUSED),
        (State.QUEUED, Desired.RUNNING, False, False, RouteState.LOADING),
        (State.PAUSED, Desired.RUNNING, False, False, RouteState.LOADING),
        (State.DEGRADED, Desired.RUNNING, False, True, RouteState.LOADING),
        (State.DEGRADED, Desired.RUNNING, False, False, RouteState.UNAVAILABLE),
        (State.READY, Desired.RUNNING, False, False, RouteState.UNAVAILABLE),
        (State.FAILED, Desired.RUNNING, False, True, RouteState.UNAVAILABLE),
    ],
)
def test_route_state(state: str, desired: str, ready: bool, starting: bool, expected: RouteState) -> None:
    assert route_state(state, desired, any_ready=ready, any_starting=starting) is expected


def test_limits_prices_and_budgets_are_published() -> None:
    org = make.org(limit_rpm=100)
    owner, limited = make.member(org, "owner"), make.member(org, "developer")
    limited.limit_tpm = 9
    limited.save()
    key, _ = make.key(limited, limit_concurrency=2)
    service, _ = make.key(owner, kind="service")
    deployment = make.deployment(org, limit_tpm=5000)
    budget = make.budget(org, period="day")
    set_price(
        Prices(Decimal("0.000001"), Decimal("0"), Decimal("0.000002")),
        org=org,
        valid_from=NOW + timedelta(hours=1),
        now=NOW,
    )
    made = build(epoch=new_id(), version=1, now=NOW)
    by_id = {each.key_id: each for each in made.keys}
    assert by_id[str(key.pk)].limits == Limits(concurrency=2) and by_id[str(key.pk)].member_id == str(limited.pk)
    assert by_id[str(service.pk)].limits is None and by_id[str(service.pk)].member_id is None
    assert next(each for each in made.orgs if each.org_id == str(org.pk)).limits == Limits(rpm=100)
    assert made.members == (MemberInfo(str(limited.pk), str(org.pk), Limits(tpm=9)),)
    route = next(each for each in made.routes if each.deployment_id == str(deployment.pk))
    assert route.limits == Limits(tpm=5000)
    assert [(each.input, each.cached, each.output) for each in route.prices] == [
        (150_000, 75_000, 600_000),
        (1_000_000, 0, 2_000_000),
    ]
    assert route.prices[1].valid_from == (NOW + timedelta(hours=1)).timestamp()
    (published,) = made.budgets
    assert (published.budget_id, published.limit_pico) == (str(budget.pk), 100 * 10**12)
    assert [period.name for period in published.periods] == ["2026-11-30", "2026-12-01", "2026-12-02"]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(made), type=Snapshot) == made
