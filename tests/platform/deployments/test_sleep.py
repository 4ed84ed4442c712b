"""Deployments that sleep when nobody asks and wake when somebody does: the decision, the services, what gateways are told."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.compute.providers.fake import FakeProvider
from berth.deployments import services, waking
from berth.deployments.activity import last_request_at
from berth.deployments.decision import WAKING
from berth.deployments.models import Deployment, Event, State
from berth.deployments.states import State as Pure
from berth.metering.models import UsageEvent
from berth.publishing.routes import build_routes
from berth_gateway.contract import GATEWAYS_KEY, LOAD_PREFIX, WAKE_STREAM, DeploymentLoad, Route, RouteState, Wake
from tests import make
from tests.platform.deployments.conftest import Clock
from tests.platform.deployments.looks import look, queued, row, settle
from tests.platform.deployments.sim import Sim

# --- the decision


def asleep_after(seconds: float, replicas: int = 1) -> Sim:
    sim = Sim(replicas)
    sim.sleep_after = seconds
    return sim


def test_the_clock_starts_when_all_replicas_are_ready() -> None:
    sim = asleep_after(20, replicas=2)
    for _ in range(200):  # nothing gets ready, however long it takes
        sim.look()
        sim.now += 0.5
    assert sim.state is Pure.STARTING
    sim.progress()
    ready_at = sim.now
    while sim.state is not Pure.ASLEEP:
        sim.look()
        sim.progress()
        sim.now += 0.5
        assert sim.now - ready_at < 30
    assert sim.now - ready_at >= 20


def test_each_request_starts_the_clock_anew() -> None:
    sim = asleep_after(20)
    sim.settle(10)
    for _ in range(10):
        sim.last_request_at = sim.now
        sim.settle(15)
        assert sim.state is Pure.READY
    sim.settle(10)
    assert sim.state is Pure.ASLEEP


def test_it_sleeps_until_it_is_woken_and_then_starts() -> None:
    sim = asleep_after(5)
    sim.settle(60)
    assert (sim.state, sim.alive()) == (Pure.ASLEEP, [])
    sim.settle(300)
    assert (sim.state, sim.alive()) == (Pure.ASLEEP, [])
    sim.woken_at = sim.now
    decision = sim.look()
    assert (decision.state, decision.reason) == (Pure.STARTING, WAKING)
    sim.now += 100  # a long start does not count as idle
    assert sim.look().reason == WAKING, "the reason stays until it is ready"
    sim.progress()
    assert sim.look().state is Pure.READY
    sim.settle(4)
    assert sim.state is Pure.READY


def test_who_turns_sleep_off_wakes_it() -> None:
    sim = asleep_after(5)
    sim.settle(60)
    assert sim.state is Pure.ASLEEP
    sim.sleep_after = None
    sim.settle(10)
    assert sim.state is Pure.READY
    sim.settle(1000)
    assert sim.state is Pure.READY


steps = st.lists(
    st.sampled_from(
        ["look", "lost", "progress", "crash", "request", "wake", "wait", "pause", "resume", "never", "sleep"]
    ),
    max_size=60,
)


@settings(max_examples=80, deadline=None)
@given(steps, st.integers(1, 3))
def test_whatever_happens_a_request_wakes_it_and_it_converges(history: list[str], replicas: int) -> None:
    sim = asleep_after(5, replicas)
    for what in history:
        match what:
            case "look" | "lost":
                sim.look(lose_actions=what == "lost")
            case "progress":
                sim.progress()
            case "crash":
                sim.crash(0)
            case "request":
                sim.last_request_at = sim.now
            case "wake":
                sim.woken_at = sim.now
            case "wait":
                sim.now += 7
            case "pause" | "resume":
                sim.desired = type(sim.desired).PAUSED if what == "pause" else type(sim.desired).RUNNING
            case _:
                sim.sleep_after = None if what == "never" else 5
        sim.now += 0.25
        assert len(sim.alive()) <= replicas * 2 + 1
    sim.desired, sim.sleep_after = type(sim.desired).RUNNING, 5
    sim.last_request_at = sim.woken_at = sim.now + 1  # somebody asks from now on and does not stop
    for _ in range(2000):
        sim.last_request_at = sim.now
        sim.look()
        sim.progress()
        sim.now += 0.5
        if sim.state is Pure.READY and len(sim.alive()) == replicas:
            break
    sim.look()
    assert sim.state is Pure.READY
    assert len(sim.serving()) == replicas


# --- services and what gateways are told


def sleeping(provider: FakeProvider, clock: Clock, **fields: Any) -> Deployment:
    deployment = queued(**fields)
    services.update(deployment, None, sleep_after_seconds=5)
    settle(deployment, provider, clock, State.READY)
    return settle(deployment, provider, clock, State.ASLEEP)


def route_of(deployment: Deployment) -> Route:
    return next(r for r in build_routes(make.NOON) if r.deployment_id == str(deployment.pk))


@pytest.mark.django_db
def test_asleep_is_published_and_a_request_wakes_it_once(
    provider: FakeProvider, clock: Clock, valkey: redis.Redis
) -> None:
    deployment = sleeping(provider, clock)
    route = route_of(deployment)
    assert (route.state, route.replicas, route.hold_seconds) == (RouteState.ASLEEP, (), 300)
    assert route.asleep_since is not None
    asked = Wake(str(deployment.pk), route.asleep_since, 0.0)
    other_sleep = msgspec.structs.replace(asked, sleep=route.asleep_since - 1)
    nobody = msgspec.structs.replace(asked, deployment_id="00000000-0000-0000-0000-000000000000")
    for message in (b"\xc1", msgspec.msgpack.encode(other_sleep), msgspec.msgpack.encode(nobody)):
        valkey.xadd(WAKE_STREAM, {"wake": message})
    assert waking.wake_those_asked_for() == []
    assert row(deployment).sleeping
    for _ in range(3):
        valkey.xadd(WAKE_STREAM, {"wake": msgspec.msgpack.encode(asked)})
    assert waking.wake_those_asked_for() == [deployment.pk]
    assert valkey.xlen(WAKE_STREAM) == 0
    assert Event.objects.for_org(deployment.org_id).filter(kind="woken", actor=None).count() == 1
    assert route_of(deployment).state is RouteState.LOADING
    Deployment.objects.for_org(deployment.org_id).filter(pk=deployment.pk).update(woken_at=clock())
    look(deployment, provider, clock)
    assert (row(deployment).state, row(deployment).reason) == (State.STARTING, WAKING)
    settle(deployment, provider, clock, State.READY)
    ready = route_of(deployment)
    assert ready.state is RouteState.READY
    assert [(r.slots, r.revision) for r in ready.replicas] == [(2, 1)]


@pytest.mark.django_db
def test_the_api_sets_sleep_without_a_revision_and_wakes(provider: FakeProvider, clock: Clock) -> None:
    org = make.org()
    owner = make.member(org, "owner")
    client = make.client(owner.user)
    deployment = sleeping(provider, clock, organisation=org)
    place = f"/api/v1/orgs/{org.slug}/deployments/{deployment.name}"
    shown = client.get(place).json()
    assert (shown["state"], shown["sleep_after_seconds"], shown["next"]["code"]) == ("asleep", 5, "wake")
    assert client.post(f"{place}/wake", {}, content_type="application/json").status_code == 200
    assert not row(deployment).sleeping
    changed = client.patch(place, {"sleep_after_seconds": None, "hold_seconds": 10}, content_type="application/json")
    assert (changed.json()["sleep_after_seconds"], changed.json()["hold_seconds"]) == (None, 10)
    assert changed.json()["revision"]["number"] == 1
    refused = client.patch(place, {"sleep_after_seconds": 0}, content_type="application/json")
    assert (refused.status_code, refused.json()["error"]["field"]) == (400, "sleep_after_seconds")


@pytest.mark.django_db
def test_what_is_awake_or_paused_is_not_woken(provider: FakeProvider, clock: Clock) -> None:
    deployment = queued()
    assert services.wake(deployment, None) is False
    asleep = sleeping(provider, clock)
    services.pause(asleep, None)
    assert services.wake(row(asleep), None) is False


@pytest.mark.django_db
def test_a_request_is_known_from_gateways_and_from_what_was_metered(valkey: redis.Redis) -> None:
    deployment = make.deployment(make.org())
    now = make.NOON
    assert last_request_at(deployment, now) is None
    key, _ = make.key(make.member(deployment.org, "owner"))
    event = make.usage_event(deployment, key)
    UsageEvent.objects.for_org(deployment.org_id).filter(pk=event.pk).update(
        accepted_at=now - timedelta(seconds=100), duration_ms=30_000
    )
    assert last_request_at(deployment, now) == now.timestamp() - 70
    load = DeploymentLoad(0, 0, now.timestamp() - 5, *[0] * 11)
    valkey.hset(GATEWAYS_KEY, mapping={"one": b"", "two": b""})
    valkey.hset(f"{LOAD_PREFIX}one", str(deployment.pk), msgspec.msgpack.encode(load))
    valkey.hset(f"{LOAD_PREFIX}two", str(deployment.pk), b"\xc1")
    assert last_request_at(deployment, now) == now.timestamp() - 5


@pytest.mark.django_db
def test_who_cannot_know_does_not_let_it_sleep(monkeypatch: pytest.MonkeyPatch, valkey: redis.Redis) -> None:
    deployment = make.deployment(make.org())
    away = redis.Redis(port=1, socket_connect_timeout=0.1)
    monkeypatch.setattr("berth.deployments.activity.client", lambda: away)
    assert last_request_at(deployment, make.NOON) == make.NOON.timestamp()
