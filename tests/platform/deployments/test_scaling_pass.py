"""Scaling in the control plane: one scaler at a time, loads of gateways that come and go, decisions carried out and written down."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import msgspec
import pytest
import redis

from berth.compute.launch import EngineMetrics, Phase
from berth.compute.provider import ObservedReplica
from berth.deployments import scaling_engines, scaling_pass, scaling_services, tasks
from berth.deployments.autoscale import Observation, autoscale
from berth.deployments.models import Deployment, PlanCheck, Replica, Revision, ScalingDecision, State
from berth.deployments.replicas import set_desired_replicas
from berth.deployments.scaling_lease import HELD, claim, release
from berth.deployments.scaling_load import Tally, summed
from berth.deployments.scaling_memory import forget, recall
from berth.deployments.selectors import events_of, get_deployment
from berth.publishing.routes import build_routes
from berth_gateway.contract import GATEWAYS_KEY, LOAD_PREFIX, DeploymentLoad
from tests import make

NOW = make.NOON.timestamp()


def load(at: float, arrivals: int, *, since: float = NOW - 1000, in_flight: int = 0, queued: int = 0) -> DeploymentLoad:
    return DeploymentLoad(
        at=at, since=since, active_at=at, arrivals=arrivals, in_flight=in_flight, queued=queued, answers=arrivals,
        first_token_seconds=0.1 * arrivals, queue_seconds=0.0, decode_seconds=2.0 * arrivals, decode_tokens=50 * arrivals,
        prompt_tokens=100 * arrivals, cached_tokens=0, completion_tokens=51 * arrivals,
    )  # fmt: skip


# --- loads


def test_what_was_before_the_first_look_is_no_rush() -> None:
    first = summed(Tally(), {"one": load(NOW, 5000)}, NOW)
    assert first.total.arrivals == 0
    assert summed(first, {"one": load(NOW + 2, 5020)}, NOW + 2).total.arrivals == 20


def test_gateways_that_restart_begin_or_fall_silent_count_once() -> None:
    tally = summed(Tally(), {"one": load(NOW, 100)}, NOW)
    restarted = load(NOW + 2, 7, since=NOW + 1)
    tally = summed(tally, {"one": restarted, "two": load(NOW + 2, 3, since=NOW + 1)}, NOW + 2)
    assert tally.total.arrivals == 10
    tally = summed(tally, {"two": load(NOW + 4, 3, since=NOW + 1)}, NOW + 4)
    assert tally.total.arrivals == 10, "one that is silent takes nothing away"
    tally = summed(tally, {"one": load(NOW + 6, 9, since=NOW + 1)}, NOW + 6)
    assert tally.total.arrivals == 12, "and goes on where it was"


def test_an_old_gateway_that_is_seen_for_the_first_time_brings_no_rush() -> None:
    tally = summed(Tally(), {}, NOW)
    assert summed(tally, {"late": load(NOW + 2, 9000, since=NOW - 500)}, NOW + 2).total.arrivals == 0


# --- the lease


@pytest.mark.django_db
def test_one_scaler_at_a_time_each_with_a_higher_fence() -> None:
    one, two = uuid4(), uuid4()
    first = claim(one, make.NOON)
    assert first is not None
    assert claim(two, make.NOON) is None
    later = claim(two, make.NOON + HELD + timedelta(seconds=1))
    assert later is not None
    assert later > first, "one that stopped in the middle is followed by another"
    release(one)
    assert claim(one, make.NOON + HELD) is None, "who lost the lease cannot give it away"
    release(two)
    assert claim(one, make.NOON) == later + 1


# --- the pass


@pytest.fixture
def scaled(valkey: redis.Redis) -> Deployment:
    made = make.deployment(make.org(), state=State.READY, min_replicas=1, max_replicas=6)
    planned(made, first_ms=100.0, tokens=200.0)
    make.replica(made, phase="ready")
    forget(made.pk)
    valkey.hset(GATEWAYS_KEY, mapping={"one": b""})
    return made


def planned(deployment: Deployment, *, first_ms: float, tokens: float, **needs: float) -> None:
    """As if the plan had said so: about one usual request a second of each replica."""
    revision = deployment.revision
    assert revision is not None
    predicted = revision.plan["choice"]["predicted"]
    predicted["ttft_ms"]["value"], predicted["tokens_per_second"]["value"] = first_ms, tokens
    Revision.objects.for_org(deployment.org_id).filter(pk=revision.pk).update(plan=revision.plan, needs=needs)


def tell(valkey: redis.Redis, deployment: Deployment, told: DeploymentLoad) -> None:
    valkey.hset(f"{LOAD_PREFIX}one", str(deployment.pk), msgspec.msgpack.encode(told))


def row(deployment: Deployment) -> Deployment:
    return Deployment.objects.for_org(deployment.org_id).get(pk=deployment.pk)


def decisions(deployment: Deployment) -> list[ScalingDecision]:
    return list(ScalingDecision.objects.for_org(deployment.org_id).filter(deployment=deployment).order_by("id"))


def passes(
    valkey: redis.Redis, deployment: Deployment, seconds: int, rate: int, in_flight: int, since: datetime = make.NOON
) -> datetime:
    """Looks every two seconds while `rate` requests a second arrive."""
    now = since
    for index in range(0, seconds, 2):
        now = since + timedelta(seconds=index)
        tell(valkey, deployment, load(now.timestamp(), rate * index, since=NOW - 1, in_flight=in_flight))
        holder = uuid4()
        assert scaling_pass.scale_all(holder, now) == 1
        release(holder)
    return now


@pytest.mark.django_db
def test_more_load_makes_more_replicas_within_bounds_with_reasons(scaled: Deployment, valkey: redis.Redis) -> None:
    passes(valkey, scaled, 40, rate=10, in_flight=40)
    wanted = row(scaled).desired_replicas
    assert wanted is not None
    assert 1 < wanted <= 6
    written = decisions(scaled)
    assert written[-1].desired == wanted
    assert all(each.reasons and each.figures["ready"] == 1 for each in written)
    assert recall(scaled.pk).state.desired == wanted


@pytest.mark.django_db
def test_a_scaler_that_was_overtaken_changes_nothing(scaled: Deployment, valkey: redis.Redis) -> None:
    fence = claim(uuid4(), make.NOON)
    assert fence is not None
    assert set_desired_replicas(scaled.pk, 3, fence=fence + 5, reason="test") == 3
    tell(valkey, scaled, load(NOW, 0))
    assert scaling_pass.scale(scaling_pass.scalable().get(), {}, fence, make.NOON) is None
    assert row(scaled).desired_replicas == 3
    assert decisions(scaled) == []


@pytest.mark.django_db
def test_fixed_numbers_paused_and_failed_deployments_are_left_alone(valkey: redis.Redis) -> None:
    organisation = make.org()
    make.deployment(organisation, state=State.READY)
    make.deployment(organisation, state=State.PAUSED, desired="paused", min_replicas=1, max_replicas=3)
    make.deployment(organisation, state=State.FAILED, min_replicas=1, max_replicas=3)
    fixed = make.deployment(organisation, state=State.READY, min_replicas=2, max_replicas=2)
    assert scaling_pass.scale_all(uuid4(), make.NOON) == 0
    assert row(fixed).desired_replicas is None


@pytest.mark.django_db
def test_idle_ones_at_their_least_cost_nothing_and_a_rush_after_a_pause_is_one(
    scaled: Deployment, valkey: redis.Redis, django_assert_max_num_queries: Any
) -> None:
    tell(valkey, scaled, load(NOW, 0, since=NOW - 1))
    last = passes(valkey, scaled, 20, rate=1, in_flight=1)
    later = last + timedelta(hours=2)
    tell(valkey, scaled, load(last.timestamp(), 20, since=NOW - 1))
    with django_assert_max_num_queries(12):
        assert scaling_pass.scale_all(uuid4(), later) == 0
    Deployment.objects.for_org(scaled.org_id).update(desired_replicas=1)
    much = later + HELD + timedelta(seconds=1)
    tell(valkey, scaled, load(much.timestamp(), 200, since=NOW - 1, in_flight=20, queued=60))
    assert scaling_pass.scale_all(uuid4(), much) == 1
    assert recall(scaled.pk).state.history.rate(2.0) > 20
    assert (row(scaled).desired_replicas or 0) > 1


@pytest.mark.django_db
def test_without_valkey_numbers_stay_as_they_are(scaled: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> Any:
        raise redis.ConnectionError

    monkeypatch.setattr(scaling_pass, "all_loads", away)
    tasks.scale()
    assert row(scaled).desired_replicas is None
    assert claim(uuid4(), make.NOON) is not None, "the lease is given back"


@pytest.mark.django_db
def test_a_declared_peak_is_a_floor_and_people_see_why(scaled: Deployment, valkey: redis.Redis) -> None:
    owner = make.client(make.member(scaled.org, "owner").user)
    url = f"/api/v1/orgs/{scaled.org.slug}/deployments/{scaled.name}/scaling"
    assert owner.get(url).json()["latest"] is None
    peak = {
        "start": (make.NOON + timedelta(seconds=5)).isoformat(),
        "end": (make.NOON + timedelta(hours=1)).isoformat(),
        "every": "day",
        "replicas": 4,
    }
    answer = owner.put(f"{url}/peaks", {"peaks": [peak]}, "application/json")
    assert answer.status_code == 200, answer.content
    assert answer.json()["peaks"][0]["every"] == "day"
    tell(valkey, scaled, load(NOW, 0))
    assert scaling_pass.scale_all(uuid4(), make.NOON) == 1
    shown = owner.get(url).json()
    assert (shown["desired"], shown["latest"]["reasons"][0]["code"]) == (4, "peak")
    assert owner.get(f"{url}/decisions").json()["items"][0]["desired"] == 4


@pytest.mark.django_db
@pytest.mark.parametrize(
    "changed",
    [
        {"end": "2026-01-01T00:00:00Z"},
        {"replicas": None},
        {"every": "day", "end": "2030-01-01T00:00:00Z"},
        {"replicas": 0},
    ],
)
def test_peaks_that_mean_nothing_are_refused(scaled: Deployment, changed: dict[str, Any]) -> None:
    owner = make.client(make.member(scaled.org, "owner").user)
    peak = {"start": "2026-01-02T00:00:00Z", "end": "2026-01-02T01:00:00Z", "replicas": 2, **changed}
    url = f"/api/v1/orgs/{scaled.org.slug}/deployments/{scaled.name}/scaling/peaks"
    answer = owner.put(url, {"peaks": [peak]}, "application/json")
    assert answer.status_code in (400, 422), answer.content
    assert row(scaled).peaks == []


# --- what it rests on


def seen_by(deployment: Deployment, monkeypatch: pytest.MonkeyPatch, now: datetime = make.NOON) -> Observation:
    """The observation of one pass."""
    told: list[Observation] = []

    def listening(observation: Observation, state: Any) -> Any:
        told.append(observation)
        return autoscale(observation, state)

    monkeypatch.setattr(scaling_pass, "autoscale", listening)
    holder = uuid4()
    assert scaling_pass.scale_all(holder, now) == 1
    release(holder)
    monkeypatch.undo()
    return told[-1]


@pytest.mark.django_db
def test_goals_come_from_the_needs_and_the_rate_from_the_plan(
    scaled: Deployment, valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(valkey, scaled, load(NOW, 0, queued=1))
    without = seen_by(scaled, monkeypatch)
    assert (without.policy.goals.first_token_seconds, without.policy.goals.token_seconds) == (None, None)
    assert without.capacity.requests_per_second == pytest.approx(0.75 / (0.1 + 255 / 200 / 2))
    planned(scaled, first_ms=100.0, tokens=200.0, ttft_ms=400.0, tokens_per_second=20.0)
    later = make.NOON + timedelta(seconds=2)
    with_goals = seen_by(scaled, monkeypatch, later)
    assert with_goals.policy.goals.first_token_seconds == 0.4
    assert with_goals.policy.goals.token_seconds == 0.05
    assert (with_goals.capacity.requests_per_second or 9) < (without.capacity.requests_per_second or 0)


@pytest.mark.django_db
def test_what_was_measured_corrects_what_was_planned(
    scaled: Deployment, valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(valkey, scaled, load(NOW, 0, queued=1))
    before = seen_by(scaled, monkeypatch).capacity.requests_per_second
    times = {"window_start": make.NOON, "window_end": make.NOON, "load": 1.0, "planned": 200.0}
    check = PlanCheck.objects.create(
        org=scaled.org, deployment=scaled, revision=scaled.revision, metric="tokens_per_second", expected=200.0,
        measured=100.0, count=5, **times,
    )  # fmt: skip
    assert seen_by(scaled, monkeypatch).capacity.requests_per_second == before, "five requests teach nothing"
    PlanCheck.objects.for_org(scaled.org_id).filter(pk=check.pk).update(count=50)
    corrected = seen_by(scaled, monkeypatch).capacity.requests_per_second
    assert corrected == pytest.approx(0.75 / (0.1 + 255 / 100 / 2))


@pytest.mark.django_db
def test_cold_starts_count_as_they_were_measured_with_what_they_waited_for(
    scaled: Deployment, valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = make.NOON - timedelta(hours=1)
    Replica.objects.for_org(scaled.org_id).update(started_at=started, ready_at=started + timedelta(seconds=90))
    tell(valkey, scaled, load(NOW, 0, queued=1))
    assert seen_by(scaled, monkeypatch).cold_start == 90.0


@pytest.mark.django_db
def test_what_engines_say_of_themselves_is_heard(
    scaled: Deployment, valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    observed = ObservedReplica(
        name="one", org_id=str(scaled.org_id), deployment_id=str(scaled.pk), revision=1, phase=Phase.READY, phases=(),
        alive=True, updated_at=NOW, host="127.0.0.1", port=9, metrics=EngineMetrics(queued=3, kv_usage=0.5),
    )  # fmt: skip
    other = msgspec.structs.replace(observed, name="two", metrics=EngineMetrics(queued=1, kv_usage=1.0))
    starting = msgspec.structs.replace(observed, name="three", phase=Phase.LOADING, port=None)
    scaling_engines.tell([observed, other, starting])
    tell(valkey, scaled, load(NOW, 0, queued=1))
    seen = seen_by(scaled, monkeypatch)
    assert (seen.engine_queue, seen.cache_use) == (4.0, 0.75)
    valkey.delete(scaling_engines.KEY)
    assert seen_by(scaled, monkeypatch, make.NOON + timedelta(seconds=2)).engine_queue is None


@pytest.mark.django_db
def test_it_wakes_with_as_many_as_the_requests_that_wait_need(scaled: Deployment, valkey: redis.Redis) -> None:
    """Twenty minutes of silence, asleep; then forty requests within two seconds."""
    tell(valkey, scaled, load(NOW, 0, since=NOW - 1))
    last = passes(valkey, scaled, 60, rate=1, in_flight=1)
    Replica.objects.for_org(scaled.org_id).update(ended_at=last, phase="stopped")
    rows = Deployment.objects.for_org(scaled.org_id)
    asleep = last + timedelta(minutes=20)
    rows.update(state=State.ASLEEP, state_since=asleep, sleep_after_seconds=60, desired_replicas=1)
    woken = asleep + HELD
    tell(valkey, scaled, load(woken.timestamp(), 60 + 40, since=NOW - 1, queued=40))
    assert scaling_pass.scale_all(uuid4(), woken) == 1
    wanted = row(scaled).desired_replicas
    assert wanted is not None
    assert wanted > 2, "one would let them wait for a minute"


# --- how many a replica gets at once


@pytest.mark.django_db
def test_gateways_are_told_how_many_a_replica_gets_at_once(scaled: Deployment, valkey: redis.Redis) -> None:
    rows = Revision.objects.for_org(scaled.org_id).filter(pk=scaled.revision_id)
    rows.update(slots=64)
    planned(scaled, first_ms=2000.0, tokens=20.0, ttft_ms=4000.0)
    passes(valkey, scaled, 10, rate=1, in_flight=1)
    limit = row(scaled).replica_limit
    assert limit is not None
    assert 1 <= limit < 64
    route = next(each for each in build_routes(make.NOON) if each.deployment_id == str(scaled.pk))
    assert [each.slots for each in route.replicas] == [limit]
    told = scaling_services.scaling_of(get_deployment(scaled.org, scaled.name))
    assert told["replica_limit"] == limit
    assert decisions(scaled)[-1].figures["concurrency"] < 64
    # A replica of another revision is not bound by what was found out about this one.
    older = make.revision(row(scaled), 2, slots=16)
    make.replica(row(scaled), 1, revision=older, phase="ready")
    route = next(each for each in build_routes(make.NOON) if each.deployment_id == str(scaled.pk))
    assert sorted(each.slots or 0 for each in route.replicas) == sorted([limit, 16])


@pytest.mark.django_db
def test_small_changes_of_the_limit_are_not_told(scaled: Deployment) -> None:
    revision = row(scaled).revision
    assert revision is not None
    for told, expected in [(None, None), (40, None), (2, None)]:
        scaling_pass.limit_replicas(row(scaled), revision, told)
        assert row(scaled).replica_limit == expected, "as many as it has slots, or more, is no bound"
    Revision.objects.for_org(scaled.org_id).filter(pk=revision.pk).update(slots=100)
    revision.refresh_from_db()
    for told, expected in [(40, 40), (44, 40), (36, 40), (60, 60), (30, 30), (100, None)]:
        scaling_pass.limit_replicas(row(scaled), revision, told)
        assert row(scaled).replica_limit == expected


# --- what owners say


@pytest.mark.django_db
def test_owners_say_how_patient_scaling_is_and_it_is_heard(
    scaled: Deployment, valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = make.client(make.member(scaled.org, "owner").user)
    url = f"/api/v1/orgs/{scaled.org.slug}/deployments/{scaled.name}/scaling"
    assert owner.get(url).json()["stabilisation_seconds"] == 400
    answer = owner.patch(url, {"stabilisation_seconds": 900, "head_room": 1.5}, "application/json")
    assert answer.status_code == 200, answer.content
    answer = owner.patch(url, {"share": 0.95, "daily": False}, "application/json")
    shown = answer.json()
    assert [shown[name] for name in ("stabilisation_seconds", "head_room", "share", "daily")] == [900, 1.5, 0.95, False]
    tell(valkey, scaled, load(NOW, 0, queued=1))
    policy = seen_by(scaled, monkeypatch).policy
    assert (policy.stabilisation, policy.head_room, policy.goals.share, policy.daily) == (900, 1.5, 0.95, False)
    assert owner.patch(url, {"head_room": None}, "application/json").json()["head_room"] is None
    kinds = [each.kind for each in events_of(scaled)]
    assert kinds.count("scaling_changed") == 3


@pytest.mark.django_db
@pytest.mark.parametrize(
    "changed",
    [{"stabilisation_seconds": 1}, {"stabilisation_seconds": 1e6}, {"head_room": 0.5}, {"share": 1.0}, {"other": 1}],
)
def test_wishes_beyond_the_limits_are_refused(scaled: Deployment, changed: dict[str, Any]) -> None:
    owner = make.client(make.member(scaled.org, "owner").user)
    url = f"/api/v1/orgs/{scaled.org.slug}/deployments/{scaled.name}/scaling"
    assert owner.patch(url, changed, "application/json").status_code in (400, 422)
    viewer = make.client(make.member(scaled.org, "viewer").user)
    assert viewer.patch(url, {"share": 0.9}, "application/json").status_code == 403
    assert row(scaled).scaling == {}
