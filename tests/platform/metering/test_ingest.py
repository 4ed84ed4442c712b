"""Every event once: batches doubled, reordered, with gaps, forged; the ingester failing at every step."""

from __future__ import annotations

import itertools
from datetime import timedelta
from io import StringIO
from typing import Any

import msgspec
import pytest
import redis
from django.core.management import call_command
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from berth.deployments.models import Deployment
from berth.keys.models import ApiKey
from berth.metering import ingest, tasks
from berth.metering.models import GatewayPosition, PendingEvent, RejectedBatch, UsageEvent
from berth.metering.selectors import behind_seconds
from berth.orgs.tenancy import new_id
from berth_gateway.contract import USAGE_POSITION_KEY, USAGE_STREAM
from tests import make
from tests.platform.metering import gateway

pytestmark = pytest.mark.django_db
NOW = make.NOON + timedelta(minutes=1)


@pytest.fixture
def deployment() -> Deployment:
    return make.deployment(make.org())


@pytest.fixture
def key(deployment: Deployment) -> ApiKey:
    return make.key(make.member(deployment.org))[0]


def stored() -> dict[str, UsageEvent]:
    return {str(row.pk): row for row in UsageEvent.objects.across_orgs("test")}


def position(valkey: redis.Redis, name: str = gateway.NAME) -> int:
    return int(valkey.hget(USAGE_POSITION_KEY, name) or -1)


def reasons() -> list[str]:
    return sorted(RejectedBatch.objects.values_list("reason", flat=True))


def test_events_arrive_with_everything_they_say(valkey: redis.Redis, deployment: Deployment, key: ApiKey) -> None:
    sent = gateway.event(deployment, key, cached_tokens=3, reasoning_tokens=2)
    gateway.send(valkey, gateway.batch([sent], 0, 700))
    assert ingest.ingest(now=NOW) == (1, 1)

    row = stored()[sent.event_id]
    for name in ("revision", "endpoint", "stream", "duration_ms", "first_token_ms", "status", "prompt_tokens"):
        assert getattr(row, name) == getattr(sent, name)
    assert (row.cached_tokens, row.completion_tokens, row.reasoning_tokens) == (3, 4, 2)
    assert (row.outcome, row.counted_by, row.gateway, row.accepted_at) == ("ok", "engine", "gw-1", make.NOON)
    assert (row.org_id, row.key_id, row.deployment_id) == (deployment.org_id, key.pk, deployment.pk)
    assert [pending.pk for pending in PendingEvent.objects.all()] == [row.pk]
    assert valkey.xlen(USAGE_STREAM) == 0
    assert position(valkey) == 700 == GatewayPosition.objects.get().position
    key.refresh_from_db()
    assert key.last_used_at == make.NOON
    assert ingest.ingest(now=NOW) == (0, 0)


def test_last_used_never_moves_back(valkey: redis.Redis, deployment: Deployment, key: ApiKey) -> None:
    earlier = gateway.event(deployment, key, accepted_at=make.NOON.timestamp() - 60)
    gateway.send(valkey, gateway.batch([gateway.event(deployment, key)]), gateway.batch([earlier], 1))
    ingest.ingest(now=NOW)
    key.refresh_from_db()
    assert key.last_used_at == make.NOON


def test_a_repeated_event_changes_nothing_even_altered(
    valkey: redis.Redis, deployment: Deployment, key: ApiKey
) -> None:
    sent = gateway.event(deployment, key)
    altered = msgspec.structs.replace(sent, completion_tokens=4000)
    gateway.send(valkey, gateway.batch([sent, altered]), gateway.batch([sent]), gateway.batch([altered], 2))
    assert ingest.ingest(now=NOW).events == 1
    gateway.send(valkey, gateway.batch([altered], 3))
    assert ingest.ingest(now=NOW).events == 0
    assert stored()[sent.event_id].completion_tokens == 4
    assert PendingEvent.objects.count() == 1


def test_a_gap_keeps_the_position_until_it_is_filled(valkey: redis.Redis, deployment: Deployment, key: ApiKey) -> None:
    first, second = gateway.event(deployment, key), gateway.event(deployment, key)
    gateway.send(valkey, gateway.batch([second], 100, 200))
    ingest.ingest(now=NOW)
    assert position(valkey) == 0
    gateway.send(valkey, gateway.batch([first], 0, 100), gateway.batch([second], 100, 200))
    ingest.ingest(now=NOW)
    assert position(valkey) == 200
    assert stored().keys() == {first.event_id, second.event_id}


