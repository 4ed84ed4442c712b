"""Scaling in the control plane: one scaler at a time, loads of gateways that come and go, decisions carried out and written down."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import msgspec
import pytest
import redis

from berth.deployments import scaling_pass, tasks
from berth.deployments.models import Deployment, ScalingDecision, State
from berth.deployments.replicas import set_desired_replicas
from berth.deployments.scaling_lease import HELD, claim, release
from berth.deployments.scaling_load import Tally, summed
from berth.deployments.scaling_memory import forget, recall
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
    make.replica(made, phase="ready")
    forget(made.pk)
    valkey.hset(GATEWAYS_KEY, mapping={"one": b""})
    return made


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