@given(data=st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_delivery_order_ends_in_the_same_books(
    data: st.DataObject, valkey: redis.Redis, deployment: Deployment, key: ApiKey
) -> None:
    """A spool is cut into batches; these are lost, doubled and reordered, then sent again from the acknowledged position, as
    gateways do. All events are there once, the position never ran ahead of what is stored, and ends at the spool's end."""
    name = f"gw-{new_id()}"  # the same example may run twice
    events = [gateway.event(deployment, key, gateway=name) for _ in range(data.draw(st.integers(1, 8)))]
    before = stored().keys()

    def cut(start: int) -> list[bytes]:
        edges = sorted({start, len(events), *data.draw(st.lists(st.integers(start, len(events)), max_size=4))})
        pairs = itertools.pairwise(edges)
        return [gateway.batch(events[a:b], a, b, gateway=name) for a, b in pairs]

    for _ in range(2):
        batches = cut(max(0, position(valkey, name)))
        chosen = data.draw(st.lists(st.sampled_from(batches), max_size=6)) if batches else []
        gateway.send(valkey, *chosen)
        ingest.ingest(now=NOW)
        arrived = stored().keys() - before
        assert {event.event_id for event in events[: max(0, position(valkey, name))]} <= arrived
    gateway.send(valkey, *cut(max(0, position(valkey, name))))
    ingest.ingest(now=NOW)
    assert stored().keys() - before == {event.event_id for event in events}
    assert position(valkey, name) == len(events)
    assert set(PendingEvent.objects.values_list("pk", flat=True)) == {row.pk for row in stored().values()}


@pytest.mark.threat("D3")
def test_forged_batches_end_in_the_dead_letter(valkey: redis.Redis, deployment: Deployment, key: ApiKey) -> None:
    other = make.deployment(make.org())
    other_key = make.key(make.member(other.org))[0]
    good = gateway.event(deployment, key)
    forged = [
        gateway.event(deployment, other_key),
        gateway.event(other, key),
        gateway.event(deployment, key, org_id=str(other.org_id)),
        gateway.event(deployment, key, key_id=good.event_id),
        gateway.event(deployment, key, deployment_id=good.event_id),
    ]
    gateway.send(
        valkey,
        b"not a batch",
        gateway.batch([gateway.event(deployment, key)], mac=b"0" * 32),
        gateway.batch([good, *forged]),
    )
    valkey.xadd(USAGE_STREAM, {"something": "else"})
    assert ingest.ingest(now=NOW) == (4, 1)
    assert stored().keys() == {good.event_id}
    assert reasons() == ["bad_mac", "foreign_deployment", "foreign_key_id", "unreadable", "unreadable"]
    assert RejectedBatch.objects.get(reason="foreign_key_id").count == 4
    assert position(valkey) == 6, "what is in the dead letter is safe: the gateway need not send it again"
    assert valkey.xlen(USAGE_STREAM) == 0


@pytest.mark.threat("D3")
def test_an_unproven_batch_moves_no_position_and_fills_no_disk(
    valkey: redis.Redis, deployment: Deployment, key: ApiKey
) -> None:
    raw = gateway.batch([gateway.event(deployment, key)], mac=b"0" * 32)
    for _ in range(3):
        gateway.send(valkey, raw)
        ingest.ingest(now=NOW)
    assert reasons() == ["bad_mac"]
    assert position(valkey) == -1
    assert not GatewayPosition.objects.exists()


def test_rejected_can_be_tried_again(valkey: redis.Redis, deployment: Deployment, key: ApiKey) -> None:
    sent = gateway.event(deployment, key, accepted_at=timezone.now().timestamp())
    missing = ApiKey.objects.for_org(deployment.org).get(pk=key.pk)
    key.delete()
    gateway.send(valkey, gateway.batch([sent]))
    assert ingest.ingest().events == 0
    out = StringIO()
    call_command("retry_rejected", stdout=out)
    assert "1 remain" in out.getvalue()
    missing.save(force_insert=True)
    call_command("retry_rejected", stdout=out)
    assert "Resolved 1 batches with 1 new usage events; 0 remain" in out.getvalue()
    assert stored().keys() == {sent.event_id}


STEPS = ["fetch", "_take", "note", "forget", "tell_positions"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_failing_at_any_step_loses_and_doubles_nothing(
    step: str, when: str, valkey: redis.Redis, deployment: Deployment, key: ApiKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [gateway.event(deployment, key) for _ in range(3)]
    gateway.send(valkey, *(gateway.batch([event], at, at + 1) for at, event in enumerate(events)))
    real = getattr(ingest, step)

    def failing(*args: Any, **kwargs: Any) -> Any:
        if when == "after":
            real(*args, **kwargs)
        raise redis.ConnectionError("killed here")

    with monkeypatch.context() as patch:
        patch.setattr(ingest, step, failing)
        with pytest.raises(redis.ConnectionError):
            ingest.ingest(now=NOW)
        tasks.ingest()
    if step in {"fetch", "_take", "note"}:
        assert stored() == {}
        assert valkey.xlen(USAGE_STREAM) == 3
    ingest.ingest(now=NOW)
    assert stored().keys() == {event.event_id for event in events}
    assert PendingEvent.objects.count() == 3
    assert valkey.xlen(USAGE_STREAM) == 0
    assert position(valkey) == 3


def test_positions_come_back_after_valkey_lost_them(valkey: redis.Redis, deployment: Deployment, key: ApiKey) -> None:
    gateway.send(valkey, gateway.batch([gateway.event(deployment, key)], 0, 50))
    ingest.ingest(now=NOW)
    valkey.flushall()
    ingest.ingest(now=NOW)
    assert position(valkey) == 50
    valkey.hset(USAGE_POSITION_KEY, gateway.NAME, 7)
    ingest.ingest(now=NOW)
    assert position(valkey) == 50


def test_more_than_one_transaction_holds(
    valkey: redis.Redis, deployment: Deployment, key: ApiKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "ENTRIES", 2)
    gateway.send(valkey, *(gateway.batch([gateway.event(deployment, key)], at, at + 1) for at in range(5)))
    assert ingest.ingest(now=NOW) == (5, 5)


def test_behind_is_the_age_of_what_waits(valkey: redis.Redis, deployment: Deployment, key: ApiKey) -> None:
    now = timezone.now()
    assert behind_seconds(deployment.org_id, now) == 0
    made = make.usage_event(deployment, key)
    PendingEvent.objects.filter(pk=made.pk).update(created_at=now - timedelta(seconds=9))
    assert behind_seconds(deployment.org_id, now) == 9
    valkey.xadd(USAGE_STREAM, {"batch": b""}, id=f"{int(now.timestamp() - 30) * 1000}-0")
    assert behind_seconds(deployment.org_id, now) >= 30
